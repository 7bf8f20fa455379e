"""Gluon kernels on the CPU: answers, and what a GPU would punish some day."""

import pytest
import torch

from rwkv_lessons.lab.simulator.faults import KernelFault

pytest.importorskip("triton")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.ampere import async_copy  # noqa: E402

from rwkv_lessons.lab.simulator.gluon import GluonFault, OnCPU  # noqa: E402


@gluon.jit
def twice(x):
    return 2 * x


@gluon.jit
def doubled(x, y, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(y + o, twice(gl.load(x + o, o < n)), o < n)


@gluon.jit
def unmasked(x, y, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(y + o, gl.load(x + o), o < n)


@gluon.jit
def all_write_the_first(x, y, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, BLOCK, layout)
    gl.store(y + o, gl.load(x + o, o < n), o < n)


@gluon.jit
def through_shared_memory(x, y, n, BLOCK: gl.constexpr, WAITS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], layout)
    async_copy.async_copy_global_to_shared(tile, x + o, o < n)
    async_copy.commit_group()
    if WAITS:
        async_copy.wait_group(0)
    gl.store(y + o, tile.load(layout), o < n)


@pytest.fixture
def tensors():
    return torch.arange(10.0), torch.full((10,), torch.nan)


def test_a_kernel_and_the_function_it_calls(tensors):
    x, y = tensors
    kernel = OnCPU(doubled)
    kernel[(3,)](x, y, 10, 4, num_warps=4)
    assert torch.equal(y, 2 * x) and kernel.given["BLOCK"] == 4


def test_a_copy_has_arrived_once_it_was_waited_for(tensors):
    x, y = tensors
    OnCPU(through_shared_memory)[(3,)](x, y, 10, 4, True, num_warps=4)
    assert torch.equal(y, x)


@pytest.mark.parametrize(
    "kernel, constants, said, line",
    [
        (through_shared_memory, (4, False), "read before the wait for it", "tile.load(layout)"),
        (unmasked, (4,), "an address outside of its tensor", "gl.load(x + o)"),
        (all_write_the_first, (4,), "two programs write the same element", "gl.store(y + o"),
    ],
)
def test_a_fault_is_told_with_its_line(kernel, constants, said, line, tensors):
    with pytest.raises(GluonFault) as caught:
        OnCPU(kernel)[(3,)](*tensors, 10, *constants, num_warps=4)
    assert said in str(caught.value) and line in str(caught.value)
    assert isinstance(caught.value, KernelFault)
