"""What the forward and the backward kernels of the chunked WKV-6 share: tiles of one chunk.

In a chunk of C tokens, token t reads token s < t through the decays between them,
exp(w[s+1] + … + w[t-1]), one for each key. Split at the middle of the chunk this is 2^a[t] 2^-b[s],
something of t times something of s, so that all pairs together are one matrix product:

    a[t] = sum of log2 decays from the middle to just before t (negative sums, before the middle)
    b[s] = the same, to just after s

No such sum is longer than half a chunk. While that is at most FITS, 2^±sum and the state times it
are within float32 and bfloat16 (2^±126), and the product is exact up to rounding. Where a decay is
stronger, 2^-b would overflow. Such a chunk goes in levels, as in doubling.py: runs of 1, 2, 4, …
tokens read the run before them, through decays to the end of the one and from the start of the
other. All of those are at most 1, for any w ≤ 0.

Sums over tokens are matrix products too, with weights of -1, 0 and 1: exact in 16-bit w, they need
no shuffles, and they come out in the layout in which the factors are used.
"""

import triton
import triton.language as tl

KEEP = 32  # tokens between the states that the forward kernel leaves for the backward one
FITS = tl.constexpr(100.0)  # log2: a state of 2^-26 times 2^-FITS is still a normal float32
FAR = tl.constexpr(-1e4)  # stands for -inf in the sums, where 0 · inf would be NaN
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def log_decay(at, m_w, RAW: tl.constexpr, FINITE: tl.constexpr):
    """The log decays at these addresses, and 0 outside the mask; at least FAR, if FINITE.

    Of a raw parameter x the log decay is -exp(x), in float32.
    """
    b_w = tl.load(at, m_w, float("-inf") if RAW else 0.0)
    if RAW:
        b_w = -tl.exp2(b_w.to(tl.float32) * LOG2E)
    if FINITE:
        b_w = tl.where(b_w < FAR, FAR, b_w).to(b_w.dtype)  # NaN stays NaN
    return b_w


@triton.jit
def cut(b_x):
    """A float32 tile as two of bfloat16: its upper 16 bits as they are, and what is left."""
    b_high = (b_x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return b_high.to(tl.bfloat16), (b_x - b_high).to(tl.bfloat16)


@triton.jit
def sums(weights, b_w, EXACT: tl.constexpr):
    """log2 of the products of decays that `weights` (-1, 0 or 1) choose; EXACT: w in 24 bits."""
    if b_w.dtype != tl.float32:
        return tl.dot(weights.to(b_w.dtype), b_w) * LOG2E
    elif EXACT:
        return tl.dot(weights.to(tl.float32), b_w, input_precision="tf32x3") * LOG2E
    else:
        b_high, b_low = cut(b_w)
        b_m = weights.to(tl.bfloat16)
        return tl.dot(b_m, b_low, tl.dot(b_m, b_high)) * LOG2E


@triton.jit
def sums_by_key(weights, b_w, EXACT: tl.constexpr):
    """As `sums`, of weights [C, 16], with keys as rows: [K, 16]."""
    if b_w.dtype != tl.float32:
        return tl.dot(tl.trans(b_w), weights.to(b_w.dtype)) * LOG2E
    elif EXACT:
        return tl.dot(tl.trans(b_w), weights, input_precision="tf32x3") * LOG2E
    else:
        b_high, b_low = cut(b_w)
        b_m = weights.to(tl.bfloat16)
        return tl.dot(tl.trans(b_low), b_m, tl.dot(tl.trans(b_high), b_m)) * LOG2E


@triton.jit
def from_middle(row, col, C: tl.constexpr):
    """Weights of the sums a: from the middle to just before token `row`."""
    after = (col >= C // 2) & (col < row)
    before = (col < C // 2) & (col >= row)
    return after.to(tl.float32) - before.to(tl.float32)


@triton.jit
def product(b_x, b_y, b_sum, LIKE: tl.constexpr):
    """b_sum + b_x b_y, to the precision that inputs of dtype LIKE deserve.

    Rounding a factor to bfloat16 costs as much as rounding the result to it, so for 16-bit inputs
    float32 tiles are multiplied in two pieces; given bfloat16 fits in one. Two pieces hold a given
    float16 too. (TF32 would drop 13 bits instead of rounding them, a bias of 1e-3 in the end.)
    """
    if LIKE == tl.float32:
        return tl.dot(b_x, b_y, b_sum, input_precision="tf32x3")
    elif b_y.dtype == tl.bfloat16:
        b_high, b_low = cut(b_x)
        return tl.dot(b_low, b_y, tl.dot(b_high, b_y, b_sum))
    else:
        b_high, b_low = cut(b_x)
        b_up, b_down = cut(b_y.to(tl.float32))
        b_sum = tl.dot(b_high, b_down, tl.dot(b_high, b_up, b_sum))
        return tl.dot(b_low, b_up, b_sum)


@triton.jit
def level_products(b_r, b_k, b_w, row, col, C: tl.constexpr, LIKE: tl.constexpr):
    """Σ r[t] k[s] · (the decays between s and t) for s < t, [C, C], for any w ≤ 0."""
    b_a = tl.zeros([C, C], tl.float32)
    run = 1
    while run < C:
        same = row // run == col // run
        b_x = b_r * tl.exp2(sums(same & (col < row), b_w, LIKE == tl.float32))
        b_y = b_k * tl.exp2(sums(same & (col > row), b_w, LIKE == tl.float32))
        b_pairs = product(b_x, tl.trans(b_y), tl.zeros([C, C], tl.float32), LIKE)
        next = (row // run == col // run + 1) & (col // run % 2 == 0)
        b_a += tl.where(next, b_pairs, 0.0)
        run *= 2
    return b_a
