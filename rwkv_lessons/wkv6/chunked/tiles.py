"""What the forward and the backward kernels of the chunked WKV-6 share: tiles of one chunk.

In a chunk of C tokens, token t reads token s < t through the decays between them,
exp(w[s+1] + … + w[t-1]), one for each key. Split at the middle of the chunk this is 2^a[t] 2^-b[s],
something of t times something of s, so that all pairs together are one matrix product:

    a[t] = sum of log2 decays from the middle to just before t (negative sums, before the middle)
    b[s] = the same, to just after s

No such sum is longer than half a chunk. While that is at most FITS, 2^±sum and the state times it
are within float32 and bfloat16 (2^±126), and the product is exact up to rounding. The backward
kernels split there. The forward kernel splits at the end of the chunk: then the sums are twice as
long, but k only shrinks, and so the state, kᵀ v, is right for any w ≤ 0.

Where a decay is stronger, the larger factor would overflow. Such a chunk goes in levels, as in
doubling.py: runs of 1, 2, 4, … tokens read the run before them, through decays to the end of the
one and from the start of the other. All of those are at most 1.

Sums over tokens are matrix products too, with weights of -1, 0 and 1: exact in 16-bit w, they need
no shuffles, and they come out in the layout in which the factors are used.
"""

import triton
import triton.language as tl

from ...sequences.tiles import (
    LOG2E,
    MIN_LOG_DECAY,
    cut,
    from_middle,
    in_two,
    nearest_two,
    product,
    product_tf32,
    raw_decay,
)

FITS = tl.constexpr(80.0)  # log2: inputs between 2^-46 and 2^46 times 2^±FITS are float32
FITS_TO_END = tl.constexpr(100.0)  # the same for 2^-26 to 2^26, where only r grows


@triton.jit
def log_decay(at, m_w, RAW: tl.constexpr):
    """The log decays at these addresses, at least MIN_LOG_DECAY, and 0 outside the mask.

    Of a raw parameter x the log decay is -exp(x), in float32.
    """
    return finite(log_of(tl.load(at, m_w, 0.0), m_w, RAW))


@triton.jit
def log_of(b_w, m_w, RAW: tl.constexpr):
    if RAW:
        b_w = tl.where(m_w, raw_decay(b_w), 0.0)
    return b_w


@triton.jit
def finite(b_w):
    return tl.maximum(b_w, MIN_LOG_DECAY, tl.PropagateNan.ALL).to(b_w.dtype)


@triton.jit
def weighted_sums(
    weights, b_x, IS_FLOAT32: tl.constexpr, PIECES: tl.constexpr, BY_KEY: tl.constexpr = False
):
    """weights [M, C] of -1, 0 and 1 times b_x [C, N]: sums over tokens, exact in 16-bit b_x.

    b_x in float32 is multiplied as it is where inputs are (IS_FLOAT32), or else as 2 or 3 PIECES of
    8 bits each, of its 24. Two are
    enough for a decay; a gradient that is the difference of two sums needs all.
    BY_KEY: weights [C, M], and the result is [N, M], with a row for each key as the state has.
    """
    if b_x.dtype != tl.float32:
        return ordered_dot(weights.to(b_x.dtype), b_x, None, BY_KEY)
    elif IS_FLOAT32:
        return ordered_dot(weights.to(tl.float32), b_x, None, BY_KEY)
    else:
        m = weights.to(tl.bfloat16)
        if PIECES == 2:
            b_high, b_low = nearest_two(b_x)
            return ordered_dot(m, b_low, ordered_dot(m, b_high, None, BY_KEY), BY_KEY)
        else:
            b_high, b_rest = cut(b_x)
            b_middle, b_low = in_two(b_rest)
            b_sum = ordered_dot(m, b_low, None, BY_KEY)
            b_sum += ordered_dot(m, b_middle, None, BY_KEY)
            return b_sum + ordered_dot(m, b_high, None, BY_KEY)


@triton.jit
def ordered_dot(weights, b_x, b_sum, BY_KEY: tl.constexpr):
    if BY_KEY:
        return tl.dot(tl.trans(b_x), weights, b_sum, input_precision="tf32x3")
    else:
        return tl.dot(weights, b_x, b_sum, input_precision="tf32x3")


@triton.jit
def log2_decays(
    weights, b_w, IS_FLOAT32: tl.constexpr, PIECES: tl.constexpr = 2, BY_KEY: tl.constexpr = False
):
    """log2 of the products of decays that `weights` choose, as `weighted_sums` takes them."""
    return weighted_sums(weights, b_w, IS_FLOAT32, PIECES, BY_KEY) * LOG2E


@triton.jit
def of_halves(row, C: tl.constexpr):
    """Weights [C, 16] of the sums over the halves of a chunk, eight columns for each."""
    return (row // (C // 2) == tl.arange(0, 16)[None, :] // 8).to(tl.float32)


@triton.jit
def nearest(b_x):
    """A tile whose float32 numbers TF32 cuts off to the nearest ones of 11 bits."""
    if b_x.dtype == tl.float32:
        b_cut = (b_x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        return b_x + (b_x - b_cut)  # from a half on, it reaches the next one
    else:
        return b_x.to(tl.float32)


@triton.jit
def product_nearest(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """`product_tf32`, for float16 with factors of 11 bits that are rounded, and not cut off."""
    if DTYPE == tl.float16:
        return tl.dot(nearest(b_x), nearest(b_y), b_sum, input_precision="tf32")
    else:
        return product_tf32(b_x, b_y, b_sum, DTYPE)


@triton.jit
def as_multiplied(b_x, DTYPE: tl.constexpr):
    """The part of a float32 tile that `exact_product` multiplies."""
    if DTYPE == tl.float32:
        return b_x
    elif DTYPE == tl.bfloat16:
        return (b_x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    else:
        b_high, b_low = in_two(b_x)
        return b_high.to(tl.float32) + b_low.to(tl.float32)


@triton.jit
def exact_product(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """b_sum + b_x b_y of `as_multiplied` tiles: no error but that of float32 sums."""
    if DTYPE == tl.float16:
        b_high, b_low = in_two(b_x)
        b_up, b_down = in_two(b_y)
        b_sum = tl.dot(b_high, b_down, tl.dot(b_low, b_down, b_sum))
        return tl.dot(b_high, b_up, tl.dot(b_low, b_up, b_sum))
    else:
        return product_tf32(b_x, b_y, b_sum, DTYPE)


@triton.jit
def level_products(b_r, b_k, b_w, row, col, C: tl.constexpr, DTYPE: tl.constexpr):
    """Σ r[t] k[s] · (the decays between s and t) for s < t, [C, C], for any w ≤ 0.

    Where the decays of eight tokens fit, runs of 16 are split at their middle; only what is
    between those runs goes in levels.
    """
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    b_a, run = tl.zeros([C, C], tl.float32), 1
    if C > 16:
        eights = (row // 8 == tl.arange(0, 16)[None, :]).to(tl.float32)
        b_fits = log2_decays(eights, b_w, IS_FLOAT32, BY_KEY=True) >= -FITS
        if tl.min(tl.min(b_fits.to(tl.int32), 1), 0) != 0:
            same = row // 16 == col // 16
            b_x = log2_decays(
                tl.where(same, from_middle(row % 16, col % 16, 16), 0.0), b_w, IS_FLOAT32
            )
            b_y = b_k * tl.exp2(-b_x - b_w.to(tl.float32) * LOG2E)
            b_x = b_r * tl.exp2(b_x)
            b_a = tl.where(same, product(b_x, tl.trans(b_y), b_a, DTYPE), 0.0)
            run = 16
    while run < C:
        same = row // run == col // run
        b_x = b_r * tl.exp2(log2_decays(same & (col < row), b_w, IS_FLOAT32))
        b_y = b_k * tl.exp2(log2_decays(same & (col > row), b_w, IS_FLOAT32))
        b_pairs = product(b_x, tl.trans(b_y), tl.zeros([C, C], tl.float32), DTYPE)
        next = (row // run == col // run + 1) & (col // run % 2 == 0)
        b_a += tl.where(next, b_pairs, 0.0)
        run *= 2
    return b_a
