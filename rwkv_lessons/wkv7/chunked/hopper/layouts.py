"""Where the fused WKV-7 keeps its tiles: in shared memory, and in the registers of four warps.

A tile has the 64 tokens of four chunks, and 64 keys or values. While maps are made, each warp has
one chunk: a product [4, 16, …] of PAIRS is four products, one in each warp (`mma`), and no warp
waits for another. What it takes from the right is the transpose of what another one leaves:
`times_transposed` moves nothing between threads. While maps are applied, the state [V, K] and what
is read of it are products of all four warps (`wgmma`), whose left factor is in registers.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mma_v2

from ....sequences.gluon_tiles import rounded, widened  # noqa: F401  the tiles' own

N = gl.constexpr(64)  # keys, values, and tokens of a tile
C = gl.constexpr(16)  # tokens of a chunk
CHUNKS = gl.constexpr(4)  # of a tile
STAGES = gl.constexpr(2)  # tiles in shared memory
APART = gl.constexpr(1)  # the identity is swept by other programs than the state,
BESIDE = gl.constexpr(2)  # or by other warps
LOG2E = gl.constexpr(1.4426950408889634)

# In shared memory.
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
BY_CHUNK = gl.constexpr(gl.NVMMASharedLayout(128, 16, 3))  # the same bytes, [4, 16, 64]
SMALL = gl.constexpr(gl.NVMMASharedLayout(32, 16, 2))  # four matrices [16, 16], one for each chunk
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
FLAT_BY_CHUNK = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))

# In registers.
PAIRS = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]))
LEFT = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]), 2)
)
RIGHT = gl.constexpr(
    gl.DotOperandLayout(1, gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]), 2)
)
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # [values, keys]
READ = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]))  # [values, tokens]
IN_A_WARP = gl.constexpr(gl.BlockedLayout([8], [32], [4], [0]))  # 256 numbers, in each warp
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name in Triton 3.7, and in 3.6


class Form(NamedTuple):
    """What the kernel is compiled for."""

    DECAY: int  # what w is, see ../../decays.py
    SCALED: bool  # whether r is multiplied by a scale
    CUT: int = 0  # or APART, BESIDE: how the identity is swept through segments, see cut.py


@gluon.jit
def index_along(axis: gl.constexpr, size: gl.constexpr, LAYOUT: gl.constexpr):
    """0 to size - 1 along one axis of a tile of three, in its layout."""
    if axis == 0:
        i = gl.arange(0, size, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(i, 1), 2)
    elif axis == 1:
        i = gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(i, 0), 2)
    else:
        i = gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(i, 0), 1)


@gluon.jit
def times_transposed(x, y, b_sum):
    """b_sum + x yᵀ of each chunk, of bfloat16 tiles as products leave them."""
    left = gl.convert_layout(x, LEFT)
    right = gl.convert_layout(gl.permute(y, [0, 2, 1]), RIGHT)
    return mma_v2(left, right, b_sum)


@gluon.jit
def as_left(x, LAYOUT: gl.constexpr):
    """A float32 tile as the bfloat16 left factor of a product of all warps, in LAYOUT."""
    return gl.convert_layout(rounded(x), gl.DotOperandLayout(0, LAYOUT, 2))
