"""The second pass of the chunked gradients, all chunks at once: dr, dk, dw, du, and apart dv.

In a chunk, G[t,s] = do[t]·v[s]. Decays between two tokens are split at the middle of the chunk,
e[t] / e[s], so that pairs are matrix products, with r' = r e and k' = k / e:

    dr = e (G k') + x (do Sᵀ)     dk = (Gᵀ r') / e + y (v dSᵀ)     dv = (r' k'ᵀ)ᵀ do + (k y) dS

for s < t, with x the decay from the start of the chunk, y the decay to its end. With a = r dr and
b = k dk, but of pairs and states only, the log decay of token j gets what passes through it:

    dw[j] = Σ_s y-part of b + Σ S dS + Σ_{t>j} (a - b)[t] - b[j]

a and b hold every pair of the chunk once each, made of the same rounded factors, so those that do
not pass j cancel to the last bits of float32, even where they are thousands of times dw.

LEVELS: where decays are too strong for 1 / e. As in doubling.py, runs of 1, 2, 4, … tokens then
meet in pairs, each factor at most 1; and dw is a sum of what passes, without differences.

What moves through memory, and what bounds it: chunked_backward.py.
"""

import triton
import triton.language as tl

from .checkpoints import chunk_bounds
from .chunk_tiles import FITS, from_middle, log2_decays, log_decay, product_tf32, weighted_sums

SEARCHED = tl.constexpr(64)  # chunks that a program looks through for strong decays
FITS_FULL = tl.constexpr(30.0)  # where float32 inputs want five digits of dw


@triton.jit
def tf32(b_x, FULL: tl.constexpr):
    """b_x as the matrix unit takes it, so that what it multiplies is known to the last bit."""
    if FULL:
        return b_x
    else:
        return (b_x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def middle_factors(b_w, row, column, C: tl.constexpr, FULL: tl.constexpr):
    """e, and 1 / e as b_k's share: decays [C, K] between the middle and just before each token."""
    weights = from_middle(row, column, C)
    itself = (row == column).to(tl.float32)
    b_e = tl.exp2(log2_decays(weights, b_w, FULL, 3))
    return b_e, tl.exp2(log2_decays(-weights - itself, b_w, FULL, 3))


@triton.jit
def run_decay(b_w, row, column, run):
    """Decay from the start of its run to a token of a right run, to the end in a left run."""
    inside = tl.where(row // run % 2 == 1, column < row, column > row)
    return tl.exp2(log2_decays((row // run == column // run) & inside, b_w, True, 3))


@triton.jit
def is_pair(row, column, run):
    """Which tokens are in two neighbouring runs that meet."""
    return (row // run != column // run) & (row // (2 * run) == column // (2 * run))


@triton.jit
def last_slot(deepest, first_slot, each, slots, i_h, H, FULL: tl.constexpr, LEVELS: tl.constexpr):
    """Where a program's chunks end; where they start, if LEVELS and no decay there needs them."""
    last = tl.minimum(first_slot + each, slots)
    if LEVELS:
        o_slot = first_slot + tl.arange(0, SEARCHED)
        b_deepest = tl.load(deepest + o_slot * H + i_h, mask=o_slot < slots, other=0)
        last = tl.where(tl.min(b_deepest) < (-FITS_FULL if FULL else -FITS), last, first_slot)
    return last


@triton.jit
def keys_of_chunk(
    r, k, v, w, u, kept, d_kept, through, decays, do, dr, dk, dw, du,
    first, end, at, i_h, o_k, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    NV: tl.constexpr, RAW: tl.constexpr, FULL: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    o_t, o_v = tl.arange(0, C), tl.arange(0, BV)
    row, column = o_t[:, None], o_t[None, :]
    m_k, m_v, m_t = o_k < K, o_v < V, (first + o_t < end)[:, None]
    m_tk, m_tv, m_state = m_t & m_k[None, :], m_t & m_v[None, :], m_k[:, None] & m_v[None, :]
    o_tk = (first * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
    o_tv = (first * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
    o_state = at * K * V + o_k[:, None] * V + o_v[None, :]
    b_w = log_decay(w + o_tk, m_tk, RAW, True)
    b_do = tl.load(do + o_tv, mask=m_tv, other=0)
    b_v = tl.load(v + o_tv, mask=m_tv, other=0)
    b_s = tl.load(kept + o_state, mask=m_state, other=0)
    b_ds = tl.load(d_kept + o_state, mask=m_state, other=0)
    b_r = tl.load(r + o_tk, mask=m_tk, other=0).to(tl.float32) * scale
    b_k = tl.load(k + o_tk, mask=m_tk, other=0).to(tl.float32)
    b_u = tl.load(u + i_h * K + o_k, mask=m_k, other=0).to(tl.float32)
    b_early = tl.load(decays + at * 2 * K + o_k, mask=m_k, other=0)
    b_late = tl.load(decays + (at * 2 + 1) * K + o_k, mask=m_k, other=0)
    b_through = tl.zeros([BK], tl.float32)
    for i in tl.static_range(NV):
        b_through += tl.load(through + (at * NV + i) * K + o_k, mask=m_k, other=0)

    zero, pairs = tl.zeros([C, BK], tl.float32), tl.zeros([C, C], tl.float32)
    b_g = product_tf32(b_do, tl.trans(b_v), pairs, FULL)
    b_gt = product_tf32(b_v, tl.trans(b_do), pairs, FULL)
    b_self = tl.sum(tl.where(row == column, b_g, 0), 1)[:, None]
    b_dr = product_tf32(b_do, tl.trans(b_s), zero, FULL)
    b_dk = product_tf32(b_v, tl.trans(b_ds), zero, FULL)
    if LEVELS:
        b_dr *= tl.exp2(log2_decays(column < row, b_w, FULL, 3))
        b_dk *= tl.exp2(log2_decays(column > row, b_w, FULL, 3))
        b_dw = weighted_sums(column > row, b_r * b_dr, FULL, 3)
        b_dw += weighted_sums(column < row, b_k * b_dk, FULL, 3)
        b_g = tl.where(row > column, b_g, b_gt)
        run = C // 2
        while run > 0:
            is_right = row // run % 2 == 1
            b_e = run_decay(b_w, row, column, run)
            b_z = tl.where(is_right, b_r, b_k) * b_e
            b_y = product_tf32(tl.where(is_pair(row, column, run), b_g, 0), b_z, zero, True)
            inside = tl.where(column // run % 2 == 1, row < column, row > column)
            b_dw += weighted_sums((row // run == column // run) & inside, b_y * b_z, True, 3)
            b_dr += tl.where(is_right, b_y * b_e, 0)
            b_dk += tl.where(is_right, 0, b_y * b_e)
            run = run // 2
    else:
        b_er, b_ek = middle_factors(b_w, row, column, C, FULL)
        b_dr *= b_er * tl.exp2(b_early)[None, :]
        b_dk *= b_ek * tl.exp2(b_late)[None, :]
        b_b = b_k * b_dk
        b_through += tl.sum(b_b, 0)
        b_rm, b_km = tf32(b_r * b_er, FULL), tf32(b_k * b_ek, FULL)
        b_y = product_tf32(tf32(tl.where(row > column, b_g, 0), FULL), b_km, zero, FULL)
        b_a = b_r * b_dr + b_rm * b_y
        b_dr += b_y * b_er
        b_y = product_tf32(tf32(tl.where(row < column, b_gt, 0), FULL), b_rm, zero, FULL)
        b_b += b_km * b_y
        b_dk += b_y * b_ek
        b_dw = weighted_sums(column > row, b_a - b_b, FULL, 3) - b_b
    b_dw += b_through[None, :]
    if RAW:
        b_dw *= b_w
    tl.store(dw + o_tk, b_dw.to(dw.dtype.element_ty), mask=m_tk)

    b_dr += b_u[None, :] * b_k * b_self
    b_dk += b_u[None, :] * b_r * b_self
    tl.store(dr + o_tk, (b_dr * scale).to(dr.dtype.element_ty), mask=m_tk)
    tl.store(dk + o_tk, b_dk.to(dk.dtype.element_ty), mask=m_tk)
    tl.store(du + at * K + o_k, tl.sum(b_r * b_k * b_self, 0), mask=m_k)


@triton.jit(do_not_specialize=["T", "H", "scale", "slots", "each"])
def keys_gradients(
    r, k, v, w, u, kept, d_kept, through, decays, deepest, where, do, dr, dk, dw, du,
    T, H, scale, slots, each,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    NV: tl.constexpr, RAW: tl.constexpr, FULL: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """dr, dk, dw and a part of du, for a block of keys of `each` chunks of one head."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i = tl.program_id(0)
    i_k, i_h, first_slot = i % NK, i // NK % H, i // (NK * H) * each
    o_k = i_k * BK + tl.arange(0, BK)
    last = last_slot(deepest, first_slot, each, slots, i_h, H, FULL, LEVELS)
    for slot in tl.range(first_slot, last, num_stages=1 if LEVELS or FULL or BK + BV > 128 else 3):
        first, end = chunk_bounds(where, slot, T, C)
        at = slot * H + i_h.to(tl.int64)
        needed = True
        if LEVELS:
            needed = tl.load(deepest + at) < (-FITS_FULL if FULL else -FITS)
            needed = needed & (first < end)  # packed sequences leave places free
        if needed:
            keys_of_chunk(
                r, k, v, w, u, kept, d_kept, through, decays, do, dr, dk, dw, du,
                first, end, at, i_h, o_k, H, scale, K, V, BK, BV, C, NV, RAW, FULL, LEVELS,
            )  # fmt: skip


@triton.jit
def values_of_chunk(
    r, k, w, u, d_kept, decays, do, dv, first, end, at, i_h, o_v, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr, FULL: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    o_t, o_k = tl.arange(0, C), tl.arange(0, BK)
    row, column = o_t[:, None], o_t[None, :]
    m_k, m_v, m_t = o_k < K, o_v < V, (first + o_t < end)[:, None]
    m_tk, m_tv, m_state = m_t & m_k[None, :], m_t & m_v[None, :], m_k[:, None] & m_v[None, :]
    o_tk = (first * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
    o_tv = (first * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
    o_state = at * K * V + o_k[:, None] * V + o_v[None, :]
    b_w = log_decay(w + o_tk, m_tk, RAW, True)
    b_r = tl.load(r + o_tk, mask=m_tk, other=0).to(tl.float32) * scale
    b_k = tl.load(k + o_tk, mask=m_tk, other=0).to(tl.float32)
    b_do = tl.load(do + o_tv, mask=m_tv, other=0)
    b_ds = tl.load(d_kept + o_state, mask=m_state, other=0)
    b_u = tl.load(u + i_h * K + o_k, mask=m_k, other=0).to(tl.float32)

    zero, b_pairs = tl.zeros([C, BV], tl.float32), tl.zeros([C, C], tl.float32)
    if LEVELS:
        b_y = tl.exp2(log2_decays(column > row, b_w, FULL, 3))
        run = C // 2
        while run > 0:
            b_z = tl.where(row // run % 2 == 1, b_r, b_k) * run_decay(b_w, row, column, run)
            b_zz = product_tf32(b_z, tl.trans(b_z), tl.zeros([C, C], tl.float32), True)
            b_pairs = tl.where(is_pair(row, column, run), b_zz, b_pairs)
            run = run // 2
    else:
        b_late = tl.load(decays + (at * 2 + 1) * K + o_k, mask=m_k, other=0)
        b_er, b_ek = middle_factors(b_w, row, column, C, FULL)
        b_y = b_ek * tl.exp2(b_late)[None, :]
        b_pairs = product_tf32(b_k * b_ek, tl.trans(b_r * b_er), b_pairs, FULL)  # [s, t]
    b_self = tl.sum(b_r * b_u[None, :] * b_k, 1)
    b_pairs = tl.where(row < column, b_pairs, tl.where(row == column, b_self[None, :], 0))
    b_dv = product_tf32(b_k * b_y, b_ds.to(tl.float32), zero, FULL)
    b_dv = product_tf32(b_pairs, b_do.to(tl.float32), b_dv, FULL)
    tl.store(dv + o_tv, b_dv.to(dv.dtype.element_ty), mask=m_tv)


@triton.jit(do_not_specialize=["T", "H", "scale", "slots", "each"])
def values_gradients(
    r, k, w, u, d_kept, decays, deepest, where, do, dv, T, H, scale, slots, each,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr, FULL: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """dv, for a block of values of `each` chunks of one head."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0)
    i_v, i_h, first_slot = i % NV, i // NV % H, i // (NV * H) * each
    o_v = i_v * BV + tl.arange(0, BV)
    last = last_slot(deepest, first_slot, each, slots, i_h, H, FULL, LEVELS)
    for slot in tl.range(first_slot, last, num_stages=1 if LEVELS or FULL or BK + BV > 128 else 3):
        first, end = chunk_bounds(where, slot, T, C)
        at = slot * H + i_h.to(tl.int64)
        needed = True
        if LEVELS:
            needed = tl.load(deepest + at) < (-FITS_FULL if FULL else -FITS)
            needed = needed & (first < end)
        if needed:
            values_of_chunk(
                r, k, w, u, d_kept, decays, do, dv, first, end, at, i_h, o_v, H, scale,
                K, V, BK, BV, C, RAW, FULL, LEVELS,
            )  # fmt: skip
