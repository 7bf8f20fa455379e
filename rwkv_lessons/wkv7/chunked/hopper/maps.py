"""Four warps that make the maps of chunks: what a chunk reads, and what it adds to the state.

With the sums c of log decays from the chunk's start to after a token, in each chunk

    Ã = a 2^(c before the token)    R̃ = r 2^c    B̃ = b 2^-c    K̃ = k 2^-c
    A_ab, A_ak, A_rb, A_rk = Ã B̃ᵀ, Ã K̃ᵀ, R̃ B̃ᵀ, R̃ K̃ᵀ     where the token that reads is later, or for
    T = (I - A_ab)⁻¹                                        r the same
    decay = 2^(c after the last token)

A warp makes those of one chunk of 16 tokens, four warps those of a tile. Ã, R̃, B̃ and K̃ take the
places of a, r, b and k in shared memory, and A_ak, A_rb, A_rk and T that of w.

| name               | is                                                   |
|--------------------|------------------------------------------------------|
| w, b_total         | log decays, and their sum over each chunk            |
| b_before, b_after  | c before and after a token, [chunk, token, key]      |
| b_a, b_r, b_b, b_k | Ã, R̃, B̃, K̃ in bfloat16                               |
| b_ab, b_ba         | A_ab and its transpose, [chunk, token, token]        |
| b_t, b_u           | T and its transpose                                  |
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
)

from ....sequences.gluon_tiles import raw_decay
from ...decays import CLAMP, OF_CLAMP, RAW
from .layouts import (
    BY_CHUNK,
    CHUNKS,
    FLAT_BY_CHUNK,
    LEFT,
    LOG2E,
    PAIRS,
    RIGHT,
    SMALL,
    STAGES,
    C,
    N,
    barrier,
    index_along,
    rounded,
    times_transposed,
    widened,
)
from .loads import wait_for_tile

FITS = gl.constexpr(60.0)  # of a chunk's log decays: 2^-c of them and products with it are float32
STRONG = gl.constexpr(-1.0)  # instead of the decay of a key in a chunk, where it does not fit


@gluon.jit
def log_decay(b_w, DECAY: gl.constexpr):
    """Of w as it is given, in float32."""
    if DECAY == RAW:
        b_w = raw_decay(b_w)
    elif DECAY == OF_CLAMP:
        b_w = -CLAMP / (1 + gl.exp2(-b_w * LOG2E))
    return b_w


@gluon.jit
def log_decays(s_w, DECAY: gl.constexpr):
    """The log decays of a tile as a right factor, in one or two pieces of bfloat16; their sums."""
    w = s_w.load(RIGHT)
    b_w = log_decay(widened(w), DECAY)
    b_total = gl.sum(b_w, 1)
    if DECAY == RAW or DECAY == OF_CLAMP:
        high = rounded(b_w)
        return (high, rounded(b_w - widened(high))), b_total
    else:
        return (w,), b_total


@gluon.jit
def sums(weights, w, zeros):
    """log2 of products of decays: sums of log decays with weights of 0 and 1."""
    b_sum = mma_v2(weights, w[0], zeros)
    if len(w) == 2:
        b_sum = mma_v2(weights, w[1], b_sum)
    return b_sum * LOG2E


@gluon.jit
def clear_tail(s_x, left, absent):
    """Has what follows the last token of a sequence be `absent`: it may be other tokens, or NaN."""
    b_x = s_x.load(PAIRS)
    token = C * index_along(0, CHUNKS, PAIRS) + index_along(1, C, PAIRS)
    s_x.store(gl.where(token < left, b_x, absent).to(gl.bfloat16))


@gluon.jit
def inverse(b_ab, b_ba, row, col):
    """T = (I - A_ab)⁻¹ of each chunk, by blocks: see `inverse` of ../pairs.py.

    Of two neighbouring runs of tokens with inverses L and R it is [[L, 0], [R X L, R]]. X of runs
    of 2, 4 and 8 tokens is where that is the highest bit of row ^ col. A product takes the
    transpose of its right factor, so T and its transpose are computed side by side.
    """
    bits = row ^ col
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    b_t = gl.where(bits == 1, b_ab, gl.where(bits == 0, 1.0, 0.0))
    b_u = gl.where(bits == 1, b_ba, gl.where(bits == 0, 1.0, 0.0))
    for n in gl.static_range(1, 4):
        low = rounded(gl.where((bits >= 2**n) & (bits < 2 ** (n + 1)), b_ab, 0.0))
        t, u = rounded(b_t), rounded(b_u)
        low_t = rounded(times_transposed(u, low, zeros))  # (X L)ᵀ of all pairs of runs
        b_t = times_transposed(t, low_t, b_t)
        if n < 3:
            b_u = times_transposed(low_t, t, b_u)
    return b_t


@gluon.jit
def decayed(s_r, s_k, s_a, s_b, w, scale, zero, SCALED: gl.constexpr):
    """Ã, R̃, B̃ and K̃ of a tile, in bfloat16; without K̃ if s_k is None."""
    token, other = index_along(1, C, LEFT), index_along(2, C, LEFT)
    token += zero + 0 * index_along(0, CHUNKS, LEFT)
    zeros = gl.zeros([CHUNKS, C, N], gl.float32, PAIRS)
    b_before = sums((other < token).to(gl.bfloat16), w, zeros)
    b_a = rounded(widened(s_a.load(PAIRS)) * gl.exp2(b_before))
    s_a.store(b_a)
    b_after = sums((other <= token).to(gl.bfloat16), w, zeros)
    b_grow = gl.exp2(-b_after)
    b_b = rounded(widened(s_b.load(PAIRS)) * b_grow)
    if s_k is not None:
        b_k = rounded(widened(s_k.load(PAIRS)) * b_grow)
    b_shrink = gl.exp2(b_after)
    if SCALED:
        b_shrink *= scale
    b_r = rounded(widened(s_r.load(PAIRS)) * b_shrink)
    s_b.store(b_b)
    if s_k is not None:
        s_k.store(b_k)
    s_r.store(b_r)
    if s_k is not None:
        return b_a, b_r, b_b, b_k
    else:
        return b_a, b_r, b_b


@gluon.jit
def store_pairs(s_small, b_a, b_r, b_b, b_k):
    """A_ak, A_rb, A_rk and T of a tile."""
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    b_ak = gl.where(col < row, times_transposed(b_a, b_k, zeros), 0.0)
    s_small.index(0).store(gl.reshape(rounded(b_ak), [N, C]))
    b_rb = gl.where(col <= row, times_transposed(b_r, b_b, zeros), 0.0)
    s_small.index(1).store(gl.reshape(rounded(b_rb), [N, C]))
    b_rk = gl.where(col <= row, times_transposed(b_r, b_k, zeros), 0.0)
    s_small.index(2).store(gl.reshape(rounded(b_rk), [N, C]))
    store_inverse(s_small.index(3), b_a, b_b, row, col)


@gluon.jit
def store_inverse(s_t, b_a, b_b, row, col):
    """T of a tile; row and col are the two tokens of a pair."""
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    b_ab = gl.where(col < row, times_transposed(b_a, b_b, zeros), 0.0)
    b_ba = gl.where(row < col, times_transposed(b_b, b_a, zeros), 0.0)
    b_t = inverse(b_ab, b_ba, row, col)
    s_t.store(gl.reshape(rounded(b_t), [N, C]))


@gluon.jit
def store_decays(s_w, s_decay, DECAY: gl.constexpr):
    """The decay of each chunk of a tile; returns the log decays."""
    w, b_total = log_decays(s_w, DECAY)
    b_decay = gl.exp2(b_total * LOG2E)
    if DECAY != OF_CLAMP:
        b_decay = gl.where(b_total >= -FITS, b_decay, STRONG)  # NaN does not fit
    s_decay.store(b_decay)
    return w


@gluon.jit
def map_tile(
    s_r, s_w, s_k, s_a, s_b, s_decay, scale, zero, DECAY: gl.constexpr, SCALED: gl.constexpr
):
    """Makes the maps of a tile. Where a decay is STRONG they are wrong, and are not applied."""
    w = store_decays(s_w, s_decay, DECAY)
    b_a, b_r, b_b, b_k = decayed(s_r, s_k, s_a, s_b, w, scale, zero, SCALED)
    store_pairs(s_w._reinterpret(gl.bfloat16, [4, N, C], SMALL), b_a, b_r, b_b, b_k)


@gluon.jit
def by_chunk(s_x):
    """A tile as [chunk, token, …]."""
    return s_x._reinterpret(gl.bfloat16, [CHUNKS, C, N], BY_CHUNK)


@gluon.jit
def next_maps(tiles, s_decay, loaded, first, n, scale, FORM: gl.constexpr):
    """The maps of the tile whose first token is `first`, as soon as it is loaded."""
    i = first // N % STAGES
    wait_for_tile(loaded, i, first // N // STAGES % 2)
    s_decays = s_decay.index(i)._reinterpret(gl.float32, [CHUNKS, N], FLAT_BY_CHUNK)
    r, w, k, v, a, b = tiles
    s_r, s_w, s_k = by_chunk(r.index(i)), by_chunk(w.index(i)), by_chunk(k.index(i))
    s_v, s_a, s_b = by_chunk(v.index(i)), by_chunk(a.index(i)), by_chunk(b.index(i))
    left = n - first
    if left < N:
        PARAMETER: gl.constexpr = FORM.DECAY == RAW or FORM.DECAY == OF_CLAMP
        clear_tail(s_r, left, 0.0)
        clear_tail(s_w, left, float("-inf") if PARAMETER else 0.0)  # no decay
        clear_tail(s_k, left, 0.0)
        clear_tail(s_v, left, 0.0)
        clear_tail(s_a, left, 0.0)
        clear_tail(s_b, left, 0.0)
    zero = first // 2**30  # which the compiler cannot know: it would keep masks in registers
    map_tile(s_r, s_w, s_k, s_a, s_b, s_decays, scale, zero, FORM.DECAY, FORM.SCALED)
    fence_async_shared()
    barrier()  # all warps' maps are there


@gluon.jit
def make_maps(tiles, s_decay, loaded, mapped, n, scale, FORM: gl.constexpr):
    """The warps that make maps, of one tile after the other."""
    for first in range(0, n, N):
        next_maps(tiles, s_decay, loaded, first, n, scale, FORM)
        mbarrier.arrive(mapped.index(first // N % STAGES), count=1)
