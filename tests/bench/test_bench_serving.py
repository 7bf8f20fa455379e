"""The bench of serving calls without a GPU: bytes, times that are predicted, and other packages."""

import re
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rwkv_lessons.bench import peers, serving_operators
from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands.serving import least_of, make_batch
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.interop import albatross, fla, rwkv_sglang
from rwkv_lessons.lab.course.exercises import ROOT
from rwkv_lessons.operations import OPERATIONS

CPU, SINGLE, HALF = torch.device("cpu"), torch.float32, torch.float16
BANDWIDTH = 4.3e12  # bytes a second that copies reach on an H200
SHAPES = {"one": (3, 1, 2, 64), "drafts": (3, 4, 2, 64), "mixed": (18, 32, 2, 64)}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


def rows_of_the_page():
    """(S, T, kind) → (MB and ms of float32 states, of float16 states), of docs/serving.md."""
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ([\d,.]+) MB \| ([\d.]+) ms \| (.+?) MB \| ([\d.]+) ms \|$",
                      page, re.M)  # fmt: skip
    found = {}
    for what, *numbers in rows:
        n = [int(x.replace(",", "")) for x in re.findall(r"[\d,]+", what)]
        if "drafts" in what:
            shape, kind = (n[1], n[0]), what.split()[-1].replace("verified", "verify")
            kind = kind.replace("committed", "commit")
        else:
            shape, kind = ((216, 4096), "") if "prompts" in what else ((n[-1], 1), "")
        numbers = [float(x.replace(",", "")) for x in numbers]
        found[(*shape, kind)] = numbers[:2], numbers[2:]
    return found


def test_the_page_has_the_bytes_and_the_times_that_they_take():
    operation, page = OPERATIONS["wkv7-serving"], rows_of_the_page()
    shapes = {(S, T) for S, T, *_ in operation.shapes}
    assert {(S, T) for S, T, _ in page} == shapes and len(page) == len(shapes) + 4
    for (S, T, kind), columns in page.items():
        for dtype, (megabytes, ms) in zip((SINGLE, HALF), columns, strict=True):
            least = least_of(operation, (S, T, 64, 64), "bfloat16", kind, dtype).bytes
            assert abs(least / 1e6 - megabytes) <= (0.05 if megabytes < 10 else 0.5), (S, T, kind)
            assert abs(least / BANDWIDTH * 1e3 - ms) <= 5e-4, (S, T, kind)


@pytest.mark.parametrize("name", ["wkv7-serving", "wkv6-serving"])
def test_bytes_of_float16_states_are_the_operations_least(name):
    operation = OPERATIONS[name]
    for shape in operation.shapes:
        kind = "verify" if 1 < shape[1] <= 8 else ""
        least = operation.least(shape, "bfloat16")
        found = least_of(operation, shape, "bfloat16", kind, HALF)
        assert found.flops == least.flops
        assert least.bytes - found.bytes in (0, 64 * 64 * 4)  # u of RWKV-6


@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("package", ["wkv7", "wkv6"])
def test_flas_functions_are_given_what_they_expect(package, what, monkeypatch):
    if package == "wkv6" and what == "drafts":
        pytest.skip("RWKV-6 has no drafts")
    theirs = ModuleType("fla.ops")
    theirs.chunk_rwkv7, theirs.chunk_rwkv6 = fla.chunk_rwkv7, fla.chunk_rwkv6
    theirs.fused_mul_recurrent_rwkv7 = fla.fused_mul_recurrent_rwkv7
    theirs.fused_recurrent_rwkv6 = fla.fused_recurrent_rwkv6
    monkeypatch.setattr(peers, "fla_function", lambda name, package="rwkv6": getattr(theirs, name))
    batch = make_batch(package, SHAPES[what], "float32", SINGLE, CPU)
    before = batch.states.clone()
    got = peers.fla_serving(batch)().view(batch.expected.shape)
    assert relative_error(got, batch.expected) < 3e-6 and torch.equal(batch.states, before)


def written(*given):
    """wkv7s of the rwkv package, by its own definition."""
    _, T, C, H, state, *tokens, y = given
    y.copy_(albatross.RWKV7_OP(state, *tokens))


def registered(monkeypatch):
    """Operators with the arguments of the others', computed by the adapters for these."""
    for space, found in {
        "rwkv7_wkv_fp16_v2": {"wkv_seq": albatross.wkv_seq},
        "rwkv7_wkv_fp32_v2": {"forward": albatross.forward},
        "rwkv7_wkv": {"wkv_decode": rwkv_sglang.wkv_decode},
        "wkv7s": {"forward_fp16": written, "forward_bf16": written},
    }.items():
        monkeypatch.setattr(torch.ops, space, SimpleNamespace(**found), raising=False)


@pytest.mark.parametrize("shape", [(3, 1, 2, 64), (3, 4, 2, 64), (1, 20, 2, 64)])
def test_operators_of_a_library_are_given_what_they_expect(shape, monkeypatch):
    registered(monkeypatch)
    found = serving_operators.operators([])
    assert len(found) == len(serving_operators.KNOWN)
    for name, prepare in found.items():
        batch = make_batch("wkv7", shape, "float32", SINGLE, CPU)
        try:
            got = prepare(batch)()
        except ValueError as problem:
            assert "takes one" in str(problem)
            continue
        limit = 1e-2 if "bfloat16" in name else 2e-3
        assert relative_error(got.view(batch.expected.shape), batch.expected) < limit, name


@no_gpu
def test_a_quick_run_with_operators(monkeypatch, capsys):
    registered(monkeypatch)
    names = "float32 state,Albatross float16 state,rwkv bfloat16"
    main(["wkv7-serving", "--quick", "--budget-ms", "1", "--methods", names])
    out = capsys.readouterr().out
    assert "done: Albatross float16 state, (3, 1, 2, 64), bfloat16: " in out
    assert "takes one sequence a call" in out
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="Could not load"):
        main(["wkv7-serving", "--quick", "--operators", "/no/library.so"])
    monkeypatch.setattr(torch.ops, "load_library", lambda file: None)
    with pytest.raises(SystemExit, match="with at least one of rwkv7_wkv::wkv_decode"):
        main(["wkv7-serving", "--quick", "--operators", "other.so"])
