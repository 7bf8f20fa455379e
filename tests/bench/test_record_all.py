"""All records with one command: each in a process and a time of its own."""

import re
import shlex
from dataclasses import replace

import pytest

from rwkv_lessons.bench.__main__ import _parser, main
from rwkv_lessons.bench.commands import record_all
from rwkv_lessons.bench.commands.record_all import BENCH, PLANS, chosen, state
from rwkv_lessons.bench.commands.run import check_name
from rwkv_lessons.operations import LADDERS, OF_LADDER, OPERATIONS, operation_of
from rwkv_lessons.operations.entries import RecordPlan
from rwkv_lessons.records import schema
from rwkv_lessons.records.schema import Measurement, Provenance, Record, save

GPU = "Test GPU"
# In place of the bench: the name after --record says what it does.
ACTS = """
import sys, time
words = sys.stdin.readline()
if "stuck" in words:
    time.sleep(60)
sys.exit(3 if "broken" in words else 0)
"""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_plan_is_a_command_that_writes_its_record(plan):
    options = _parser().parse_args(shlex.split(plan.command.removeprefix(BENCH)))
    assert options.record == (plan.name if plan.named else "")
    ladder, operation = (getattr(options, x, None) for x in ("ladder", "operation"))
    if plan.named and (ladder or operation):
        check_name(options, ladder or operation)
    if ladder or operation:
        wanted = OF_LADDER[ladder] if ladder else OPERATIONS[operation]
        assert operation_of(plan.name) is wanted
    partial = any(getattr(options, x, None) for x in ("shape", "dtype", "methods"))
    assert not (partial and not plan.named), "a part under the name of the whole"


def test_plans_have_names_of_their_own_and_those_that_wait_for_others_come_last():
    names = [plan.name for plan in PLANS]
    assert len(set(names)) == len(names) and names[0] == "ceilings"  # the others read it
    ladders = len(LADDERS)
    assert {plan.arguments.split()[0] for plan in PLANS[1 : ladders + 1]} == {"ladder"}
    with_peers = ["--peers" in plan.arguments for plan in PLANS]
    assert with_peers == sorted(with_peers)


def test_what_fails_or_takes_too_long_does_not_stop_the_others(capfd):
    plans = [
        RecordPlan("a", "good"),
        RecordPlan("b", "broken"),
        RecordPlan("c", "stuck", limit_s=2),
        RecordPlan("d", ""),
    ]
    plans.append(RecordPlan("e", "", needs="no_such_module"))
    results = [how for _, how in record_all.record_all(plans, ready=ACTS)]
    assert re.fullmatch(r"recorded in \d+ s", results[0])
    assert results[1].startswith("failed: exit status 3")
    assert results[2] == "failed: not done after 2 s"
    assert results[3].startswith("recorded")
    assert results[4] == "skipped: there is no no_such_module"
    out = capfd.readouterr().out
    assert f"{BENCH} broken --record b" in out
    assert [line for line in out.splitlines() if line.startswith("-- ")] == [
        f"-- {name} {how}" for name, how in zip("abcde", results, strict=True)
    ]


def test_the_bench_is_ready_for_a_command_and_says_what_is_wrong(capfd):
    ((_, how),) = record_all.record_all([RecordPlan("try", "ceilings --nonsense", 120)])
    assert how.startswith("failed: exit status 2")
    assert "unrecognized arguments: --nonsense" in capfd.readouterr().err


def test_the_state_of_a_record(tmp_path):
    plan = RecordPlan("try", "wkv6 --methods 'a,b c'")

    def written(command, **row):
        here = Provenance(GPU, "1", "0", "2000-01-01", "c", f"{BENCH} {command}", "y")
        save(Record("try", here, (Measurement("a", (1, 2, 3, 4), "float32", **row),)), tmp_path)
        return state(plan, GPU, tmp_path)

    assert state(plan, GPU, tmp_path) == "missing"
    for command in ("--record try", "--record", "--record try --commit abc", "--commit a --record"):
        assert written(f"wkv6 --methods a,b c {command}") == "recorded"
    assert written("wkv6 --record") == "recorded by another command"
    assert written("wkv6 --methods a,b c --record", sources=("gone.py",), kernels=("0",)) == "stale"
    older = written("wkv6 --methods a,b c --record", sources=("gone.py",), sha256="0")
    assert older == "of older host code"
    plan = replace(plan, holds=(("a", "float32"), ("a", "bfloat16")))
    assert written("wkv6 --methods a,b c --record") == "incomplete"


def test_a_ladder_is_recorded_in_each_type_that_its_kernels_take():
    plan = next(plan for plan in PLANS if plan.name == "wkv6-triton-ladder")
    assert ("16_the_chunked_kernel", "bfloat16") in plan.holds
    assert ("08_decay_from_data", "bfloat16") not in plan.holds
    assert {("chunked", x) for x in ("bfloat16", "float32")} < set(plan.holds)


def test_only_some_records_can_be_asked_for(capsys):
    assert [plan.name for plan in chosen(["wkv5*", "mla-ladder"])] == [
        *("wkv5-ladder", "wkv5-profile", "wkv5", "wkv5-backward", "mla-ladder")
    ]
    assert chosen() == list(PLANS) == chosen(needed_on="a GPU that nobody has")
    with pytest.raises(SystemExit, match="2"):
        main(["record-all", "wkv9", "--list"])
    assert "no record 'wkv9': there are ceilings" in capsys.readouterr().err


def test_the_list_says_what_there_is(capsys):
    main(["record-all", "mla-decode", "--list"])
    line = capsys.readouterr().out.strip()
    assert line.startswith("mla-decode ") and line.endswith("bench mla-decode --record")


@pytest.mark.parametrize("line", ["record-all --list", "matrix --check"])
def test_without_records_it_says_where_they_are(line, monkeypatch, tmp_path):
    monkeypatch.setattr(schema, "RECORDS", tmp_path / "none")
    with pytest.raises(SystemExit, match="^bench: .* the records are in the repository$"):
        main(line.split())
