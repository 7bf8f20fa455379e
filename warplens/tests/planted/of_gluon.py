"""Kernels of Gluon: copies that are on their way while threads read, write and leave."""

import torch
from helpers.tiles import described
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from . import case

ROW = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
REGISTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
X, Y = torch.arange(256.0), torch.zeros(256)
A, B = (described(torch.zeros(256, 64, dtype=torch.bfloat16), 64) for _ in range(2))


@case(2, X, Y, BLOCK=128)
@gluon.jit
def copied(x, y, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, ROW)
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], ROW)
    async_copy.async_copy_global_to_shared(tile, x + o)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(y + o, tile.load(ROW))


@case(2, X, Y, BLOCK=128, planted="cp.async without a wait", finds="ReadBeforeWait")
@gluon.jit
def copied_without_a_wait(x, y, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, ROW)
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], ROW)
    async_copy.async_copy_global_to_shared(tile, x + o)
    async_copy.commit_group()
    gl.store(y + o, tile.load(ROW))


@case(1, X, Y, BLOCK=128)
@gluon.jit
def copied_in_two_stages(x, y, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, ROW)
    tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK], ROW)
    for n in gl.static_range(2):
        async_copy.async_copy_global_to_shared(tiles.index(n), x + n * BLOCK + o)
        async_copy.commit_group()
    async_copy.wait_group(1)
    gl.store(y + o, tiles.index(0).load(ROW))
    async_copy.wait_group(0)
    gl.store(y + BLOCK + o, tiles.index(1).load(ROW))


@case(1, X, Y, BLOCK=128, planted="a wait for one group too few", finds="ReadBeforeWait")
@gluon.jit
def copied_in_two_stages_with_one_wait(x, y, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, ROW)
    tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK], ROW)
    for n in gl.static_range(2):
        async_copy.async_copy_global_to_shared(tiles.index(n), x + n * BLOCK + o)
        async_copy.commit_group()
    async_copy.wait_group(1)
    gl.store(y + o, tiles.index(0).load(ROW))
    gl.store(y + BLOCK + o, tiles.index(1).load(ROW))


@gluon.jit
def barriers():
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(2):
        mbarrier.init(ready.index(n), count=1)
    fence_async_shared()
    return ready


@case(1, A, B, STEPS=4)
@gluon.jit
def pipeline(x, y, STEPS: gl.constexpr):
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    ready = barriers()
    mbarrier.expect(ready.index(0), 8192)
    tma.async_copy_global_to_shared(x, [0, 0], ready.index(0), s_x.index(0))
    for n in range(STEPS):
        if n + 1 < STEPS:
            other = (n + 1) % 2
            mbarrier.expect(ready.index(other), 8192)
            tma.store_wait(0)
            tma.async_copy_global_to_shared(x, [64 * n + 64, 0], ready.index(other),
                                            s_x.index(other))  # fmt: skip
        mbarrier.wait(ready.index(n % 2), (n // 2) % 2)
        tma.async_copy_shared_to_global(y, [64 * n, 0], s_x.index(n % 2))
    tma.store_wait(0)


@case(1, A, B, STEPS=4, planted="a tile is filled while it is stored", finds="OverwrittenInFlight")
@gluon.jit
def pipeline_that_overtakes_itself(x, y, STEPS: gl.constexpr):
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    ready = barriers()
    mbarrier.expect(ready.index(0), 8192)
    tma.async_copy_global_to_shared(x, [0, 0], ready.index(0), s_x.index(0))
    for n in range(STEPS):
        if n + 1 < STEPS:
            other = (n + 1) % 2
            mbarrier.expect(ready.index(other), 8192)
            tma.async_copy_global_to_shared(x, [64 * n + 64, 0], ready.index(other),
                                            s_x.index(other))  # fmt: skip
        mbarrier.wait(ready.index(n % 2), (n // 2) % 2)
        tma.async_copy_shared_to_global(y, [64 * n, 0], s_x.index(n % 2))
    tma.store_wait(0)


@case(1, A, B, STEPS=4, planted="always the same phase of a barrier", finds="ReadBeforeWait")
@gluon.jit
def pipeline_with_one_phase(x, y, STEPS: gl.constexpr):
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    ready = barriers()
    for n in range(STEPS):
        mbarrier.expect(ready.index(n % 2), 8192)
        tma.store_wait(0)
        tma.async_copy_global_to_shared(x, [64 * n, 0], ready.index(n % 2), s_x.index(n % 2))
        mbarrier.wait(ready.index(n % 2), 0)
        tma.async_copy_shared_to_global(y, [64 * n, 0], s_x.index(n % 2))
    tma.store_wait(0)


@case(1, B)
@gluon.jit
def stored(y):
    s_y = gl.allocate_shared_memory(gl.bfloat16, [64, 64], TILE)
    s_y.store(gl.full([64, 64], 1.0, gl.bfloat16, REGISTERS))
    fence_async_shared()
    tma.async_copy_shared_to_global(y, [0, 0], s_y)
    tma.store_wait(0)


@case(1, B, planted="no fence between threads' stores and the copy", finds="MissingFence")
@gluon.jit
def stored_without_a_fence(y):
    s_y = gl.allocate_shared_memory(gl.bfloat16, [64, 64], TILE)
    s_y.store(gl.full([64, 64], 1.0, gl.bfloat16, REGISTERS))
    tma.async_copy_shared_to_global(y, [0, 0], s_y)
    tma.store_wait(0)


@case(1, B, planted="the program ends before its copy does", finds="LeftInFlight")
@gluon.jit
def stored_and_left(y):
    s_y = gl.allocate_shared_memory(gl.bfloat16, [64, 64], TILE)
    s_y.store(gl.full([64, 64], 1.0, gl.bfloat16, REGISTERS))
    fence_async_shared()
    tma.async_copy_shared_to_global(y, [0, 0], s_y)
