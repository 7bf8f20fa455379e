"""The map of each chunk, as Triton kernel: what it makes of the state before it and of its v.

z solves a triangular system (../wy.py). With that solved, a chunk of C tokens is linear in S and v:

    o = R' S + N v          S after = diag(decay) S + B̂ᵀ (W S) + K'ᵀ v

    W = T Ã       R' = R̃ + M Ã       K' = K̂ + L ᵀB̂       N = A_rk + M A_ak
    T = (I - A_ab)⁻¹       M = A_rb T       L = T A_ak

None of them needs S, so that all chunks are computed at once, one program each: this is where the
matrix products are, and it is parallel over T however few heads there are. r, w, k, a and b are
read, W, R', B̂, K' `[C, K]` and N `[C, C]` written, and for gradients T, M and L.
"""

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...wkv6.chunked.tiles import FITS, product_tf32
from ..spans import bounds_of_span
from .pairs import (
    chunk_decays,
    from_middle,
    inverse,
    level_products,
    log_decay,
    pair_products,
)


@assembled
@triton.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_maps_kernel(
    r, w, k, a, b, bounds, of_w, of_r, of_b, of_k, across, of_n, of_t, of_m, of_l, strong,
    T, H, count, scale,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
    TOGETHER: tl.constexpr, STRONG: tl.constexpr,
):  # fmt: skip
    """of_w, of_r, of_b, of_k: [chunks, H, C, K]; across: [chunks, H, K], float32.

    of_n, of_t, of_m, of_l: [chunks, H, C, C]; the last three may be None.
    strong: of each of the `count` chunks of all heads whether its decays do not fit; int8.
    """
    for i in range(tl.program_id(0) * TOGETHER, tl.program_id(0) * TOGETHER + TOGETHER):
        wanted = i < count
        if STRONG:
            wanted = tl.load(strong + i, wanted, 0) != 0
        if wanted:
            chunk_map(
                r, w, k, a, b, bounds, of_w, of_r, of_b, of_k, across, of_n, of_t, of_m, of_l,
                strong, i, T, H, scale, K, BK, C, DECAY, STRONG,
            )  # fmt: skip


@triton.jit
def chunk_map(
    r, w, k, a, b, bounds, of_w, of_r, of_b, of_k, across, of_n, of_t, of_m, of_l, strong,
    i, T, H, scale,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr, STRONG: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = r.dtype.element_ty
    EXACT: tl.constexpr = STRONG or DTYPE == tl.float32
    start, end = bounds_of_span(bounds, i // H, T, C)
    n = tl.minimum(end - start, C).to(tl.int32)
    at, i = (start * H + i % H) * K, tl.cast(i, tl.int64)
    o_t = tl.arange(0, C)
    row, col = o_t[:, None], o_t[None, :]
    m_t = row < n

    b_ab, b_ak = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    b_rb, b_rk = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    b_largest = 0.0
    for i_k in tl.range(0, K, BK, num_stages=1):
        o_k = i_k + tl.arange(0, BK)[None, :]
        o_tk, m = at + row * (H * K) + o_k, m_t & (o_k < K)
        b_w = log_decay(w + o_tk, m, DECAY)
        b_a = tl.load(a + o_tk, m, 0.0).to(tl.float32)
        b_r = tl.load(r + o_tk, m, 0.0).to(tl.float32) * scale
        b_b = tl.load(b + o_tk, m, 0.0).to(tl.float32)
        b_k = tl.load(k + o_tk, m, 0.0).to(tl.float32)
        if STRONG:
            b_ab, b_ak, b_rb, b_rk = level_products(
                b_a, b_r, b_b, b_k, b_w, b_ab, b_ak, b_rb, b_rk, row, col, C, DTYPE
            )
        else:
            b_before, b_upto, _ = chunk_decays(b_w, row, col, C, EXACT)
            b_before, b_upto, b_most = from_middle(b_before, b_upto, row, C)
            b_largest = tl.maximum(b_largest, b_most, tl.PropagateNan.ALL)
            b_ab, b_ak, b_rb, b_rk = pair_products(
                b_a, b_r, b_b, b_k, b_before, b_upto, b_ab, b_ak, b_rb, b_rk, DTYPE
            )
    if not STRONG:
        tl.store(strong + i, 1 - (b_largest <= FITS).to(tl.int32))  # NaN does not fit
    b_ab, b_ak = tl.where(row > col, b_ab, 0.0), tl.where(row > col, b_ak, 0.0)
    b_rb, b_rk = tl.where(row >= col, b_rb, 0.0), tl.where(row >= col, b_rk, 0.0)

    b_none = tl.zeros([C, C], tl.float32)
    b_t = inverse(b_ab, row, col, C, DTYPE)
    b_m = product_tf32(b_rb, b_t, b_none, DTYPE)
    b_l = product_tf32(b_t, b_ak, b_none, DTYPE)
    b_n = product_tf32(b_m, b_ak, b_rk, DTYPE)
    o_tt = i * C * C + row * C + col
    tl.store(of_n + o_tt, b_n.to(of_n.dtype.element_ty))
    if of_t is not None:
        tl.store(of_t + o_tt, b_t.to(of_t.dtype.element_ty))
        tl.store(of_m + o_tt, b_m.to(of_m.dtype.element_ty))
        tl.store(of_l + o_tt, b_l.to(of_l.dtype.element_ty))

    for i_k in tl.range(0, K, BK, num_stages=1):
        o_k = i_k + tl.arange(0, BK)[None, :]
        m_k = o_k < K
        o_tk, m = at + row * (H * K) + o_k, m_t & m_k
        to, m_to = i * C * K + row * K + o_k, m_k & (row < C)
        b_before, b_upto, b_later = chunk_decays(log_decay(w + o_tk, m, DECAY), row, col, C, EXACT)
        b_a = tl.load(a + o_tk, m, 0.0).to(tl.float32) * tl.exp2(b_before)
        b_x = product_tf32(b_t, b_a, tl.zeros([C, BK], tl.float32), DTYPE)
        tl.store(of_w + to, b_x.to(of_w.dtype.element_ty), m_to)
        b_r = tl.load(r + o_tk, m, 0.0).to(tl.float32) * scale * tl.exp2(b_upto)
        b_x = product_tf32(b_m, b_a, b_r, DTYPE)
        tl.store(of_r + to, b_x.to(of_r.dtype.element_ty), m_to)
        b_b = tl.load(b + o_tk, m, 0.0).to(tl.float32) * tl.exp2(b_later)
        tl.store(of_b + to, b_b.to(of_b.dtype.element_ty), m_to)
        b_k = tl.load(k + o_tk, m, 0.0).to(tl.float32) * tl.exp2(b_later)
        b_x = product_tf32(tl.trans(b_l), b_b, b_k, DTYPE)
        tl.store(of_k + to, b_x.to(of_k.dtype.element_ty), m_to)
        b_total = tl.exp2(tl.sum(tl.where(row == C - 1, b_upto, 0.0), 0))  # [BK]: of the last token
        o_k = i_k + tl.arange(0, BK)
        tl.store(across + i * K + o_k, b_total, o_k < K)
