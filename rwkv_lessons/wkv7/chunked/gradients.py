"""The gradients of a chunk of WKV-7, as Triton kernel, once z, y, S and dS are known.

    dA_ab = y zᵀ      dA_ak = y vᵀ      dA_rb = do zᵀ      dA_rk = do vᵀ      (below the diagonal)
    dÃ = y Sᵀ         dR̃ = do Sᵀ        dB̂ = z dSᵀ         dK̂ = v dSᵀ

or, with one over the other as in pairs.py, three products; two more make of dA what a, r, b and k
have of it through the decays. Each chunk is on its own, and all are done at once.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import bounds_of_span
from ...sequences.tiles import from_middle
from ..decays import OF_CLAMP, dw_of
from .pairs import (
    LEAST_DECAY,
    any_marked,
    beside,
    exp,
    gradients_in_levels,
    left_right,
    load_both,
    log_decay,
    store,
    store_both,
    stored,
    stored_product,
    sums_by_token,
)


class GradientSizes(NamedTuple):
    """What the kernel is compiled for: blocks of keys and values, tokens of a chunk, decays."""

    K: int
    V: int
    BK: int
    BV: int
    C: int
    DECAY: int  # what w is, see ../decays.py
    MARKS: int  # chunks that a program for strong decays looks at
    STRONG: bool


@assembled
@triton.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_chunk_gradients_kernel(
    r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, across,
    dr, dw, dk, da, db, strong,
    T, H, count, scale,
    SIZES: tl.constexpr,
):  # fmt: skip
    """states: before each chunk; d_states: after it. reads, d_reads: z and y. across: its decay.

    strong: of `count` blocks of keys of all chunks and heads whether decays are too strong; int8.
    """
    if SIZES.STRONG:
        MARKS: tl.constexpr = SIZES.MARKS
        first = tl.program_id(0) * MARKS
        if any_marked(strong, first, count, MARKS):
            for i in range(first, tl.minimum(first + MARKS, count)):
                if tl.load(strong + i) != 0:
                    gradients_in_chunk(
                        r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, across,
                        dr, dw, dk, da, db, strong, i, T, H, scale, SIZES,
                    )  # fmt: skip
    else:
        gradients_in_chunk(
            r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, across,
            dr, dw, dk, da, db, strong, tl.program_id(0), T, H, scale, SIZES,
        )  # fmt: skip


@triton.jit
def gradients_in_chunk(
    r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, across,
    dr, dw, dk, da, db, strong, program, T, H, scale, SIZES: tl.constexpr,
):  # fmt: skip
    """The gradients of one chunk and BK keys."""
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    DECAY: tl.constexpr = SIZES.DECAY
    STRONG: tl.constexpr = SIZES.STRONG
    DTYPE: tl.constexpr = r.dtype.element_ty
    KEPT: tl.constexpr = reads.dtype.element_ty
    NK: tl.constexpr = (K + BK - 1) // BK
    i_k, i_h, i_c = program % NK, program // NK % H, program // NK // H
    i = tl.cast(program // NK, tl.int64)
    start, end = bounds_of_span(bounds, i_c, T, C)
    n = tl.minimum(end - start, C).to(tl.int32)
    o_t, o_d, o_k = tl.arange(0, C), tl.arange(0, 2 * C), i_k * BK + tl.arange(0, BK)
    t, s, row, col = (o_d % C)[None, :], (o_d % C)[:, None], o_t[:, None], o_t[None, :]
    is_first, m_k = (o_d < C)[None, :], o_k[:, None] < K
    until, until_s = tl.where(is_first, t, t + 1), tl.where(o_d[:, None] < C, s, s + 1)

    at = (start * H + i_h) * K + o_k[:, None]
    b_w = log_decay(w + at + col * (H * K), (col < n) & m_k, DECAY)  # [BK, C]
    o_tk, m = at + t * (H * K), (t < n) & m_k
    b_y = load_both(b + o_tk, k + o_tk, is_first, m, DTYPE)  # [BK, 2C]
    b_x = load_both(a + o_tk, r + o_tk, is_first, m, DTYPE)
    ONE_BLOCK: tl.constexpr = V <= BV  # then states are loaded again where they are needed
    b_dm, b_across = tl.zeros([2 * C, 2 * C], tl.float32), tl.zeros([BK, BK], tl.float32)
    b_none = tl.zeros([BK, 2 * C], tl.float32)
    b_dx, b_dy = b_none, b_none
    at_r, at_v = i * (C * V) + t * V, (start * H + i_h) * V + t * (H * V)
    at_s = i * (K * V) + o_k[:, None]
    for i_v in tl.range(0, V, BV, num_stages=1):
        o_v = i_v + tl.arange(0, BV)
        m_v = (t < n) & (o_v[:, None] < V)
        o_r, o_tv = at_r + o_v[:, None], at_v + o_v[:, None]
        b_g = load_both(d_reads + o_r, do + o_tv, is_first, m_v, KEPT)  # [BV, 2C]
        b_h = load_both(reads + o_r, v + o_tv, is_first, m_v, KEPT)
        b_dm = stored_product(tl.trans(b_h), b_g, b_dm, DTYPE)  # what is read in rows
        o_s, m_s = at_s + o_v[None, :] * K, (o_v[None, :] < V) & m_k
        b_s, b_ds = tl.load(states + o_s, m_s, 0.0), tl.load(d_states + o_s, m_s, 0.0)
        if not ONE_BLOCK:
            b_dx = stored_product(b_s, b_g, b_dx, DTYPE)
            b_dy = stored_product(b_ds, b_h, b_dy, DTYPE)
        b_across = stored_product(b_s, tl.trans(b_ds), b_across, DTYPE)
    b_dm = tl.where(s < until, b_dm, 0.0)
    b_across = tl.sum(tl.where(o_k[:, None] == o_k[None, :], b_across, 0.0), 1)  # S · dS of a key

    # In an order in which little has to stay in registers.
    b_y = b_y.to(tl.float32)
    factor = tl.where(is_first, 1.0, scale)  # r is multiplied by the scale
    places = at_r, at_v, at_s, t < n, is_first, m_k
    if STRONG:
        if ONE_BLOCK:
            b_dy = through_states(reads, v, d_states, *places, K, V, BV, DTYPE)
        b_dy *= exp(sums_by_token(b_w, row > t, None, DTYPE))
        b_dw = sums_by_token(b_y * b_dy, s < col, None, DTYPE)  # w decays what was written before
        if ONE_BLOCK:
            b_dx = through_states(d_reads, do, states, *places, K, V, BV, DTYPE)
        b_dx *= exp(sums_by_token(b_w, row < until, None, DTYPE))
        b_x = b_x.to(tl.float32) * factor
        b_dw = sums_by_token(b_x * b_dx, col < until_s, b_dw, DTYPE)  # and what later ones read
        b_px, b_py, b_pw = gradients_in_levels(
            b_x, b_y, b_w, b_dm, t, until, s, until_s, row, C, DTYPE
        )  # fmt: skip
        b_dx, b_dy, b_dw = b_dx + b_px, b_dy + b_py, b_dw + b_pw
        store_both(da + o_tk, dr + o_tk, b_dx * factor, is_first, m)
    else:
        if DECAY != OF_CLAMP:  # so much in each token also fits in half a chunk
            fits = tl.min(b_w.to(tl.float32)) >= LEAST_DECAY
            tl.store(strong + program, 1 - fits.to(tl.int32))
        b_dm = stored(b_dm, DTYPE)
        b_sum = sums_by_token(b_w, from_middle(until, row, C), None, DTYPE)
        # r's sums, which go through the token itself, are those of b and k as well.
        b_decay, b_back = exp(b_sum) * factor, exp(-left_right(b_sum, C)[1])
        b_ends = exp(sums_by_token(b_w, row // (C // 2) == o_d[None, :] // C, None, DTYPE))
        b_first, b_second = left_right(b_ends, C)  # [BK, C]

        b_back = beside(b_back, b_back)
        b_y *= b_back
        b_given = stored(b_y, DTYPE)
        b_p = stored_product(b_given, b_dm, b_none, DTYPE)
        if ONE_BLOCK:
            b_dx = through_states(d_reads, do, states, *places, K, V, BV, DTYPE)
        b_dx *= beside(b_first, b_first)
        b_x = b_x.to(tl.float32) * b_decay
        b_read = b_x * b_dx
        b_dx = (b_dx + b_p) * b_decay
        b_x = stored(b_x, DTYPE)
        b_dw = sums_by_token(b_read + b_x.to(tl.float32) * b_p, col < until_s, None, DTYPE)
        store_both(da + o_tk, dr + o_tk, b_dx, is_first, m)

        b_p = stored_product(b_x, tl.trans(b_dm), b_none, DTYPE)
        if ONE_BLOCK:
            b_dy = through_states(reads, v, d_states, *places, K, V, BV, DTYPE)
        b_dy *= beside(b_second, b_second)
        # Of pairs, less those that are both later: with the factors that were multiplied, what has
        # to cancel does.
        b_pairs = b_given.to(tl.float32) * b_p
        b_of_b, b_of_k = left_right(b_y * b_dy + b_pairs, C)
        b_dw = sums_by_token(b_of_b + b_of_k, row < col, b_dw, DTYPE) - tl.sum(b_pairs, 1)[:, None]
        b_dy = (b_dy + b_p) * b_back
    store_both(db + o_tk, dk + o_tk, b_dy, is_first, m)

    b_across *= tl.load(across + i * K + o_k, o_k < K, 0.0)
    b_dw = dw_of(b_dw + b_across[:, None], b_w.to(tl.float32), DECAY)
    store(dw + at + col * (H * K), b_dw, (col < n) & m_k)


@triton.jit
def through_states(
    first, second, states, at_r, at_v, at_s, m_t, is_first, m_k,
    K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """States `[BK, V]`, of V ≤ BV, times the columns of `first` beside those of `second`."""
    o_v = tl.arange(0, BV)
    o_r, o_tv, m_v = at_r + o_v[:, None], at_v + o_v[:, None], m_t & (o_v[:, None] < V)
    b_x = load_both(first + o_r, second + o_tv, is_first, m_v, first.dtype.element_ty)
    b_s = tl.load(states + at_s + o_v[None, :] * K, (o_v[None, :] < V) & m_k, 0.0)
    return stored_product(b_s, b_x, tl.zeros([m_k.shape[0], m_t.shape[1]], tl.float32), DTYPE)
