"""Whole tiles of 64 tokens times each other: what the gradients of a tile are made of.

A tile [64 tokens, 64 keys, values or tokens] is in the registers of four warps as a product of all
of them (`wgmma`) leaves it, with 16 tokens in each warp. A left factor is in registers (ROWS) or in
shared memory, a right one in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...decays import CLAMP, OF_CLAMP, RAW
from .layouts import (
    BY_CHUNK,
    CHUNKS,
    LEFT,
    LOG2E,
    PAIRS,
    RIGHT,
    STATE,
    TILE,
    C,
    N,
    barrier,
    index_along,
    rounded,
    times_transposed,
    widened,
)
from .maps import inverse, log_decay

ROWS = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), 2)
)


@gluon.jit
def flipped(s_x):
    """The transpose of a tile in shared memory."""
    return s_x.permute((1, 0))


@gluon.jit
def times(x, s_y, b_sum):
    """Starts b_sum + x y."""
    return warpgroup_mma(x, s_y, b_sum, is_async=True)


@gluon.jit
def visible():
    """What all warps have stored in shared memory is there for products and copies."""
    fence_async_shared()
    barrier()


@gluon.jit
def indices(LAYOUT: gl.constexpr):
    """Row and column of each element of a tile."""
    row = gl.arange(0, N, gl.SliceLayout(1, LAYOUT))[:, None]
    return row, gl.arange(0, N, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def zero_of(row, use: gl.constexpr):
    """0, which the compiler cannot know. Without it, it would keep the masks of all uses in
    registers, and write constants among them again while products read them.

    row: of the first token; use: another number at each use.
    """
    return (row + use) // 2**30


@gluon.jit
def lower(b_x, own: gl.constexpr, zero):
    """What a token has with those before it, and with its `own`, in bfloat16."""
    row, col = indices(STATE)
    row += zero
    return rounded(gl.where(col <= row if own else col < row, b_x, 0.0))


@gluon.jit
def upper(b_x, zero):
    """What a token has with itself and those after it, in bfloat16."""
    row, col = indices(STATE)
    return rounded(gl.where(row + zero <= col, b_x, 0.0))


@gluon.jit
def as_rows(x):
    """A bfloat16 tile as a left factor."""
    return gl.convert_layout(x, ROWS)


@gluon.jit
def chunks_of(s_x):
    return s_x._reinterpret(gl.bfloat16, [CHUNKS, C, N], BY_CHUNK)


@gluon.jit
def as_chunks(b_x):
    """A tile as four chunks, one in each warp, where it is already."""
    return gl.convert_layout(gl.reshape(b_x, [CHUNKS, C, N]), PAIRS)


@gluon.jit
def as_tile(b_x):
    return gl.convert_layout(gl.reshape(b_x, [N, N]), STATE)


@gluon.jit
def in_two(b_x, s_high, s_low):
    """Stores a float32 tile as two of bfloat16 whose sum it is."""
    high = rounded(b_x)
    s_high.store(high)
    s_low.store(rounded(b_x - widened(high)))


@gluon.jit
def fast_log_decay(b_w, DECAY: gl.constexpr):
    """As `log_decay` of maps.py, in fewer instructions than a division takes."""
    if DECAY == OF_CLAMP:
        b_root = gl.rsqrt(1 + gl.exp2(-b_w * LOG2E))
        return -CLAMP * (b_root * b_root)
    else:
        return log_decay(b_w, DECAY)


@gluon.jit
def store_log_decays(s_w, DECAY: gl.constexpr):
    """Where w is a parameter: its log decays in its place, in float16.

    Their sums over a tile are right to 2^-12 of a decay times the root of 64.
    """
    if DECAY == RAW or DECAY == OF_CLAMP:
        b_w = fast_log_decay(widened(s_w.load(STATE)), DECAY)
        barrier()
        s_w._reinterpret(gl.float16, [N, N], TILE).store(b_w.to(gl.float16))
        visible()


@gluon.jit
def log_decays(s_w, DECAY: gl.constexpr):
    """The log decays that `store_log_decays` has left."""
    if DECAY == RAW or DECAY == OF_CLAMP:
        return s_w._reinterpret(gl.float16, [N, N], TILE).load(STATE).to(gl.float32)
    else:
        return widened(s_w.load(STATE))


@gluon.jit
def gradient_of_w(b_dw, b_w, DECAY: gl.constexpr):
    """As `dw_of` of ../../decays.py."""
    if DECAY == RAW:
        b_dw *= gl.maximum(b_w, -200.0)
    elif DECAY == OF_CLAMP:
        b_dw *= b_w * (1 + b_w * (1 / CLAMP))
    return b_dw


@gluon.jit
def sums_of_decays(s_w, zero, DECAY: gl.constexpr):
    """log2 of the decays before each token of a tile."""
    row, col = indices(ROWS)
    b_sum = gl.zeros([N, N], gl.float32, STATE)
    if DECAY == RAW or DECAY == OF_CLAMP:
        earlier = (col < row + zero).to(gl.float16)
        b_sum = times(earlier, s_w._reinterpret(gl.float16, [N, N], TILE), b_sum)
    else:
        earlier = (col < row + zero).to(gl.bfloat16)
        b_sum = times(earlier, s_w, b_sum)
    return warpgroup_mma_wait(0, deps=(b_sum, earlier))[0] * LOG2E


@gluon.jit
def inverses(s_a, s_b):
    """T - I and its transpose, of T = (I - A_ab)⁻¹ of each chunk alone, as left factors."""
    a, b = chunks_of(s_a).load(PAIRS), chunks_of(s_b).load(PAIRS)
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    b_ab = gl.where(col < row, times_transposed(a, b, zeros), 0.0)
    b_ba = gl.where(row < col, times_transposed(b, a, zeros), 0.0)
    b_t = gl.where(row == col, 0.0, inverse(b_ab, b_ba, row, col))
    b_u = gl.where(row == col, 0.0, inverse(b_ba, b_ab, row, col))
    return gl.convert_layout(rounded(b_t), LEFT), gl.convert_layout(rounded(b_u), LEFT)


@gluon.jit
def plus_in_chunks(left, b_x, s_x):
    """b_x + left b_x in each chunk. s_x: where a tile may be put meanwhile."""
    barrier()  # nothing is read there any more
    s_x.store(rounded(b_x))
    barrier()
    return as_tile(mma_v2(left, chunks_of(s_x).load(RIGHT), as_chunks(b_x)))


@gluon.jit
def between_chunks(t, b_ab, s_t, s_x, zero):
    """M, to s_t and as a left factor, of which I + M, times T of each chunk, is T of the tile.

    Of blocks of a chunk, A_ab = D + L has those on the diagonal and those below it. With T_D the
    inverse of I - D and N = T_D L, of which the fourth power is 0,

        (I - A_ab)⁻¹ = (I - N)⁻¹ T_D = (I + N + N² + N³) T_D
    """
    row, col = indices(STATE)
    row += zero
    b_n = plus_in_chunks(t, gl.where(row // C > col // C, b_ab, 0.0), s_x)
    n = rounded(b_n)
    s_t.store(n)
    visible()
    left, zeros = as_rows(n), gl.zeros([N, N], gl.float32, STATE)
    b_square = times(left, s_t, zeros)
    b_square = warpgroup_mma_wait(0, deps=(b_square, left))[0]
    left = as_rows(rounded(b_square))
    b_m = times(left, s_t, b_n + b_square)
    m = rounded(warpgroup_mma_wait(0, deps=(b_m, left))[0])
    barrier()  # N is read
    s_t.store(m)
    return as_rows(m)


@gluon.jit
def store_tile(x, x_rows, s_x, place):
    """Starts the copy of a gradient, if its tile is whole; else stores what there is of it."""
    row, column, at, step, left = place
    visible()
    if left >= N:
        tma.async_copy_shared_to_global(x, [row, column], s_x)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        token, key = indices(LAYOUT)
        gl.store(x_rows + at + token * step + key, s_x.load(LAYOUT), token + 0 * key < left)
