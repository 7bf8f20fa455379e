"""Small calls of every kernel: each runs, on a CPU by what `wkv6` and the others take there."""

import pytest

from rwkv_lessons.bench import small_calls
from rwkv_lessons.bench.small_calls import CALLS, chosen, main

QUICK = ["wkv5", "wkv6 token", "wkv7 chunked 256", "wkv7 token", "mla lists", "mla fp8 pages",
         "mla float32", "timex"]  # fmt: skip


def test_every_operation_is_called():
    assert {name.split()[0] for name in CALLS} == {"wkv5", "wkv6", "wkv7", "kda", "mla", "timex"}


def test_every_part_has_its_own_calls():
    parts = [chosen((), k, 3) for k in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(CALLS)
    assert chosen(["mla*"], 2, 2) == [x for x in CALLS if x.startswith("mla")][1::2]


def test_calls_run_and_are_named_before_they_do(capsys):
    assert main(QUICK) is None
    assert capsys.readouterr().out.splitlines() == QUICK


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["wkv8"], "no call is named 'wkv8'; there are wkv5, wkv6, "),
        (["--part", "3/2"], "must be like 1/2, the first of two parts; got '3/2'"),
        (["--part", "x"], "got 'x'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_a_call_that_fails_is_the_last_one_named(capsys, monkeypatch):
    def fails():
        raise RuntimeError("on purpose")

    monkeypatch.setitem(small_calls.CALLS, "wkv6", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        main(["wkv5", "wkv6", "timex"])
    assert capsys.readouterr().out == "wkv5\nwkv6\n"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_each_call_runs_on_a_gpu(name):
    main([name])
