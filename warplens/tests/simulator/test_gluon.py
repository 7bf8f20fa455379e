"""Gluon kernels on the CPU: answers, and what a GPU would punish some day."""

import pytest
import torch

from warplens.faults import KernelFault

pytest.importorskip("triton")
from helpers.tiles import described  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.ampere import async_copy  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    fence_async_shared,
    mbarrier,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from warplens.faults import EndlessLoop  # noqa: E402
from warplens.gluon import GluonFault, OnCPU, run, trace  # noqa: E402


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
def one_after_the_other(x, y, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, BLOCK, layout)
    pairs = gl.join(gl.load(x + o), gl.load(x + BLOCK + o))
    halves = gl.reshape(gl.permute(pairs, (1, 0)), [2 * BLOCK])
    gl.store(y + gl.arange(0, 2 * BLOCK, layout), gl.convert_layout(halves, layout))


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
    assert torch.equal(y, 2 * x) and kernel.arguments["BLOCK"] == 4


def test_tiles_are_joined_turned_and_cut_anew():
    x, y = torch.arange(256.0), torch.zeros(256)
    OnCPU(one_after_the_other)[1, 1, 1](x, y, 128, num_warps=4)
    assert torch.equal(x, y)


def test_a_copy_has_arrived_once_it_was_waited_for(tensors):
    x, y = tensors
    OnCPU(through_shared_memory)[(3,)](x, y, 10, 4, True, num_warps=4)
    assert torch.equal(y, x)


@pytest.mark.parametrize(
    "kernel, constants, message, line",
    [
        (through_shared_memory, (4, False), "read before the wait for it", "tile.load(layout)"),
        (unmasked, (4,), "an address outside of its tensor", "gl.load(x + o)"),
        (all_write_the_first, (4,), "two programs write the same element", "gl.store(y + o"),
    ],
)
def test_a_fault_is_told_with_its_line(kernel, constants, message, line, tensors):
    with pytest.raises(GluonFault) as caught:
        OnCPU(kernel)[(3,)](*tensors, 10, *constants, num_warps=4)
    assert message in str(caught.value) and line in str(caught.value)
    assert isinstance(caught.value, KernelFault)


@gluon.jit
def one_barrier_too_many(BOTH: gl.constexpr):
    one = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    other = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(one.index(0), count=1)
    mbarrier.init(one.index(1), count=1)  # of an array of which some are used
    mbarrier.init(other, count=1)
    if gl.program_id(0) == 1:  # one program is enough
        mbarrier.arrive(one.index(0), count=1)
        if BOTH:
            mbarrier.arrive(other, count=1)


def test_a_barrier_that_nobody_uses_is_refused():
    """The compiler takes its memory for a tile, and to the hardware it stays a barrier."""
    OnCPU(one_barrier_too_many)[(2,)](True, num_warps=4)
    with pytest.raises(GluonFault, match=r"other: a barrier that nothing arrives at"):
        OnCPU(one_barrier_too_many)[(2,)](False, num_warps=4)
    OnCPU(one_barrier_too_many)[(1,)](False, num_warps=4)  # nothing of it was used: nothing to do


@gluon.jit
def two_tiles_as_one(x, y, PARTS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
    row = gl.arange(0, 2, gl.SliceLayout(1, layout))[:, None]
    col = gl.arange(0, 4, gl.SliceLayout(0, layout))[None, :]
    parts = gl.allocate_shared_memory(gl.float32, [2, 2, 4], layout)
    for i in gl.static_range(PARTS):
        parts.index(i).store(gl.load(x + i * 8 + row * 4 + col))
    both = parts._reinterpret(gl.float32, [4, 4], layout)
    rows = gl.arange(0, 4, gl.SliceLayout(1, layout))[:, None]
    gl.store(y + rows * 4 + col, both.load(layout))


def test_two_tiles_are_read_as_one_once_both_are_written():
    x, y = torch.arange(16.0), torch.full((16,), torch.nan)
    OnCPU(two_tiles_as_one)[(1,)](x, y, 2, num_warps=4)
    assert torch.equal(y, x)
    with pytest.raises(GluonFault, match="nothing in it"):
        OnCPU(two_tiles_as_one)[(1,)](x, y, 1, num_warps=4)


# Copies and products, with one mistake at a time.

TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def two_copies(x, y, WRONG: gl.constexpr):
    """Two tiles of x, one after another on one barrier, to y; a product with the second is lost."""
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    s_small = gl.allocate_shared_memory(gl.bfloat16, [32, 64], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    if WRONG != "no init":
        mbarrier.init(ready, count=1)
    if WRONG != "no fence after init":
        fence_async_shared()
    mbarrier.expect(ready, 8192)
    if WRONG == "announced twice":
        mbarrier.expect(ready, 8192)
    if WRONG == "another shape":
        tma.async_copy_global_to_shared(x, [0, 0], ready, s_small)
    if WRONG == "the tile before the barrier":
        tma.async_copy_global_to_shared(x, [0, 0], s_x.index(0), ready)
    if WRONG == "all tiles at once":
        tma.async_copy_global_to_shared(x, [0, 0], ready, s_x)
    tma.async_copy_global_to_shared(x, [0, 0], ready, s_x.index(0))
    if WRONG == "two copies to a tile":
        tma.async_copy_global_to_shared(x, [64, 0], ready, s_x.index(0))
    mbarrier.wait(ready, 0)
    mbarrier.expect(ready, 8192)
    tma.async_copy_global_to_shared(x, [64, 0], ready, s_x.index(1))
    if WRONG == "the old phase":
        mbarrier.wait(ready, 0)
    else:
        mbarrier.wait(ready, 1)
    if WRONG == "a third phase":
        mbarrier.wait(ready, 0)
    if WRONG == "an empty tile":
        s_small.load()
    if WRONG == "no such stage":
        s_x.index(2).load()
    zeros = gl.full([64, 64], 0.0, gl.float32, SUMS)
    b_x = warpgroup_mma(s_x.index(1), s_x.index(1), zeros, use_acc=False, is_async=True)
    if WRONG == "sums in 16 bits":
        warpgroup_mma(s_x.index(1), s_x.index(1), zeros.to(gl.float16), is_async=True)
    if WRONG == "a factor overwritten":
        s_x.index(1).store(zeros.to(gl.bfloat16))
    if WRONG == "sums read":
        b_x = b_x + 1.0
    if WRONG != "a product left":
        b_x = warpgroup_mma_wait(0, deps=(b_x,))
    for i in gl.static_range(2):
        tma.async_copy_shared_to_global(y, [64 * i, 0], s_x.index(i))
    if WRONG == "stored over":
        tma.async_copy_global_to_shared(x, [0, 0], ready, s_x.index(0))
    tma.store_wait(0)
    while WRONG == "no end":
        pass


def copies(wrong):
    x, y = torch.randn(128, 64).bfloat16(), torch.full((128, 64), torch.nan).bfloat16()
    return x, y, trace(two_copies, (1,), described(x, 64), described(y, 64), wrong)


def test_two_phases_of_one_barrier():
    x = torch.randn(128, 64).bfloat16()
    y = torch.full_like(x, torch.nan)
    OnCPU(two_copies)[(1, 1, 1)](described(x, 64), described(y, 64), "", num_warps=4)
    assert torch.equal(x, y)


def test_a_trace_leaves_the_tensors_alone_and_knows_every_flight():
    _, y, t = copies("")
    assert not t.faults and y.isnan().all()
    first, second = t.of("copy in")
    assert (first.name, first.note, second.name, second.note) == (
        "s_x[0]", "phase 0", "s_x[1]", "phase 1",
    )  # fmt: skip
    assert first.start < first.end < second.start < second.end
    assert t.bytes("copy in") == t.bytes("copy out") == 2 * 8192
    assert t.most("copy in") == 1 and t.most("copy out") == 2
    assert t.waits("copy in") == 2 and t.waits("copy out") == 1
    assert t.flops == 2 * 64**3
    assert "wait ready" in t.table() and "s_x[1]" in t.table()


MISTAKES = {
    "no init": "ready: a barrier is used without mbarrier.init",
    "no fence after init": "ready: no fence came after the barrier's init",
    "announced twice": "ready: a tile is announced twice",
    "another shape": "s_small is [32, 64] of torch.bfloat16, and the descriptor's tiles are [64,",
    "the tile before the barrier": "descriptor, [row, column], barrier, tile, in this order",
    "all tiles at once": "s_x is 2 tiles or barriers",
    "two copies to a tile": "s_x[0]: a tile is overwritten while it is on its way",
    "the old phase": "it named phase 0 of ready, whose current phase is 1",
    "a third phase": "nothing was announced for phase 0, and no copy started",
    "an empty tile": "s_small: a tile is read that has nothing in it",
    "no such stage": "there is no such tile: index(2) of 2",
    "a factor overwritten": "the product b_x of line",
    "sums in 16 bits": "a product whose sums are torch.float16: float32 has room",
    "sums read": "b_x: a product is used before the wait for it",
    "a product left": "a program ends while the product b_x of line",
    "stored over": "s_x[0]: a tile is overwritten while it is read",
}


@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_mistake_in_flight_is_told_with_its_line(wrong):
    (fault,) = copies(wrong)[2].faults
    assert MISTAKES[wrong] in str(fault) and f"line {fault.line}: " in str(fault)


def test_a_kernel_without_an_end_is_stopped(monkeypatch):
    limit = run.time_limit
    monkeypatch.setattr(run, "time_limit", lambda: limit(0.5))
    (fault,) = copies("no end")[2].faults
    assert isinstance(fault, EndlessLoop)


@gluon.jit
def give(x, tile, full, empty, count: gl.constexpr, FENCES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
    o_i = gl.arange(0, 16, gl.SliceLayout(1, layout))
    o_j = gl.arange(0, 16, gl.SliceLayout(0, layout))
    at = o_i[:, None] * 16 + o_j[None, :]
    for i in range(count):
        mbarrier.wait(empty, (i + 1) % 2)
        tile.store(gl.load(x + i * 256 + at))
        if FENCES:
            fence_async_shared()
        mbarrier.arrive(full)


@gluon.jit
def take(y, tile, full, empty, count: gl.constexpr, WAITS: gl.constexpr, GIVES: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    zeros = gl.full([16, 16], 0.0, gl.float32, layout)
    o_i = gl.arange(0, 16, gl.SliceLayout(1, layout))
    o_j = gl.arange(0, 16, gl.SliceLayout(0, layout))
    at = o_i[:, None] * 16 + o_j[None, :]
    for i in range(count):
        if WAITS:
            mbarrier.wait(full, i % 2)
        b_y = warpgroup_mma(tile, tile, zeros, use_acc=False, is_async=True)
        b_y = warpgroup_mma_wait(0, deps=(b_y,))
        gl.store(y + i * 256 + at, b_y)
        if GIVES:
            mbarrier.arrive(empty)


@gluon.jit
def two_roles(x, y, count: gl.constexpr, FENCES: gl.constexpr, WAITS: gl.constexpr,
              GIVES: gl.constexpr):  # fmt: skip
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([16, 16], gl.float32)
    tile = gl.allocate_shared_memory(gl.float32, [16, 16], shared)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (take, (y, tile, full, empty, count, WAITS, GIVES)),
            (give, (x, tile, full, empty, count, FENCES)),
        ],
        [4],
        [64],
    )


def test_warps_with_roles_pass_a_tile_on():
    x, y = torch.randn(5, 16, 16), torch.full((5, 16, 16), torch.nan)
    OnCPU(two_roles)[(1,)](x, y, 5, True, True, True, num_warps=4)
    cut = (x.view(torch.int32) & -8192).view(torch.float32)  # to TF32, as tensor cores do
    torch.testing.assert_close(y, cut @ cut)


@pytest.mark.parametrize(
    "options, message",
    [
        ((False, True, True), "no fence came after"),
        ((True, False, True), "nothing in it"),
        ((True, True, False), "never goes on"),
    ],
)
def test_a_mistake_between_roles_is_told(options, message):
    x, y = torch.randn(5, 16, 16), torch.full((5, 16, 16), torch.nan)
    with pytest.raises(GluonFault, match=message):
        OnCPU(two_roles)[(1,)](x, y, 5, *options, num_warps=4)


@gluon.jit
def products_of_warps(x, y, SWAPPED: gl.constexpr):
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 2)
    n = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, sums)))
    row = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, sums)))
    col = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, sums)))
    n = gl.expand_dims(gl.expand_dims(n, 1), 2)
    row = gl.expand_dims(gl.expand_dims(row, 0), 2)
    at = 256 * n + 16 * row + gl.expand_dims(gl.expand_dims(col, 0), 1)
    b_x = gl.load(x + at).to(gl.bfloat16)
    b_left, b_right = gl.convert_layout(b_x, left), gl.convert_layout(b_x, right)
    ones = gl.full([4, 16, 16], 1.0, gl.float32, sums)
    if SWAPPED:
        b_left, b_right = b_right, b_left
    gl.store(y + at, mma_v2(b_left, b_right, ones))


def test_products_in_the_registers_of_each_warp():
    x, y = torch.randn(4, 16, 16), torch.empty(4, 16, 16)
    OnCPU(products_of_warps)[(1,)](x, y, False, num_warps=4)
    x = x.bfloat16().float()
    torch.testing.assert_close(y, x @ x + 1)
    with pytest.raises(GluonFault, match=r"the left factor of mma_v2 is laid out as DotOperand"):
        OnCPU(products_of_warps)[(1,)](x, y, True, num_warps=4)
