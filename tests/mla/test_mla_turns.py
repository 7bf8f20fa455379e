"""The first kernel of 128 heads, on the CPU as it is written: what it waits for, and mistakes."""

import math
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
from support.gluon_on_cpu import Mutable
from support.mla_problem import in_float64, problem, relative_error

from rwkv_lessons.mla.decode import forward as decode
from rwkv_lessons.mla.decode import turns
from rwkv_lessons.runtime import devices
from warplens.compiled.assembly import can_compile
from warplens.gluon import GluonFault, OnCPU
from warplens.gluon.run import Machine

LIMIT = 3e-3  # as in test_mla_decode.py
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernel is compiled")


class Kernel(Mutable):
    reverse = False  # whether the roles take turns from the last to the first

    def run(self, grid, warps, args):
        names = turns.decode_turns_kernel.arg_names
        arguments = dict(zip(names, args, strict=True))
        Machine(keeps=False).run(self.kernel, grid, warps, arguments, reverse=self.reverse)


@pytest.fixture
def kernel(monkeypatch):
    """Both kernels on the CPU, by an H200's host code."""
    simulated = Kernel(turns.decode_turns_kernel)

    def first(kernel, grid, warps, tensors, numbers, constants):
        simulated.run(grid, warps, (*tensors, *numbers, *constants))

    def second(kernel, programs, warps, tensors, numbers, constants, **options):
        OnCPU(kernel, keeps=False).run((programs,), warps, (*tensors, *numbers, *constants))

    monkeypatch.setattr(turns, "launch_tiles", first)
    monkeypatch.setattr(decode, "launch", second)
    monkeypatch.setattr(decode, "splits_for", lambda *_: 1)
    monkeypatch.setattr(devices, "gpu_of", lambda device: devices.H200)
    return simulated


def error_of(B, M, N, H=128, q=None, **which):
    sizes = {"R": 512, "P": 64, "V": 64, "dtype": torch.bfloat16, "absorbed": True}
    tensors, named = problem(B, M, H, N, **sizes, **which)
    tensors = [*(q or (lambda *x: x))(*tensors[:2]), *tensors[2:4], tensors[5]]
    optional = (named.get(x) for x in ("lengths", "left_padding", "block_table"))
    o, lse = decode.forward(*tensors, named["scale"], *optional)
    want, want_lse = in_float64((*tensors[:4], None, tensors[4]), **named)
    seen = want_lse.isfinite()
    assert torch.equal(lse == -math.inf, ~seen) and not o[~seen].any()
    torch.testing.assert_close(lse[seen].double(), want_lse[seen], rtol=1e-5, atol=1e-5)
    return relative_error(o, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_odd_and_even_numbers_of_tiles(kernel, reverse):
    kernel.reverse = reverse
    assert error_of(4, 1, 321, H=64, lengths=[321, 250, 65, 0]) < LIMIT


@pytest.mark.parametrize("M, H", [(1, 128), (1, 80), (2, 64), (3, 20)])
def test_queries_as_absorbing_leaves_them(kernel, M, H):
    """Their heads have the largest stride: tiles of those are moved if one is of one token."""

    def by_heads(q, q_rope):
        return q.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), q_rope

    q = by_heads(torch.empty(2, M, H, 512).half(), None)[0]
    assert turns.queries(q, 128)[1] == (M > 1 and H % 64 > 0)
    assert error_of(2, M, 70, H=H, q=by_heads) < LIMIT
    assert error_of(2, M, 70, H=H) < LIMIT


def test_other_caches_are_refused():
    q, q_rope = torch.empty(2, 1, 128, 512), torch.empty(2, 1, 128, 64)
    cache = torch.empty(2, 65, 576)
    tensors = q, q_rope, cache[..., :512], cache[..., 512:]
    assert turns.takes(*tensors, 0, None) and turns.takes(*tensors, 64, None)
    assert turns.takes(*tensors, 0, "left padding")
    assert not turns.takes(*tensors, 64, "left padding") and not turns.takes(*tensors, 16, None)
    apart = tensors[2].as_strided((2, 65, 512), (584, 576, 1))
    assert not turns.takes(q, q_rope, apart, tensors[3], 0, None)
    assert not turns.takes(q_rope, *tensors[1:], 0, None)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "old, new, inside, message",
    [
        (
            "mbarrier.wait(empty.index(PIECES * g + p), (j // 2 + 1) % 2)",
            "pass",
            "load_tiles",
            ["announced twice", "overwritten"],
        ),
        ("BYTES + (2", "BYTES + (1", "load_tiles", ["never ends", "never goes on"]),
        (
            "mbarrier.wait(full[x].index(GROUP), j // 2 % 2)",
            "pass",
            "score",
            ["on its way", "nothing"],
        ),
        ("mbarrier.wait(q_full, 0)", "pass", "attend_tiles", ["on its way", "nothing"]),
        (
            "PIECES - EARLY + 1, OTHER",
            "PIECES - EARLY + 2, OTHER",
            "attend_tiles",
            ["before the wait"],
        ),
    ],
)
def test_mistakes_are_found(kernel, old, new, inside, message, reverse):
    kernel.mistake(old, new, inside=inside)
    kernel.reverse = reverse
    with pytest.raises(GluonFault) as caught:
        error_of(1, 1, 321, H=64)
    assert any(x in str(caught.value) for x in message)


def test_empty_slots_are_zeros(kernel):
    kernel.mistake("n0 + TOKENS > stop", "False", inside="clear_end")
    assert math.isnan(error_of(1, 1, 70, H=64, lengths=[50]))


def test_sums_are_rescaled(kernel):
    """Scores that grow from tile to tile by more than the margin."""
    assert error_of(1, 1, 200, H=64, loud=50.0) < LIMIT


COMPILE = """
import torch
from rwkv_lessons.bench.launches import recorded
from rwkv_lessons.bench.machine_code.compile import in_triton
from rwkv_lessons.mla.calls import step
from warplens.compiled.assembly import INSTRUCTION
from warplens.compiled.disassembler import disassembled
with recorded("sm_90") as launches:
    step(128, 512, 64, 128, torch.bfloat16, page=64)
code = in_triton(launches[0], "sm_90")
text = disassembled(code.asm["cubin"])
print(code.metadata.shared, *(match[2] for match in INSTRUCTION.finditer(text)))
"""


@pytest.mark.skipif(not can_compile(turns.decode_turns_kernel), reason="no compiler here")
def test_no_product_waits_for_the_one_before():
    environment = {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    shared, *opcodes = ran.stdout.split()
    assert int(shared) <= devices.H200.shared_bytes
    # Both groups' scores, and group 0's of the first tile, which has none before it.
    assert sum(x.startswith("HGMMA.64x64x16") for x in opcodes) == 3 * (512 + 64) // 16
    # Either group's half of its own tile, the other's and the other's last; and of the first.
    assert sum(x.startswith("HGMMA.64x256x16") for x in opcodes) == (2 * 3 + 1) * 64 // 16
    assert sum(x.startswith("WARPGROUP.DEPBAR") for x in opcodes) < 24
    assert not [x for x in opcodes if x.startswith(("STL", "LDL"))]  # nothing is spilled
