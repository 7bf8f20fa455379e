"""A copy in Gluon through two tiles of shared memory: one fills while the other is stored."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .tiles import described

TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def pipelined(x, y, STEPS: gl.constexpr):
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(2):
        mbarrier.init(ready.index(n), count=1)
    fence_async_shared()
    first = gl.program_id(0) * STEPS * 64
    mbarrier.expect(ready.index(0), 64 * 64 * 2)
    tma.async_copy_global_to_shared(x, [first, 0], ready.index(0), s_x.index(0))
    for n in range(STEPS):
        if n + 1 < STEPS:
            at, next_stage = [first + (n + 1) * 64, 0], (n + 1) % 2
            mbarrier.expect(ready.index(next_stage), 64 * 64 * 2)
            tma.store_wait(0)
            tma.async_copy_global_to_shared(x, at, ready.index(next_stage), s_x.index(next_stage))
        mbarrier.wait(ready.index(n % 2), (n // 2) % 2)
        tma.async_copy_shared_to_global(y, [first + n * 64, 0], s_x.index(n % 2))
    tma.store_wait(0)


def tensors():
    """Two of them, 512 rows of 64: eight tiles, four for each of two programs."""
    return [described(torch.zeros(512, 64, dtype=torch.bfloat16), 64) for _ in range(2)]
