"""What the tokens of a chunk read of each other, and the gradients of that, in Triton.

Token t reads token s through the decays between them, one for each key: those before t for a,
those up to t for r. Split at the middle of the chunk this is something of t times something of s,
and all pairs together are one matrix product; 2^±sum of half a chunk is a float32 while the sum is
at most FITS. RWKV-7's own decays sum to 14 in 16 tokens. Where decays are stronger the chunk goes
in levels, as in ../wy.py: runs of 1, 2, 4, … tokens read the run before them, through decays to
the end of the one and from the start of the other, all of which are at most 1.

The levels take more registers than the other way has to spare. So they are a launch of their own
(STRONG), of the same kernel: the first launch marks the chunks that are to be done again. Where w
is "clamp" no decay is that strong, and there is none.
"""

import triton
import triton.language as tl

from ...wkv6.chunked.tiles import (
    finite,
    log2_decays,
    product,
    product_tf32,
    weighted_sums,
)
from ..decays import LOG2E, log_of

LEAST_DECAY = tl.constexpr(-2.0)  # log2: of stronger ones too little is left in dw's sums
PROGRAMS_TOGETHER = 8  # chunks whose marks a program of a second launch looks at


@triton.jit
def log_decay(at, m_w, DECAY: tl.constexpr):
    """The log decays at these addresses, with a number for -inf, and 0 outside the mask."""
    return finite(log_of(tl.load(at, m_w, 0.0), m_w, DECAY))


@triton.jit
def stored_product(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """b_sum + b_x b_y where factors are kept in bfloat16 for bfloat16 inputs, else in float32."""
    if DTYPE == tl.bfloat16:
        return tl.dot(b_x.to(tl.bfloat16), b_y.to(tl.bfloat16), b_sum)
    else:
        return product(b_x.to(tl.float32), b_y.to(tl.float32), b_sum, DTYPE)


@triton.jit
def chunk_decays(b_w, row, col, C: tl.constexpr, EXACT: tl.constexpr):
    """log2 of the decays from the chunk's start to before each token, up to it, and to the end.

    With a sum of its own for each (EXACT), or the three as differences of one, of which float32
    leaves 1e-5 where all of them fit: that is enough for inputs of 16 bits.
    """
    IS_FLOAT32: tl.constexpr = b_w.dtype == tl.float32 and EXACT
    b_upto = log2_decays(col <= row, b_w, IS_FLOAT32)
    if EXACT:
        b_before = log2_decays(col < row, b_w, IS_FLOAT32)
        b_later = log2_decays(col > row, b_w, IS_FLOAT32)
    else:
        b_before = b_upto - b_w.to(tl.float32) * LOG2E
        b_later = tl.sum(tl.where(row == C - 1, b_upto, 0.0), 0)[None, :] - b_upto
    return b_before, b_upto, b_later


@triton.jit
def from_middle(b_before, b_upto, row, C: tl.constexpr):
    """The same sums from the middle of the chunk on, negative before it, and the largest of all."""
    b_middle = tl.sum(tl.where(row == C // 2, b_before, 0.0), 0)[None, :]
    b_before, b_upto = b_before - b_middle, b_upto - b_middle
    return b_before, b_upto, tl.max(tl.max(tl.maximum(b_before, -b_upto), 1), 0)


@triton.jit
def run_decays(b_w, row, col, run, IS_FLOAT32: tl.constexpr):
    """The decays from the start of each run to before its tokens, up to them, and to its end."""
    same = row // run == col // run
    b_before = tl.exp2(log2_decays(same & (col < row), b_w, IS_FLOAT32))
    b_upto = tl.exp2(log2_decays(same & (col <= row), b_w, IS_FLOAT32))
    return b_before, b_upto, tl.exp2(log2_decays(same & (col > row), b_w, IS_FLOAT32))


@triton.jit
def is_pair(row, col, run):
    """Where a run of tokens (row) reads the run before it, of the same pair of runs (col)."""
    return (row // run == col // run + 1) & (col // run % 2 == 0)


@triton.jit
def pair_products(
    b_a, b_r, b_b, b_k, b_before, b_upto, b_ab, b_ak, b_rb, b_rk, DTYPE: tl.constexpr
):
    """The four matrices of a chunk `[C, C]`, with what these keys add; the rest is masked later.

    b_before, b_upto: log2 of the decays from the middle on.
    """
    b_y = tl.exp2(-b_upto)
    b_xa, b_xr = b_a * tl.exp2(b_before), b_r * tl.exp2(b_upto)
    b_yb, b_yk = tl.trans(b_b * b_y), tl.trans(b_k * b_y)
    b_ab = product_tf32(b_xa, b_yb, b_ab, DTYPE)
    b_ak = product_tf32(b_xa, b_yk, b_ak, DTYPE)
    b_rb = product_tf32(b_xr, b_yb, b_rb, DTYPE)
    b_rk = product_tf32(b_xr, b_yk, b_rk, DTYPE)
    return b_ab, b_ak, b_rb, b_rk


@triton.jit
def level_products(
    b_a, b_r, b_b, b_k, b_w, b_ab, b_ak, b_rb, b_rk, row, col, C: tl.constexpr, DTYPE: tl.constexpr
):
    """The same for any w ≤ 0."""
    b_none = tl.zeros([C, C], tl.float32)
    b_rb += tl.where(row == col, tl.sum(b_r * b_b, 1)[:, None], 0.0)
    b_rk += tl.where(row == col, tl.sum(b_r * b_k, 1)[:, None], 0.0)
    run = 1
    while run < C:
        b_before, b_upto, b_y = run_decays(b_w, row, col, run, DTYPE == tl.float32)
        pair = is_pair(row, col, run)
        b_xa, b_xr = b_a * b_before, b_r * b_upto
        b_yb, b_yk = tl.trans(b_b * b_y), tl.trans(b_k * b_y)
        b_ab += tl.where(pair, product_tf32(b_xa, b_yb, b_none, DTYPE), 0.0)
        b_ak += tl.where(pair, product_tf32(b_xa, b_yk, b_none, DTYPE), 0.0)
        b_rb += tl.where(pair, product_tf32(b_xr, b_yb, b_none, DTYPE), 0.0)
        b_rk += tl.where(pair, product_tf32(b_xr, b_yk, b_none, DTYPE), 0.0)
        run *= 2
    return b_ab, b_ak, b_rb, b_rk


@triton.jit
def level_gradients(
    b_a, b_r, b_b, b_k, b_w, b_dab, b_dak, b_drb, b_drk, row, col,
    C: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """da, dr, db, dk and dw `[C, BK]`, from the gradients of the four matrices, which are masked.

    For any w ≤ 0: dw is a sum over the decays that it is part of.
    """
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    b_none = tl.zeros(b_a.shape, tl.float32)
    b_own_b = tl.sum(tl.where(row == col, b_drb, 0.0), 1)[:, None]
    b_own_k = tl.sum(tl.where(row == col, b_drk, 0.0), 1)[:, None]
    b_da, b_dr = b_none, b_own_b * b_b + b_own_k * b_k
    b_db, b_dk, b_dw = b_own_b * b_r, b_own_k * b_r, b_none
    run = 1
    while run < C:
        b_before, b_upto, b_y = run_decays(b_w, row, col, run, IS_FLOAT32)
        pair = is_pair(row, col, run)
        b_pab, b_pak = tl.where(pair, b_dab, 0.0), tl.where(pair, b_dak, 0.0)
        b_prb, b_prk = tl.where(pair, b_drb, 0.0), tl.where(pair, b_drk, 0.0)
        b_yb, b_yk, b_xa, b_xr = b_b * b_y, b_k * b_y, b_a * b_before, b_r * b_upto
        b_dxa = product_tf32(b_pak, b_yk, product_tf32(b_pab, b_yb, b_none, DTYPE), DTYPE)
        b_dxr = product_tf32(b_prk, b_yk, product_tf32(b_prb, b_yb, b_none, DTYPE), DTYPE)
        b_dyb = product_tf32(tl.trans(b_pab), b_xa, b_none, DTYPE)
        b_dyb = product_tf32(tl.trans(b_prb), b_xr, b_dyb, DTYPE)
        b_dyk = product_tf32(tl.trans(b_pak), b_xa, b_none, DTYPE)
        b_dyk = product_tf32(tl.trans(b_prk), b_xr, b_dyk, DTYPE)
        b_da, b_dr = b_da + b_dxa * b_before, b_dr + b_dxr * b_upto
        b_db, b_dk = b_db + b_dyb * b_y, b_dk + b_dyk * b_y
        b_dw += decay_gradients(
            b_xa * b_dxa, b_xr * b_dxr, b_yb * b_dyb + b_yk * b_dyk, row, col, run, IS_FLOAT32
        )
        run *= 2
    return b_da, b_dr, b_db, b_dk, b_dw


@triton.jit
def decay_gradients(b_xa, b_xr, b_y, row, col, run, IS_FLOAT32: tl.constexpr):
    """dw from x · dx of what is decayed from a run's start, and y · dy of what is, to its end.

    w[u] is part of a's decay at the tokens after u, of r's from u on, of b's and k's before u.
    """
    same = row // run == col // run
    b_dw = weighted_sums(same & (col > row), b_xa, IS_FLOAT32, 2)
    b_dw += weighted_sums(same & (col >= row), b_xr, IS_FLOAT32, 2)
    return b_dw + weighted_sums(same & (col < row), b_y, IS_FLOAT32, 2)


@triton.jit
def inverse(b_x, row, col, C: tl.constexpr, DTYPE: tl.constexpr):
    """(I - b_x)⁻¹ of a strictly lower triangular matrix, by blocks.

    Of two neighbouring runs of tokens, with the inverses L and R of each, it is
    [[L, 0], [R X L, R]]. That adds and multiplies numbers of the inverse alone: the sum of the
    powers of b_x, as many products, would make numbers of 10⁸ out of ones, and cancel them.
    """
    b_none = tl.zeros([C, C], tl.float32)
    b_inverse = tl.where(is_pair(row, col, 1), b_x, tl.where(row == col, 1.0, 0.0))
    run = 2
    while run < C:
        b_low = tl.where(is_pair(row, col, run), b_x, 0.0)
        b_low = product_tf32(b_low, b_inverse, b_none, DTYPE)
        b_inverse = product_tf32(b_inverse, b_low, b_inverse, DTYPE)
        run *= 2
    return b_inverse
