"""The second pass of the chunked gradients, all chunks at once: dr, dk, dw, du, and apart dv.

In a chunk, G[t,s] = do[t]·v[s]. Decays between two tokens are split at the middle of the chunk,
e[t] / e[s], so that pairs are matrix products, with r' = r e and k' = k / e:

    dr = e (G k') + x (do Sᵀ)     dk = (Gᵀ r') / e + y (v dSᵀ)     dv = (r' k'ᵀ)ᵀ do + (k y) dS

for s < t, with x the decay from the start of the chunk, y the decay to its end. With a = r dr and
b = k dk, but of pairs and states only, the log decay of token j gets what passes through it:

    dw[j] = Σ_s y-part of b + Σ S dS + Σ_{t>j} (a - b)[t] - b[j]

a and b hold every pair of the chunk once each, made of the same rounded factors, so those that do
not pass j cancel to the last bits of float32, even where they are thousands of times dw.

LEVELS: where decays are too strong for 1 / e. As in doubling.py, runs of 16, 8, 4, … tokens then
meet in pairs, each factor at most 1; and dw is a sum of what passes, without differences. For
inputs of 16 bits that ends at runs of which both halves fit; each is split at its middle, as above.
Tokens side by side have no decay between them: in such short runs they may be a million times dw,
more than float32 would cancel, so they stay out of its differences.

What moves through memory, what bounds it, and which inputs take hopper/sweep.py: backward.py.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import bounds_of_span
from .tiles import (
    FITS,
    LOG2E,
    as_multiplied,
    exact_product,
    from_middle,
    log2_decays,
    log_decay,
    product_nearest,
    product_tf32,
    weighted_sums,
)

CHUNKS_PER_SEARCH = tl.constexpr(64)  # a program checks so many for strong decays: bits of int64
FITS_FLOAT32 = tl.constexpr(30.0)  # where float32 inputs want five digits of dw


class PairSizes(NamedTuple):
    """What a kernel is compiled for: keys and values, blocks of them, tokens of a chunk, decays."""

    K: int
    V: int
    BK: int
    BV: int
    C: int
    RAW: bool
    LEVELS: bool


@triton.jit
def add_sums(weights, b_x, b_sum, DTYPE: tl.constexpr):
    """b_sum and the sums of b_x over tokens that weights of 0 and 1 choose."""
    if DTYPE == tl.float16:
        return b_sum + weighted_sums(weights, b_x, False, 2)
    else:
        return product_tf32(weights.to(tl.float32), b_x, b_sum, DTYPE)


@triton.jit
def middle_factors(b_w, row, column, C: tl.constexpr, DTYPE: tl.constexpr):
    """e, and 1 / e as b_k's share: decays [C, K] between the middle and just before each token."""
    weights = from_middle(row, column, C)
    itself = (row == column).to(tl.float32)
    b_e = tl.exp2(log2_decays(weights, b_w, DTYPE == tl.float32, 3))
    return b_e, tl.exp2(log2_decays(-weights - itself, b_w, DTYPE == tl.float32, 3))


@triton.jit
def half_that_fits(b_w, C: tl.constexpr):
    """Half of the longest run, of 16, 8 or 4 tokens, whose halves fit wherever it is; else 1."""
    row, leaf = tl.arange(0, C)[:, None], C + tl.arange(0, C)[None, :]
    # halves of 8, 4, 2 tokens as the nodes of a heap over the chunk: 4 …, 8 …, 16 …, if C is 32
    halves = (row == leaf // 8) | (row == leaf // 4) | (row == leaf // 2)
    b_fits = log2_decays(halves, b_w, False) >= -FITS  # NaN does not
    smaller = tl.where(row < C // 4, 4, tl.where(row < C // 2, 2, 1))
    return tl.min(tl.min(tl.where(b_fits, 8, smaller), 1), 0)


# The run of token t is right of another if t & run, run being a power of 2; tokens s and t are in
# one run if s ^ t < run, and in two that meet if s ^ t is less than twice that.


@triton.jit
def inside_run(row, column, run):
    """Tokens before `row` in its run, if that is a right one; after it, if it is a left one."""
    towards = tl.where((row & run) != 0, column < row, column > row)
    return (row ^ column < run) & towards


@triton.jit
def factors_of_runs(b_r, b_k, b_w, run, C: tl.constexpr, DTYPE: tl.constexpr):
    """What right and left runs meet with, the decays in it, and which tokens then do, [C, C]."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_e = tl.exp2(log2_decays(inside_run(row, column, run), b_w, DTYPE == tl.float32, 3))
    b_z = tl.where((row & run) != 0, b_r, b_k) * b_e
    return b_z, b_e, (row ^ column) & -run == run


@triton.jit
def add_runs(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, run, C: tl.constexpr, DTYPE: tl.constexpr):
    """dr, dk, dw, and what right and left runs add to them."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_z, b_e, pairs = factors_of_runs(b_r, b_k, b_w, run, C, DTYPE)
    b_y = product_tf32(tl.where(pairs, b_g, 0), b_z, tl.zeros_like(b_z), DTYPE)
    b_dw = add_sums(inside_run(column, row, run), b_y * b_z, b_dw, DTYPE)
    b_y *= b_e
    is_right = (row & run) != 0
    return b_dr + tl.where(is_right, b_y, 0), b_dk + tl.where(is_right, 0, b_y), b_dw


@triton.jit
def half_factors(b_w, half, C: tl.constexpr):
    """As `middle_factors`, for each run of two halves: decays between its middle and its tokens."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_x = log2_decays(inside_run(row, column, half), b_w, False, 3)
    # only halves of one token do not fit, and those are not used
    b_over = tl.exp2(tl.minimum(-b_x - b_w.to(tl.float32) * LOG2E, FITS))
    b_x, is_right = tl.exp2(b_x), (row & half) != 0
    return tl.where(is_right, b_x, b_over), tl.where(is_right, b_over, b_x)


@triton.jit
def add_halves(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, half, C: tl.constexpr, DTYPE: tl.constexpr):
    """dr, dk, dw, and what the tokens of one run of two halves add to them."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    zero, same = tl.zeros_like(b_r), row ^ column < 2 * half
    b_er, b_ek = half_factors(b_w, half, C)
    b_rm, b_km = as_multiplied(b_r * b_er, DTYPE), as_multiplied(b_k * b_ek, DTYPE)
    b_g = as_multiplied(tl.where(same, b_g, 0), DTYPE)
    short = half < 8  # in longer runs decays are weak enough for the differences of dw
    b_far = tl.where(short & (tl.abs(row - column) == 1), 0, b_g)
    b_y = exact_product(tl.where(row > column, b_far, 0), b_km, zero, DTYPE)
    b_a = b_rm * b_y
    if short:
        b_y = exact_product(tl.where(row == column + 1, b_g, 0), b_km, b_y, DTYPE)
    b_dr += b_y * b_er
    b_y = exact_product(tl.where(row < column, b_far, 0), b_rm, zero, DTYPE)
    b_b = b_km * b_y
    if short:
        b_y = exact_product(tl.where(row + 1 == column, b_g, 0), b_rm, b_y, DTYPE)
    b_dk += b_y * b_ek
    b_dw += weighted_sums(same & (column > row), b_a - b_b, False, 3) - b_b
    return b_dr, b_dk, b_dw


@triton.jit
def chunks_to_do(
    min_log_decay, chunk_bounds, first_slot, per_program, slots, T, i_h, H,
    C: tl.constexpr, DTYPE: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Where a program's chunks end, and which they are.

    If LEVELS, as if those that need them stood first; the bits of a number say which do.
    """
    last, strong = tl.minimum(first_slot + per_program, slots), 0
    if LEVELS:
        o_bit = tl.arange(0, CHUNKS_PER_SEARCH)
        o_slot = tl.minimum(first_slot + o_bit, slots - 1)
        # packed sequences leave slots unused
        first, end = bounds_of_span(chunk_bounds, o_slot, T, C)
        limit = -FITS_FLOAT32 if DTYPE == tl.float32 else -FITS
        b_strong = tl.load(min_log_decay + o_slot * H + i_h) < limit
        b_strong = b_strong & (first < end) & (first_slot + o_bit < slots)
        last = first_slot + tl.sum(b_strong.to(tl.int32), 0)
        strong = tl.sum(b_strong.to(tl.int64) << o_bit, 0)
    return last, strong


@triton.jit
def lowest_bit(bits):
    """The number of the lowest bit that is set: the exponent of what it stands for."""
    only = (bits & -bits).to(tl.float32).to(tl.int32, bitcast=True)
    return (only >> 23 & 255) - 127


@triton.jit
def chunk_to_do(
    slot, first_slot, strong, chunk_bounds, T, i_h, H, C: tl.constexpr, LEVELS: tl.constexpr
):
    """Where a chunk starts and ends, its place among those of all heads, and which are left."""
    if LEVELS:
        slot = first_slot + lowest_bit(strong)
        strong = strong & (strong - 1)
    first, end = bounds_of_span(chunk_bounds, slot, T, C)
    return first, end, slot * H + i_h.to(tl.int64), strong


@triton.jit
def keys_of_chunk(
    r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, do, dr, dk, dw, du,
    first, end, at, i_h, o_k, H, scale,
    SIZES: tl.constexpr, NV: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    RAW: tl.constexpr = SIZES.RAW
    LEVELS: tl.constexpr = SIZES.LEVELS
    DTYPE: tl.constexpr = r.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    # a loop keeps Triton from loading ahead
    UNROLLED: tl.constexpr = BK + BV <= 128 and not IS_FLOAT32
    o_t, o_v = tl.arange(0, C), tl.arange(0, BV)
    row, column = o_t[:, None], o_t[None, :]
    m_k, m_v, m_t = o_k < K, o_v < V, (first + o_t < end)[:, None]
    m_tk, m_tv, m_state = m_t & m_k[None, :], m_t & m_v[None, :], m_k[:, None] & m_v[None, :]
    o_tk = (first * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
    o_tv = (first * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
    o_state = at * K * V + o_k[:, None] * V + o_v[None, :]
    b_w = log_decay(w + o_tk, m_tk, RAW)
    b_do = tl.load(do + o_tv, mask=m_tv, other=0)
    b_v = tl.load(v + o_tv, mask=m_tv, other=0)
    b_s = tl.load(checkpoints + o_state, mask=m_state, other=0)
    b_ds = tl.load(d_checkpoints + o_state, mask=m_state, other=0)
    b_r = tl.load(r + o_tk, mask=m_tk, other=0).to(tl.float32) * scale
    b_k = tl.load(k + o_tk, mask=m_tk, other=0).to(tl.float32)
    b_u = tl.load(u + i_h * K + o_k, mask=m_k, other=0).to(tl.float32)
    b_early = tl.load(decays + at * 2 * K + o_k, mask=m_k, other=0)
    b_late = tl.load(decays + (at * 2 + 1) * K + o_k, mask=m_k, other=0)
    b_dw_across = tl.zeros([BK], tl.float32)
    for i in tl.static_range(NV):
        b_dw_across += tl.load(dw_across_chunk + (at * NV + i) * K + o_k, mask=m_k, other=0)

    zero, pairs = tl.zeros([C, BK], tl.float32), tl.zeros([C, C], tl.float32)
    b_g = product_tf32(b_do, tl.trans(b_v), pairs, DTYPE)
    b_gt = product_tf32(b_v, tl.trans(b_do), pairs, DTYPE)
    b_self = tl.sum(tl.where(row == column, b_g, 0), 1)[:, None]
    b_dr = product_nearest(b_do, tl.trans(b_s), zero, DTYPE)
    b_dk = product_nearest(b_v, tl.trans(b_ds), zero, DTYPE)
    if LEVELS:
        b_g = tl.where(row > column, b_g, b_gt)
        b_dr *= tl.exp2(log2_decays(column < row, b_w, IS_FLOAT32, 3))
        b_dk *= tl.exp2(log2_decays(column > row, b_w, IS_FLOAT32, 3))
        b_dw = add_sums(column > row, b_r * b_dr, zero, DTYPE)
        b_dw = add_sums(column < row, b_k * b_dk, b_dw, DTYPE)
        half = 0 if IS_FLOAT32 else half_that_fits(b_w, C)
        if UNROLLED:
            b_dr, b_dk, b_dw = add_runs(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, C // 2, C, DTYPE)
            for i in tl.static_range(1, 4):
                run = half << i
                if run < C // 2:
                    b_dr, b_dk, b_dw = add_runs(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, run, C, DTYPE)
        else:
            run = C // 2
            while run > half:
                b_dr, b_dk, b_dw = add_runs(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, run, C, DTYPE)
                run //= 2
        if not IS_FLOAT32:
            b_dr, b_dk, b_dw = add_halves(b_dr, b_dk, b_dw, b_r, b_k, b_w, b_g, half, C, DTYPE)
    else:
        b_er, b_ek = middle_factors(b_w, row, column, C, DTYPE)
        b_dr *= b_er * tl.exp2(b_early)[None, :]
        b_dk *= b_ek * tl.exp2(b_late)[None, :]
        b_b = b_k * b_dk
        b_dw_across += tl.sum(b_b, 0)
        b_rm, b_km = as_multiplied(b_r * b_er, DTYPE), as_multiplied(b_k * b_ek, DTYPE)
        b_y = exact_product(as_multiplied(tl.where(row > column, b_g, 0), DTYPE), b_km, zero, DTYPE)
        b_a = b_r * b_dr + b_rm * b_y
        b_dr += b_y * b_er
        b_y = exact_product(
            as_multiplied(tl.where(row < column, b_gt, 0), DTYPE), b_rm, zero, DTYPE
        )
        b_b += b_km * b_y
        b_dk += b_y * b_ek
        b_dw = weighted_sums(column > row, b_a - b_b, IS_FLOAT32, 3) - b_b
    b_dw += b_dw_across[None, :]
    if RAW:
        b_dw *= b_w
    tl.store(dw + o_tk, b_dw.to(dw.dtype.element_ty), mask=m_tk)

    b_dr += b_u[None, :] * b_k * b_self
    b_dk += b_u[None, :] * b_r * b_self
    tl.store(dr + o_tk, (b_dr * scale).to(dr.dtype.element_ty), mask=m_tk)
    tl.store(dk + o_tk, b_dk.to(dk.dtype.element_ty), mask=m_tk)
    tl.store(du + at * K + o_k, tl.sum(b_r * b_k * b_self, 0), mask=m_k)


@assembled
@triton.jit(do_not_specialize=["T", "H", "scale", "slots", "per_program"])
def keys_gradients(
    r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, min_log_decay,
    chunk_bounds, do, dr, dk, dw, du,
    T, H, scale, slots, per_program,
    SIZES: tl.constexpr, NV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dr, dk, dw and a part of du, for a block of keys of one head and `per_program` chunks."""
    K: tl.constexpr = SIZES.K
    BK: tl.constexpr = SIZES.BK
    C: tl.constexpr = SIZES.C
    LEVELS: tl.constexpr = SIZES.LEVELS
    NK: tl.constexpr = (K + BK - 1) // BK
    i = tl.program_id(0)
    i_k, i_h, first_slot = i % NK, i // NK % H, i // (NK * H) * per_program
    o_k = i_k * BK + tl.arange(0, BK)
    last, strong = chunks_to_do(
        min_log_decay, chunk_bounds, first_slot, per_program, slots, T, i_h, H,
        C, r.dtype.element_ty, LEVELS,
    )  # fmt: skip
    for slot in tl.range(first_slot, last, num_stages=STAGES):
        first, end, at, strong = chunk_to_do(
            slot, first_slot, strong, chunk_bounds, T, i_h, H, C, LEVELS
        )
        keys_of_chunk(
            r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, do, dr, dk, dw, du,
            first, end, at, i_h, o_k, H, scale, SIZES, NV,
        )  # fmt: skip


@triton.jit
def pairs_that_meet(b_r, b_k, b_w, run, C: tl.constexpr, DTYPE: tl.constexpr):
    """Σ r[t] k[s] · (the decays between) for s in a left and t in the right run, [s, t]; else 0."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_z, _, pairs = factors_of_runs(b_r, b_k, b_w, run, C, DTYPE)
    b_zz = product_tf32(b_z, tl.trans(b_z), tl.zeros([C, C], tl.float32), DTYPE)
    return tl.where(pairs & (row < column), b_zz, 0)


@triton.jit
def values_of_chunk(
    r, k, w, u, d_checkpoints, decays, do, dv, first, end, at, i_h, o_v, H, scale,
    SIZES: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    RAW: tl.constexpr = SIZES.RAW
    LEVELS: tl.constexpr = SIZES.LEVELS
    DTYPE: tl.constexpr = r.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    # a loop keeps Triton from loading ahead
    UNROLLED: tl.constexpr = BK + BV <= 128 and not IS_FLOAT32
    o_t, o_k = tl.arange(0, C), tl.arange(0, BK)
    row, column = o_t[:, None], o_t[None, :]
    m_k, m_v, m_t = o_k < K, o_v < V, (first + o_t < end)[:, None]
    m_tk, m_tv, m_state = m_t & m_k[None, :], m_t & m_v[None, :], m_k[:, None] & m_v[None, :]
    o_tk = (first * H + i_h) * K + o_t[:, None] * (H * K) + o_k[None, :]
    o_tv = (first * H + i_h) * V + o_t[:, None] * (H * V) + o_v[None, :]
    o_state = at * K * V + o_k[:, None] * V + o_v[None, :]
    b_w = log_decay(w + o_tk, m_tk, RAW)
    b_r = tl.load(r + o_tk, mask=m_tk, other=0).to(tl.float32) * scale
    b_k = tl.load(k + o_tk, mask=m_tk, other=0).to(tl.float32)
    b_do = tl.load(do + o_tv, mask=m_tv, other=0)
    b_ds = tl.load(d_checkpoints + o_state, mask=m_state, other=0)
    b_u = tl.load(u + i_h * K + o_k, mask=m_k, other=0).to(tl.float32)

    b_dv, b_pairs = tl.zeros([C, BV], tl.float32), tl.zeros([C, C], tl.float32)
    if LEVELS:
        b_y = tl.exp2(log2_decays(column > row, b_w, IS_FLOAT32, 3))
        half = 0 if IS_FLOAT32 else half_that_fits(b_w, C)
        if UNROLLED:
            b_pairs = pairs_that_meet(b_r, b_k, b_w, C // 2, C, DTYPE)
            for i in tl.static_range(1, 4):
                run = half << i
                if run < C // 2:
                    # not in b_pairs: Triton cuts a branch that ends in [C, C] in other tiles
                    b_zz = pairs_that_meet(b_r, b_k, b_w, run, C, DTYPE)
                    b_dv = product_tf32(b_zz, b_do.to(tl.float32), b_dv, DTYPE)
        else:
            run = C // 2
            while run > half:
                b_pairs += pairs_that_meet(b_r, b_k, b_w, run, C, DTYPE)
                run //= 2
        if not IS_FLOAT32:
            b_er, b_ek = half_factors(b_w, half, C)
            b_zz = tl.zeros([C, C], tl.float32)
            b_zz = product_tf32(b_k * b_ek, tl.trans(b_r * b_er), b_zz, DTYPE)
            b_pairs = tl.where(row ^ column < 2 * half, b_zz, b_pairs)
    else:
        b_late = tl.load(decays + (at * 2 + 1) * K + o_k, mask=m_k, other=0)
        b_er, b_ek = middle_factors(b_w, row, column, C, DTYPE)
        b_y = b_ek * tl.exp2(b_late)[None, :]
        b_pairs = product_tf32(b_k * b_ek, tl.trans(b_r * b_er), b_pairs, DTYPE)  # [s, t]
    b_self = tl.sum(b_r * b_u[None, :] * b_k, 1)
    b_pairs = tl.where(row < column, b_pairs, tl.where(row == column, b_self[None, :], 0))
    b_dv = product_tf32(b_k * b_y, b_ds.to(tl.float32), b_dv, DTYPE)
    b_dv = product_tf32(b_pairs, b_do.to(tl.float32), b_dv, DTYPE)
    tl.store(dv + o_tv, b_dv.to(dv.dtype.element_ty), mask=m_tv)


@assembled
@triton.jit(do_not_specialize=["T", "H", "scale", "slots", "per_program"])
def values_gradients(
    r, k, w, u, d_checkpoints, decays, min_log_decay, chunk_bounds, do, dv,
    T, H, scale, slots, per_program,
    SIZES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dv, for a block of values of one head and `per_program` chunks."""
    V: tl.constexpr = SIZES.V
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    LEVELS: tl.constexpr = SIZES.LEVELS
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0)
    i_v, i_h, first_slot = i % NV, i // NV % H, i // (NV * H) * per_program
    o_v = i_v * BV + tl.arange(0, BV)
    last, strong = chunks_to_do(
        min_log_decay, chunk_bounds, first_slot, per_program, slots, T, i_h, H,
        C, r.dtype.element_ty, LEVELS,
    )  # fmt: skip
    for slot in tl.range(first_slot, last, num_stages=STAGES):
        first, end, at, strong = chunk_to_do(
            slot, first_slot, strong, chunk_bounds, T, i_h, H, C, LEVELS
        )
        values_of_chunk(
            r, k, w, u, d_checkpoints, decays, do, dv, first, end, at, i_h, o_v, H, scale, SIZES,
        )  # fmt: skip
