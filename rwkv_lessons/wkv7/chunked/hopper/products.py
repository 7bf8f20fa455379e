"""Whole tiles of 64 tokens times each other: what the gradients of a tile are made of.

A tile [64 tokens, 64 keys, values or tokens] is in the registers of four warps as a product of all
of them (`wgmma`) leaves it, with 16 tokens in each warp. A left factor is in registers (ROWS) or in
shared memory, a right one in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...decays import CLAMP, OF_CLAMP, RAW
from .layouts import (
    BY_CHUNK,
    CHUNKS,
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
from .maps import FITS, inverse, log_decay

ROWS = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), 2)
)


# Of a tile's log decays, half of which are in a factor: with 2^±87 inputs are bfloat16s.
FITS_TWICE = gl.constexpr(2 * FITS.value)
# Two elements of 16 bits, in a register: the mask of both, and 1.0 in bfloat16 and float16.
ALL, ONE, HALF_ONE = (gl.constexpr(x) for x in ("0xffffffff", "0x3f803f80", "0x3c003c00"))


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
def triangle(
    own: gl.constexpr, above: gl.constexpr, zero, LAYOUT: gl.constexpr, BITS: gl.constexpr
):
    """A tile of 16 bits an element: those of BITS where a column is before its row, or its `own`.

    Elsewhere it is 0; if `above`, the other way round. Two elements side by side are one register,
    shifted to the right by 0, 16 or at least 32 bits: two instructions instead of five.
    """
    row, col = indices(LAYOUT)
    near = 16 * (col % 8 // 2 * 2 - (row + zero)) + (16 if own else 32)
    near, far = gl.broadcast(near, 128 * (col // 8))  # far: the same in all threads
    shifted: gl.constexpr = (
        "{ .reg .b32 n, all; add.s32 n, $1, $3; max.s32 n, n, 0;"
        "mov.b32 all, " + BITS + "; shr.u32 all, all, n;"
        "xor.b32 $0, all, " + (BITS if above else "0") + "; }"
    )
    if BITS == ONE:
        return gl.inline_asm_elementwise(shifted, "=r,r,r,r,r", [near, far], gl.bfloat16, True, 2)
    elif BITS == HALF_ONE:
        return gl.inline_asm_elementwise(shifted, "=r,r,r,r,r", [near, far], gl.float16, True, 2)
    else:
        return gl.inline_asm_elementwise(shifted, "=r,r,r,r,r", [near, far], gl.int16, True, 2)


@gluon.jit
def under(b_x, mask):
    """A float32 tile in bfloat16 where all bits of a mask are set, and 0 elsewhere."""
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [rounded(b_x), mask], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def lower(b_x, own: gl.constexpr, zero):
    """What a token has with those before it, and with its `own`, in bfloat16."""
    return under(b_x, triangle(own, False, zero, STATE, ALL))


@gluon.jit
def upper(b_x, zero):
    """What a token has with itself and those after it, in bfloat16."""
    return under(b_x, triangle(False, True, zero, STATE, ALL))


@gluon.jit
def earlier(zero):
    """Weights, a left factor of bfloat16: 1 for tokens before a token, else 0."""
    return triangle(False, False, zero, ROWS, ONE)


@gluon.jit
def later(zero):
    """Weights of tokens after a token."""
    return triangle(True, True, zero, ROWS, ONE)


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
def halves(b_x):
    """A tile as two [4, 8, 64]: of the two rows that a thread has elements of, one is in each."""
    return gl.split(gl.permute(gl.reshape(b_x, [CHUNKS, 2, 8, N]), [0, 2, 3, 1]))


@gluon.jit
def from_halves(b_first, b_second):
    return as_tile(gl.permute(gl.join(b_first, b_second), [0, 3, 1, 2]))


@gluon.jit
def times_rows(b_x, b_half):
    """A tile times rows that are all alike, of which b_half has a half."""
    b_first, b_second = halves(b_x)
    return from_halves(b_first * b_half, b_second * b_half)


@gluon.jit
def minus_rows(b_x, b_half):
    """A tile minus such rows."""
    b_first, b_second = halves(b_x)
    return from_halves(b_first - b_half, b_second - b_half)


@gluon.jit
def times_powers(x, powers):
    """A bfloat16 tile times powers of two: exactly."""
    powers = gl.broadcast(powers, x)[0]
    return gl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [x, powers], gl.bfloat16, is_pure=True, pack=2
    )


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
def of_log_decays(s_w, zero, DECAY: gl.constexpr):
    """Weights of 1 for tokens before a token, and the log decays as a right factor."""
    if DECAY == RAW or DECAY == OF_CLAMP:
        weights = triangle(False, False, zero, ROWS, HALF_ONE)
        return weights, s_w._reinterpret(gl.float16, [N, N], TILE)
    else:
        return earlier(zero), s_w


@gluon.jit
def sums_of_decays(s_w, zero, DECAY: gl.constexpr):
    """log2 of the decays before each token of a tile."""
    weights, s_log = of_log_decays(s_w, zero, DECAY)
    b_sum = times(weights, s_log, gl.zeros([N, N], gl.float32, STATE))
    return warpgroup_mma_wait(0, deps=(b_sum, weights))[0] * LOG2E


@gluon.jit
def one_barrier():
    """A barrier at which a tile arrives."""
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    return bar


@gluon.jit
def sums_and_total(s_w, zero, DECAY: gl.constexpr):
    """log2 of the decays before each token of a tile; that of all tokens, in a half of its rows."""
    weights, s_log = of_log_decays(s_w, zero, DECAY)
    zeros, ones = gl.zeros([N, N], gl.float32, STATE), gl.full([N, N], 1, weights.dtype, ROWS)
    b_before, b_total = times(weights, s_log, zeros), times(ones, s_log, zeros)
    b_before, b_total = warpgroup_mma_wait(0, deps=(b_before, b_total, weights, ones))[:2]
    return b_before * LOG2E, halves(b_total)[0] * LOG2E


@gluon.jit
def inverse_of_chunks(s_a, s_b):
    """T - I of T = (I - A_ab)⁻¹ of each chunk alone."""
    a, b = chunks_of(s_a).load(PAIRS), chunks_of(s_b).load(PAIRS)
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    b_ab = gl.where(col < row, times_transposed(a, b, zeros), 0.0)
    b_ba = gl.where(row < col, times_transposed(b, a, zeros), 0.0)
    return gl.where(row == col, 0.0, inverse(b_ab, b_ba, row, col))


@gluon.jit
def on_diagonal(b_t):
    """A matrix of each chunk in a tile, with zeros between chunks."""
    chunk = index_along(0, CHUNKS, PAIRS)
    b_0, b_1 = gl.where(chunk == 0, b_t, 0.0), gl.where(chunk == 1, b_t, 0.0)
    b_2, b_3 = gl.where(chunk == 2, b_t, 0.0), gl.where(chunk == 3, b_t, 0.0)
    b_x = gl.join(gl.join(b_0, b_1), gl.join(b_2, b_3))  # [chunk, row, column, low bit, high bit]
    return as_tile(gl.permute(b_x, [0, 1, 4, 3, 2]))


@gluon.jit
def plus_in_chunks(left, b_x, s_x):
    """b_x + left b_x in each chunk. s_x: where a tile may be put meanwhile."""
    barrier()  # nothing is read there any more
    s_x.store(rounded(b_x))
    barrier()
    return as_tile(mma_v2(left, chunks_of(s_x).load(RIGHT), as_chunks(b_x)))


@gluon.jit
def copy_tile(x, x_rows, s_x, place):
    """Starts the copy of a visible gradient, if its tile is whole; else stores what there is."""
    row, column, at, step, left = place
    if left >= N:
        tma.async_copy_shared_to_global(x, [row, column], s_x)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        token, key = indices(LAYOUT)
        gl.store(x_rows + at + token * step + key, s_x.load(LAYOUT), token + 0 * key < left)
