"""python -m rwkv_lessons.verify: what it looks at, what it sees, and what it says of a machine."""

import json
import os
import signal
import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rwkv_lessons.bench import gpu_tests, refuse
from rwkv_lessons.operations import OPERATIONS as registered
from rwkv_lessons.operations.checks import ALL_DTYPES, ANYWHERE, DECAYS, HOPPER
from rwkv_lessons.records.fingerprint import ROOT, files_of, fingerprint, kernel_code
from rwkv_lessons.records.schema import Measurement, load
from rwkv_lessons.report import tables as blocks
from rwkv_lessons.runtime import command_line
from rwkv_lessons.runtime.devices import H200
from rwkv_lessons.verify import __main__ as command
from rwkv_lessons.verify import gate, judge, latent, limits, pool, recurrence
from rwkv_lessons.verify.cases import CHECKED, table
from rwkv_lessons.verify.judge import NOT_PROMISED, RIGHT, WRONG, look

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there everything is looked at")
CPU = torch.device("cpu")


def case_of(pattern):
    (found,) = table([pattern])
    return found


# The table.


def test_every_method_is_looked_at_in_every_dtype_with_every_option_it_has():
    rows = table()
    for name, operation in CHECKED.items():
        package = import_module(f"rwkv_lessons.{operation.package}")
        here = [case for case in rows if case.operation == name]
        methods = {case.method for case in here}
        wanted = {name} if name.endswith(("_step", "_serving")) else {*package.METHODS, name}
        assert methods == wanted
        for method in wanted:
            of_method = [case for case in here if case.method == method]
            assert {case.dtype for case in of_method} >= set(ALL_DTYPES)
            for dtype in ALL_DTYPES:
                options = {case.option for case in of_method if case.dtype == dtype}
                assert "all" in options or [*operation.checks.options][-1] in options


def test_strong_decays_meet_every_option():
    rows = {case for case in table() if case.decay}
    assert {case.decay for case in rows} == set(DECAYS)
    for case in rows:
        assert replace(case, decay="strong") in rows and replace(case, decay="tame") in rows


def test_every_shape_and_option_is_used_and_every_name_is_one_case():
    rows = table()
    assert len({case.name for case in rows}) == len(rows)
    for name, operation in CHECKED.items():
        here = [case for case in rows if case.operation == name]
        assert {case.option for case in here} == set(operation.checks.options)
        shapes = {case.shape for case in here}
        assert shapes == set(operation.checks.shapes) or name == "wkv5"  # shares the shapes of wkv6


def test_hoppers_shapes_fill_an_h200_with_hoppers_kernels():
    pytest.importorskip("triton")
    from rwkv_lessons.wkv6.chunked import segments

    for case in table():
        if case.needs != HOPPER:
            continue
        B, T, H, K, V = case.sizes
        assert K % 64 == V % 64 == 0 and case.dtype != "float32"
        cut, _ = segments.segments_for(B * H, T, H200.sms)
        assert (cut > 1) == ("segments" in case.shape)
        assert B * H * cut * (K // 64) * (V // 64) > H200.sms


def test_a_program_of_latent_attention_takes_many_tiles_of_tokens():
    """On an H200, of the kernel in turns, in which two tiles at a time wait in shared memory."""
    pytest.importorskip("triton")
    from rwkv_lessons.mla.decode.splits import decode_tile, splits_for
    from rwkv_lessons.mla.decode.turns import RANK_AND_ROPE as SIZES

    most = {}
    for case in table(["mla / decode / bfloat16"]):
        B, M, H, N, _, R, P, _ = case.sizes
        tile = decode_tile(M * H, R, P, torch.bfloat16, H200)
        tiles, programs = -(-N // tile.tokens), B * -(-M * H // tile.rows)
        splits = splits_for(programs, tiles, H200.sms, tile.side_by_side)
        if (R, P) == SIZES and tile.rows == 64:
            most[case.option] = max(most.get(case.option, 0), -(-tiles // splits))
    wanted = {"lengths": 65, "left padding": 65, "both": 65, "pages": 65, "all": 65}
    assert {name: most.get(name) for name in wanted} == wanted


def test_the_definition_of_a_sequence_does_not_depend_on_the_others():
    """So that it may be computed for one at a time, in pages or not."""
    from rwkv_lessons import mla

    for option in ("both", "pages", "all"):
        asked = latent.Latent(case_of(f"mla / reference / float32 / tiny / {option}"), CPU)
        asked.case = replace(asked.case, gradients=False)
        ((_, found),) = asked.expected()
        o, lse = mla.METHODS["reference"](*(x.double() for x in asked.inputs), **asked.call)
        for got, want in ((found["o"], o), (found["lse"], lse)):  # float64, sums in another order
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_strong_decays_are_strong_and_tame_ones_are_not():
    g = torch.Generator().manual_seed(0)
    tame, strong = (recurrence.decays(kind, (2, 200, 3, 64), g) for kind in DECAYS)
    assert tame.min() >= -1 and tame.max() < 0
    finite = strong[strong.isfinite()]
    assert finite.min() == -20 and strong.max() == 0 and not strong.isnan().any()
    assert (strong == -torch.inf).all(dim=0).all(dim=0).any()  # a key that never remembers
    assert (strong == -torch.inf).all(dim=3).any()  # a token that ends a document, in some head
    assert (strong[:, :40, :, 0] > -1.01).all()  # and tokens before all of it
    assert torch.equal(recurrence.raw(strong).exp().neg().isinf(), strong.isinf())


# What it sees.


def test_a_right_method_is_right_and_the_same_every_time():
    case = case_of("wkv6 / doubling / float32 / short / all / strong")
    first, second = (look(case, CPU) for _ in range(2))
    assert first.verdict == RIGHT and 0 < first.error <= first.limit and first.bits == NOT_PROMISED
    assert replace(first, seconds=0) == replace(second, seconds=0)


WRONGS = {
    "dw a fifth too large": lambda r, k, v, w, u, s0: (r, k, v, _scaled(w, 1.2), u, s0),
    "no gradient of s0": lambda r, k, v, w, u, s0: (r, k, v, w, u, s0.detach()),
    "u of another head": lambda r, k, v, w, u, s0: (r, k, v, w, u.roll(1, 0), s0),
    "a token of one head": lambda r, k, v, w, u, s0: (_nudged(r), k, v, w, u, s0),
    "no strong decays": lambda r, k, v, w, u, s0: (r, k, v, w.clamp(min=-10), u, s0),
}


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return ctx.factor * dx, None


def _scaled(x, factor):
    return _Scaled.apply(x, factor)


def _nudged(r):
    factor = torch.ones_like(r)
    factor[0, 7, 0] = 1.01
    return r * factor


@pytest.mark.parametrize("name", WRONGS)
def test_a_wrong_method_is_seen(name, monkeypatch):
    from rwkv_lessons import wkv6

    right = wkv6.METHODS["doubling"]
    monkeypatch.setitem(
        wkv6.METHODS, "doubling", lambda *x, **options: right(*WRONGS[name](*x), **options)
    )
    found = look(case_of("wkv6 / doubling / float32 / short / state / strong"), CPU)
    assert found.verdict == WRONG and found.error > found.limit
    if name == "dw a fifth too large":
        assert found.worst == "dw" and found.error == pytest.approx(0.2, rel=1e-3)


def test_memory_that_nobody_wrote_is_seen(monkeypatch):
    from rwkv_lessons import wkv6

    def forgetful(r, k, v, w, u, s0=None, **options):
        o, s1 = wkv6.wkv6_doubling(r, k, v, w, u, s0, **options)
        fresh = torch.empty_like(o)
        fresh[:, 1:] = o[:, 1:]
        return fresh, s1

    monkeypatch.setitem(wkv6.METHODS, "doubling", forgetful)
    found = look(case_of("wkv6 / doubling / float32 / token / plain / tame"), CPU)
    assert found.verdict == WRONG and found.error is None and "not a number" in found.line


def test_a_method_that_raises_is_wrong_and_says_why(monkeypatch):
    from rwkv_lessons import mla

    def broken(*_, **__):
        raise RuntimeError("illegal memory access\nand more")

    monkeypatch.setitem(mla.METHODS, "absorbed", broken)
    found = look(case_of("mla / absorbed / float32 / tiny / plain"), CPU)
    assert found.verdict == WRONG and found.reason == "RuntimeError: illegal memory access"


@given(st.integers(1, 5), st.integers(1, 9))
def test_an_error_is_that_of_the_worst_head(heads, n):
    want = torch.ones(heads, n)
    wrong = torch.zeros(heads, n)
    wrong[-1] = 0.5
    found = limits.relative(wrong, want)
    assert found.max() == pytest.approx(0.5) and (found[:-1] == 0).all()
    nothing = limits.relative(wrong, 0 * want)
    assert nothing.max() == pytest.approx(0.5)


# Processes that are watched.


def _look_badly(case, device=None):
    if "plain" in case.name:
        os._exit(7)
    if "pages" in case.name:
        time.sleep(60)
    return judge.Judgement(case, RIGHT)


def test_a_process_that_dies_or_hangs_costs_one_case_only(monkeypatch):
    """Forked, so that they have the function of this test."""
    import multiprocessing

    monkeypatch.setattr(pool, "look", _look_badly)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _, f=multiprocessing.get_context:
                        f("fork"))  # fmt: skip
    asked = [x for x in table(["mla / absorbed / float32 / tiny"]) if x.gradients]
    found = {result.case.option: result for result in pool.examine(asked, 1, patience=5)}
    assert len(found) == len(asked) == 6
    wrong = {option: result.reason for option, result in found.items() if result.verdict == WRONG}
    assert wrong == {
        "plain": "its process ended, exit status 7",
        "pages": "no answer after 5 s",
    }


# The command.


def run(capsys, *arguments):
    code = command.main(["--commit", "c0ffee", *arguments])
    return code, capsys.readouterr()


@no_gpu
def test_without_a_gpu_it_says_what_it_could_not_look_at(capsys):
    code, printed = run(capsys, "--only", "wkv6*float32 / token")
    assert code == command.NOT_ALL_SEEN
    assert "wkv6 / chunked: 4 cases not checked: no NVIDIA GPU here" in printed.out
    assert "right  wkv6 / doubling / float32 / token / all / strong" in printed.out
    assert "8 right, 0 wrong, 8 not checked" in printed.out and "commit c0ffee" in printed.out
    assert "No kernel was checked: this says nothing about any GPU." in printed.out


@no_gpu
def test_something_wrong_is_exit_status_one_and_stands_in_the_json(capsys, tmp_path, monkeypatch):
    from rwkv_lessons import wkv6

    right, wrong = wkv6.METHODS["doubling"], WRONGS["dw a fifth too large"]
    monkeypatch.setitem(wkv6.METHODS, "doubling", lambda *x, **o: right(*wrong(*x), **o))
    file = tmp_path / "found.json"
    pattern = "doubling / float32 / short / all but packed"
    code, printed = run(capsys, "--only", pattern, "--json", str(file))
    assert code == command.SOMETHING_WRONG and "WRONG  wkv6 / doubling / float32" in printed.out
    data = json.loads(file.read_text())
    assert (data["right"], data["wrong"], data["not_checked"]) == (0, 2, 0)
    assert data["only"] == [pattern] and data["machine"]["sha256"] == fingerprint(*kernel_code())
    assert all(case["worst"] == "dw" and case["error"] > case["limit"] for case in data["cases"])


@no_gpu
def test_an_interrupt_tells_how_much_was_right(capsys, monkeypatch):
    def interrupt(case):
        signal.raise_signal(signal.SIGINT)

    looks = iter([look, interrupt])
    monkeypatch.setattr(judge, "look", lambda case: next(looks)(case))
    tiny = ["--only", "mla / mla / float32 / tiny"]
    assert command_line.run(lambda: command.main(tiny), "verify") == 130
    printed = capsys.readouterr()
    assert printed.err == "verify: interrupted; 1 right, 0 wrong before the interrupt\n"
    assert "right  mla / mla / float32 / tiny" in printed.out


@no_gpu
def test_json_to_the_shell_is_nothing_but_json(capsys):
    code, printed = run(capsys, "--only", "mla / mla / float32 / tiny / plain", "--json", "-")
    data = json.loads(printed.out)
    assert code == command.ALL_RIGHT and data["right"] == 1
    assert [case["verdict"] for case in data["cases"]] == [RIGHT] and "1 right" in printed.err


def test_a_pattern_that_nothing_has_is_an_error_and_names_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["--only", "wkv9"])
    assert stop.value.code == 2
    assert "no case has wkv9 in its name" in capsys.readouterr().err
    assert command.main(["--only", "wkv6_step", "--list"]) == command.ALL_RIGHT
    assert "wkv6_step / wkv6_step / float16 / odd / raw / strong" in capsys.readouterr().out


def test_the_assembler_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(command.PTXAS, "before")
    command.choose_assembler(None)
    assert os.environ[command.PTXAS] == "before"
    command.choose_assembler("default")
    assert os.environ[command.PTXAS] == "default"
    command.choose_assembler("chosen")
    assert command.PTXAS not in os.environ
    with pytest.raises(ValueError, match="there is no program"):
        command.choose_assembler(str(tmp_path / "ptxas"))


# What the benchmark asks.


@pytest.fixture
def fresh_gate():
    for cached in (gate.problem, gate.verified):
        cached.cache_clear()
    yield
    for cached in (gate.problem, gate.verified):
        cached.cache_clear()


def test_the_gate_has_cases_for_every_method_that_is_recorded():
    for operation, method in [("wkv5", "cuda"), ("wkv6", "chunked"), ("wkv6", "cuda"),
                              ("wkv6", "recurrent"), ("wkv6", "wkv6"), ("mla", "decode"),
                              ("mla", "prefill"), ("wkv6_step", "wkv6_step")]:  # fmt: skip
        for dtype in ALL_DTYPES:
            few = gate._cases(operation, method, dtype, True)
            assert few and len(few) <= 6
            assert {case.decay for case in few} <= {"strong", ""}
            assert not any(c.gradients for c in gate._cases(operation, method, dtype, False))
    assert gate._cases("wkv5", "05_float4", "float32", True) == []


def test_no_time_is_recorded_of_what_is_wrong(monkeypatch, fresh_gate):
    def wrong(case):
        return judge.Judgement(case, WRONG, worst="dw", error=0.2, limit=1e-5)

    monkeypatch.setattr(gate, "look", wrong)
    row = Measurement("chunked", (1, 2, 3, 4), "float32", 5, 1.5, error=1e-6, gb_per_s=3.0)
    found = refuse.refused("wkv6-backward-small", row)
    assert found.median_ms is None and found.gb_per_s is None and found.error == 1e-6
    named = "wkv6 / chunked / float32 / many heads / plain / strong: dw 2.0e-01 and 1 more"
    assert found.problem == f"{gate.NOT_RECORDED} {named}"
    rung = replace(row, method="05_float4")
    assert refuse.refused("wkv5-ladder", rung) == rung
    peer = replace(row, method="fla chunk")
    assert refuse.refused("wkv6-peers", peer) == peer


@pytest.mark.parametrize(
    "name, method, wanted",
    [
        ("wkv6-triton-backward-ladder", "chunked", ("wkv6", "chunked")),
        ("wkv6-first", "wkv6-backward", ("wkv6", "wkv6")),
        ("wkv6-decode", "wkv6_step, graph", ("wkv6_step", "wkv6_step")),
        ("mla-decode", "decode, graph replay", ("mla", "decode")),
        ("mla-decode", "paged, graph replay", ("mla", "decode")),
        ("mla-prefill", "prefill absorbed", ("mla", "prefill")),
        ("mla-generate", "latent graph", ("mla", "mla")),
        ("wkv5", "cuda", ("wkv5", "cuda")),
    ],
)
def test_a_row_is_asked_about_by_verifys_names(name, method, wanted):
    assert refuse._verified_as(name, method) == wanted


def test_what_verify_wrote_is_believed_for_this_code_only(monkeypatch, tmp_path, fresh_gate):
    monkeypatch.setattr(gate, "look", lambda case: pytest.fail("it is known already"))
    case = case_of("wkv6 / chunked / float32 / small / raw / strong")
    wrong = judge.Judgement(case, WRONG, worst="dw", error=0.2, limit=1e-5)
    data = {"machine": gate.machine(), "only": [], "cases": [wrong.as_dict()]}
    file = tmp_path / "verified.json"
    monkeypatch.setenv(gate.VERIFIED, str(file))
    file.write_text(json.dumps(data))
    assert "small / raw / strong: dw" in gate.problem("wkv6", "chunked", "float32")
    assert gate.problem("wkv6", "cuda", "float32") is None
    for change in ({"only": ["wkv6"]}, {"machine": data["machine"] | {"sha256": "another"}}):
        gate.problem.cache_clear()
        gate.verified.cache_clear()
        file.write_text(json.dumps(data | change))
        with pytest.raises(ValueError, match="verify"):
            gate.problem("wkv6", "cuda", "float32")


# How the tests on a GPU went.


def machine(**changes):
    names = ("driver", "cuda", "python", "torch", "triton", "numba", "numba_cuda")
    here = dict.fromkeys(names, "1.0") | {"gpu": "Test GPU", "assembler": "12.9.86"}
    here |= {"date": "2000-01-01", "commit": "c0ffee", "sha256": fingerprint(*kernel_code())}
    return here | changes


def reports(*names):
    return [SimpleNamespace(nodeid=name) for name in names]


def test_how_the_tests_went_is_recorded_and_shown(tmp_path):
    stats = {"passed": reports("a", "b"), "failed": reports("c"), "error": reports("d"), "": []}
    file = gpu_tests.save(stats, 61.4, machine(), str(tmp_path))
    assert file == tmp_path / "test-gpu" / "gpu-tests.json"
    assert load(file).provenance.gpu == "Test GPU"
    assert json.loads(file.read_text())["failures"] == ["c", "d"]
    block = blocks.BLOCKS["gpu-tests"](tmp_path)
    assert "| Test GPU | 2 | 2 | 0 | 61 | this code | 2000-01-01 |" in block
    assert "Test GPU: driver 1.0, python 1.0, torch 1.0, triton 1.0, numba 1.0" in block
    gpu_tests.save(stats, 61.4, machine(sha256="another"), str(tmp_path))
    assert "| **older code** |" in blocks.BLOCKS["gpu-tests"](tmp_path)


def test_without_a_record_the_block_names_the_command(tmp_path):
    assert blocks.BLOCKS["gpu-tests"](tmp_path) == "Not recorded yet; `make test-gpu`"


def test_kernel_code_is_that_of_all_operations():
    """Every file of an operation is reached from what users call, or from a trial of the bench.

    Inner __init__.py are empty, and that of `distributed` only names what stands elsewhere.
    """
    operations = [ROOT / "rwkv_lessons" / x.package for x in registered.values()]
    files = {file.relative_to(ROOT).as_posix() for x in operations for file in x.rglob("*.py")}
    files -= {name for name in files if name.count("/") > 2 and name.endswith("__init__.py")}
    files.remove("rwkv_lessons/distributed/__init__.py")
    files -= {name for name in files if name.endswith("/calls.py")}  # for bench/
    trials = (ROOT / "rwkv_lessons/bench/trials").glob("*.py")
    experiments = files_of(*(trial.relative_to(ROOT).as_posix() for trial in trials))
    assert files < {*files_of(*kernel_code()), *experiments}


def test_anywhere_is_where_torch_is():
    """Kernels are never said to be right where only torch computed."""
    kernels = {"cuda", "recurrent", "chunked", "decode", "prefill"}
    for case in table():
        if case.needs == ANYWHERE and case.operation != "wkv5":
            assert case.method not in kernels
