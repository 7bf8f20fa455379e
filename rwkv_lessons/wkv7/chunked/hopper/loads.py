"""Copies of tiles to shared memory, by the tensor memory accelerator, and their barriers.

Each of r, w, k, v, a and b has barriers of its own: before a copy that shares one with the copy
before it, Triton has all warps wait for each other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .layouts import STAGES

BYTES = gl.constexpr(64 * 64 * 2)  # of a tile


@gluon.jit
def barriers():
    """One for each stage."""
    of_stages = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(of_stages.index(i), count=1)
    return of_stages


@gluon.jit
def load_tile(inputs, tiles, loaded, i, row, column, pred):
    """Starts the copies of 64 tokens of each input to stage i, if `pred`."""
    for n in gl.static_range(len(loaded)):
        mbarrier.expect(loaded[n].index(i), BYTES, pred=pred)
    for n in gl.static_range(len(loaded)):
        tma.async_copy_global_to_shared(
            inputs[n], [row, column], loaded[n].index(i), tiles[n].index(i), pred=pred
        )


@gluon.jit
def wait_for_tile(loaded, i, phase):
    """Until all of its inputs are there."""
    for n in gl.static_range(len(loaded)):
        mbarrier.wait(loaded[n].index(i), phase)
