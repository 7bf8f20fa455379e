"""The map of each chunk, as Triton kernel: what it makes of the state before it and of its v.

z solves a triangular system (../wy.py). With that solved, a chunk of C tokens is linear in S and v:

    z = W S + L v       o = R̃ S + A_rb z + A_rk v       S after = diag(decay) S + B̂ᵀ z + K̂ᵀ v

    W = T Ã       L = T A_ak       T = (I - A_ab)⁻¹

None of these matrices needs S, so that all chunks are computed at once: this is where the matrix
products are, and it is parallel over T however few heads there are. r, w, k, a and b are read, W,
R̃, B̂, K̂ `[C, K]` and L, A_rb, A_rk `[C, C]` written, and T for gradients.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import bounds_of_span
from ...sequences.tiles import from_middle, product_tf32
from ..decays import OF_CLAMP
from .pairs import (
    FITS,
    any_marked,
    blocks_times,
    exp,
    inverse,
    level_products,
    load_both,
    log_decay,
    log_decay_of_sum,
    quarters,
    store,
    stored,
    stored_product,
    sums,
    upper_lower,
)


class MapSizes(NamedTuple):
    """What the kernel is compiled for: blocks of keys, tokens of a chunk, decays."""

    K: int
    BK: int
    C: int
    DECAY: int  # what w is, see ../decays.py
    MARKS: int  # chunks that a program for strong decays looks at
    STRONG: bool


@assembled
@triton.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_maps_kernel(
    r, w, k, a, b, bounds, readers, written, across, of_l, of_p, of_q, of_t, strong,
    T, H, count, scale,
    SIZES: tl.constexpr,
):  # fmt: skip
    """readers: W over R̃, written: B̂ over K̂, [chunks, H, 2C, K]; across: [chunks, H, K], float32.

    of_l, of_p, of_q, of_t: L, A_rb, A_rk and T, [chunks, H, C, C]; the last one may be None.
    strong: of each of the `count` chunks of all heads whether its decays do not fit; int8.
    """
    if SIZES.STRONG:
        MARKS: tl.constexpr = SIZES.MARKS
        first = tl.program_id(0) * MARKS
        if any_marked(strong, first, count, MARKS):
            for i in range(first, tl.minimum(first + MARKS, count)):
                if tl.load(strong + i) != 0:
                    chunk_map(
                        r, w, k, a, b, bounds, readers, written, across, of_l, of_p, of_q, of_t,
                        strong, i, T, H, scale, SIZES,
                    )  # fmt: skip
    else:
        chunk_map(
            r, w, k, a, b, bounds, readers, written, across, of_l, of_p, of_q, of_t,
            strong, tl.program_id(0), T, H, scale, SIZES,
        )  # fmt: skip


@triton.jit
def chunk_map(
    r, w, k, a, b, bounds, readers, written, across, of_l, of_p, of_q, of_t, strong,
    i, T, H, scale, SIZES: tl.constexpr,
):  # fmt: skip
    start, end = bounds_of_span(bounds, i // H, T, SIZES.C)
    n = tl.minimum(end - start, SIZES.C).to(tl.int32)
    at, i = (start * H + i % H) * SIZES.K, tl.cast(i, tl.int64)
    store_map(
        r, w, k, a, b, None, readers, written, across, of_l, of_p, of_q, of_t, strong,
        at, n, i, 0, H, scale, SIZES,
    )  # fmt: skip


@triton.jit
def store_map(
    r, w, k, a, b, w0, readers, written, across, of_l, of_p, of_q, of_t, strong,
    at, n, i, i_h, H, scale, SIZES: tl.constexpr,
):  # fmt: skip
    """The map of chunk and head i: of the n tokens whose elements start `at`, of head i_h.

    w0 is added to w, unless it is None; of_t and strong may be None, too.
    """
    K: tl.constexpr = SIZES.K
    BK: tl.constexpr = SIZES.BK
    C: tl.constexpr = SIZES.C
    DECAY: tl.constexpr = SIZES.DECAY
    STRONG: tl.constexpr = SIZES.STRONG
    DTYPE: tl.constexpr = r.dtype.element_ty
    o_t, o_d = tl.arange(0, C), tl.arange(0, 2 * C)
    t, s, col = (o_d % C)[:, None], (o_d % C)[None, :], o_t[None, :]
    is_first = (o_d < C)[:, None]
    until = tl.where(is_first, t, t + 1)  # r reads through its own token's decay, too

    HALF: tl.constexpr = C // 2
    b_m, b_largest = tl.zeros([2 * C, 2 * C], tl.float32), 0.0
    b_as = ()  # Ã, in blocks of keys
    for i_k in tl.static_range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)[None, :]
        m_k = o_k < K
        if w0 is None:  # how an address is summed up changes what ptxas spills
            b_w = log_decay(w + at + o_t[:, None] * (H * K) + o_k, (o_t[:, None] < n) & m_k, DECAY)
        else:
            o_w, m_w = at + o_t[:, None] * (H * K) + o_k, (o_t[:, None] < n) & m_k
            o_w0 = i_h * K + o_k
            b_w = log_decay_of_sum(w + o_w, m_w, w0, o_w0, m_k, DECAY)
        o_tk, m = at + t * (H * K) + o_k, (t < n) & m_k
        b_x = load_both(a + o_tk, r + o_tk, is_first, m, DTYPE)
        b_y = load_both(b + o_tk, k + o_tk, is_first, m, DTYPE).to(tl.float32)
        b_x = b_x.to(tl.float32) * tl.where(is_first, 1.0, scale)
        b_ends = sums(o_t[:, None] // HALF == col // HALF, b_w, None, DTYPE)  # of each half
        b_largest = tl.maximum(b_largest, tl.max(-b_ends), tl.PropagateNan.ALL)
        b_first, b_second = upper_lower(exp(b_ends), HALF)  # [HALF, BK], in each row the same
        o_half = tl.arange(0, HALF)[:, None]
        tl.store(across + i * K + o_k + o_half, b_first * b_second, (o_half == 0) & m_k)
        if STRONG:
            b_readers = b_x * exp(sums(col < until, b_w, None, DTYPE))
            b_written = b_y * exp(sums(col > t, b_w, None, DTYPE))
            b_m += level_products(b_x, b_y, b_w, t, until, col, s, C, DTYPE)
        else:
            b_sum = sums(from_middle(until, col, C), b_w, None, DTYPE)
            b_back = exp(-upper_lower(b_sum, C)[1])  # by r's sums: b's and k's
            b_x *= exp(b_sum)
            b_y = blocks_times(b_y, b_back)
            b_readers = blocks_times(b_x, b_first)
            b_written = blocks_times(b_y, b_second)
            b_m = product_tf32(b_x, tl.trans(b_y), b_m, DTYPE)
        to, m_to = i * (2 * C * K) + o_d[:, None] * K + o_k, (o_d[:, None] < 2 * C) & m_k
        store(written + to, b_written, m_to)
        b_as = b_as + (upper_lower(stored(b_readers, DTYPE), C)[0],)
        store(readers + to, b_readers, m_to & (o_d >= C)[:, None])
    if not STRONG and DECAY != OF_CLAMP:
        tl.store(strong + i, 1 - (b_largest <= FITS).to(tl.int32))  # NaN does not fit
    b_ab, b_ak, b_rb, b_rk = quarters(tl.where(s < until, b_m, 0.0), C)

    row = o_t[:, None]
    o_tt = i * (C * C) + row * C + col
    m_tt = (row < C) & (col < C)
    store(of_p + o_tt, b_rb, m_tt)
    store(of_q + o_tt, b_rk, m_tt)
    b_t = inverse(b_ab, row, col, C, DTYPE)
    store(of_l + o_tt, product_tf32(b_t, b_ak, tl.zeros([C, C], tl.float32), DTYPE), m_tt)
    if of_t is not None:
        store(of_t + o_tt, b_t, m_tt)
    b_none = tl.zeros([C, BK], tl.float32)
    for j in tl.static_range(len(b_as)):
        o_k = j * BK + tl.arange(0, BK)[None, :]
        at_w, m_w = readers + i * (2 * C * K) + row * K + o_k, (row < C) & (o_k < K)
        store(at_w, stored_product(b_t, b_as[j], b_none, DTYPE), m_w)
