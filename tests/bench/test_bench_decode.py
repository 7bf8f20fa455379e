"""The bench of one token, of first calls, and of other packages' gradients, without a GPU."""

import io
import sys
from types import ModuleType

import pytest
import torch

from rwkv_lessons.bench import methods, peers
from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands import first_call as first
from rwkv_lessons.bench.measure import in_float64, make_inputs, measure
from rwkv_lessons.bench.methods import Method
from rwkv_lessons.interop import fla
from rwkv_lessons.operations import OPERATIONS, work
from rwkv_lessons.records.fingerprint import files_of
from rwkv_lessons.wkv6 import METHODS, wkv6_step

CPU, DECODE = torch.device("cpu"), "wkv6-decode"
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


def test_work_of_the_projects_floors():
    """0.004 and 0.125 ms at 4.3 TB/s for 8 and 256 sequences of 64 heads."""
    for shape, ms in zip(OPERATIONS[DECODE].shapes, (0.004, 0.125), strict=True):
        least = work(DECODE, shape, "bfloat16")
        assert least.bytes / 4.3e9 == pytest.approx(ms, rel=0.02)


def test_one_token_is_checked_with_its_state():
    inputs = make_inputs(DECODE, (2, 1, 2, 8), "float32", CPU)
    assert [x.shape[1] for x in inputs[:4]] == [1] * 4 and inputs[5].abs().sum() > 0
    expected = in_float64(DECODE, inputs)
    found = methods.one_token("wkv6")
    for name in ("wkv6_step", "wkv6"):
        row = measure(DECODE, found[name], inputs, expected, budget_ms=1)
        assert row.problem is None and row.error < 1e-6 and not row.stale, name

    def forgets(r, k, v, w, u, s0):
        state = s0.clone()
        return lambda: (wkv6_step(r, k, v, w, u, state.clone()), state)

    row = measure(DECODE, Method("not in place", forgets), inputs, expected, budget_ms=1)
    assert "not timed" in row.problem


@no_gpu
def test_a_quick_run_of_one_token(capsys):
    main(["wkv6-decode", "--quick", "--methods", "wkv6_step,wkv6", "--dtype", "float32"])
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("done")]
    assert len(lines) == 2 and all(line.endswith("ms") for line in lines)


@no_gpu
def test_the_packages_own_function_is_a_method_too(capsys):
    assert "wkv6" in methods.library("wkv6") and "wkv6" in methods.library("wkv6-backward")
    main(["wkv6", "--quick", "--methods", "wkv6", "--dtype", "float32", "--shape", "1,9,2,8"])
    assert "done: wkv6, float32" in capsys.readouterr().out


def files_behind(method):
    return {file.removeprefix("rwkv_lessons/") for file in files_of(*method.sources)}


def test_the_code_behind_a_method_is_all_that_it_calls_and_no_more():
    library = methods.library("wkv6")
    recurrent, cuda = files_behind(library["recurrent"]), files_behind(library["cuda"])
    token_by_token = {"wkv6/recurrent/forward.py", "wkv6/recurrent/backward.py"}
    assert token_by_token | {"runtime/launch_triton.py"} < recurrent
    sweeps = {f"wkv6/cuda/{x}.py" for x in ("forward", "backward", "reverse_sweep")}
    assert sweeps | {"runtime/launch_numba.py"} < cuda
    assert not sweeps & recurrent and not token_by_token & cuda
    assert "wkv6/chunked/forward.py" not in recurrent
    assert not (token_by_token | sweeps) & files_behind(library["wkv6"])  # until it picks one
    backward = methods.library("wkv6-backward")["chunked"]
    assert {f"wkv6/chunked/{x}.py" for x in ("hopper/sweep", "states", "strong")} < files_behind(
        backward
    )


@pytest.mark.parametrize("tokens, file", [(5, "doubling"), (1, "reference")])
def test_a_row_of_a_function_that_picks_names_the_method_it_took(tokens, file):
    inputs = make_inputs("wkv6", (2, tokens, 2, 8), "float32", CPU)
    picks, expected = methods.library("wkv6")["wkv6"], in_float64("wkv6", inputs)
    for _ in range(2):  # the second call finds what the first has left
        row = measure("wkv6", picks, inputs, expected, budget_ms=1)
        folder = "rwkv_lessons/wkv6"
        assert row.sources == (f"{folder}/__init__.py::wkv6", f"{folder}/{file}.py::wkv6_{file}")


@pytest.mark.parametrize("operation", ["wkv6-backward", DECODE])
def test_peers_are_given_what_they_expect(operation, monkeypatch):
    theirs = ModuleType("fla.ops.rwkv6")
    theirs.chunk_rwkv6, theirs.fused_recurrent_rwkv6 = fla.chunk_rwkv6, fla.fused_recurrent_rwkv6
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.rwkv6", theirs)
    monkeypatch.setattr(peers, "is_here", lambda name: True)
    monkeypatch.setattr(peers, "version", lambda name: "0")
    found, missing = peers.peers(operation)
    assert list(found) == list(OPERATIONS[operation].peers) and not missing
    inputs = make_inputs(operation, (2, 1 if operation == DECODE else 5, 2, 8), "float32", CPU)
    expected = in_float64(operation, inputs)
    for method in found.values():
        row = measure(operation, method, inputs, expected, budget_ms=1)
        assert row.problem is None and row.error < 1e-6, method.name


@no_gpu
def test_first_calls_need_a_gpu():
    with pytest.raises(SystemExit, match="no NVIDIA GPU here"):
        main(["first"])
    assert set(first.METHODS) - set(METHODS) == {"wkv6", "wkv6-backward", "wkv6_step"}


@pytest.mark.parametrize("method", first.METHODS)
def test_a_first_call_knows_the_code_behind_it(method):
    row = first._row(method, "float32", "seconds 1.5\n", "", 0)
    assert (row.host_ms, row.stale) == (1500, False)
    name = "wkv6_step" if method == "wkv6_step" else "wkv6"
    assert any(name in source.partition("::")[2] for source in row.sources)


@pytest.mark.parametrize("method", ["wkv6", "wkv6-backward", "wkv6_step"])
def test_the_process_of_a_first_call_reports_its_seconds(method, monkeypatch, capsys):
    """On a CPU, which has every function but no kernel."""
    monkeypatch.setattr(first, "SHAPE", (1, 8, 2, 4))
    monkeypatch.setattr(sys, "argv", ["-c", *first._arguments(method, "float32")])
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    exec(first.SCRIPT.replace('"cuda"', '"cpu"'), {})
    row = first._row(method, "float32", capsys.readouterr().out, "", 0)
    assert row.problem is None and row.host_ms > 0 and not row.stale


def test_first_calls_are_made_in_processes_that_are_ready(monkeypatch):
    script = """
import io
import sys
print("ready", flush=True)
sys.stdin.readline()
sys.exit("it is broken") if "cuda" in sys.argv else print("seconds", 0.25)
"""
    monkeypatch.setattr(first, "SCRIPT", script)
    good, bad = first.measure([("recurrent", "float32"), ("cuda", "bfloat16")])
    assert (good.method, good.dtype, good.host_ms) == ("recurrent", "float32", 250)
    assert bad.problem == "it is broken" and bad.host_ms is None


@no_gpu
def test_a_process_without_a_gpu_says_so():
    (row,) = first.measure([("wkv6_step", "float32")])
    assert row.problem and row.host_ms is None


@pytest.mark.gpu
def test_what_a_triton_kernel_uses_is_read_at_its_launch():
    inputs = make_inputs("wkv6", (1, 20, 2, 64), "bfloat16", torch.device("cuda"))
    recurrent = methods.library("wkv6")["recurrent"]
    row = measure("wkv6", recurrent, inputs, in_float64("wkv6", inputs), budget_ms=1)
    assert row.problem is None and row.registers > 16 and row.local_bytes == 0
    assert row.block == 32 and row.shared_bytes > 0


@pytest.mark.gpu
def test_every_way_of_one_token_on_this_gpu(capsys):
    main(["wkv6-decode", "--quick", "--dtype", "bfloat16"])
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("done")]
    assert len(lines) == len(methods.one_token("wkv6")) and all(x.endswith("ms") for x in lines)
