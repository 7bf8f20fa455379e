"""The second pass of the chunked gradients in Gluon, for Hopper and bfloat16 heads of 64.

A program takes the 64 tokens of two checkpoints, and gives dr, dk, dv, dw and du at once. With the
factors of ../pairs.py, split at the middle, all states between chunks in their tiles, and G
without its diagonal and what is above it, in two bfloat16 pieces:

    sums of decays, G = do vᵀ, do Sᵀ, v dSᵀ    →  r', k' and G, in two pieces each
    r' G k', and k' Gᵀ r'                      →  a, b, dr, dk
    (r' k'ᵀ)ᵀ do + (k y) dS                    →  dv
    sums of a - b over later tokens            →  dw

a and b are made of the very same pieces, all four products of them, and so cancel where they have
to. What passes through a whole chunk is known of its halves only, from states.py: b after a
half, and a before it, join it for a half.

Each tile comes and goes once, by the tensor memory accelerator: 11 tensors of the size of r. There
is no loop; of two programs on an SM one loads, or waits, while the other computes.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ....runtime.compile_triton import assembled
from ..tiles import LOG2E, MIN_LOG_DECAY
from .tiles import (
    TILE,
    C,
    above_and_on_diagonal_in_two,
    above_diagonal,
    above_in_two,
    as_left_operand,
    at_least,
    barrier,
    cut,
    expect_tile,
    in_two,
    product_of,
    rounded,
    widened,
)


@gluon.jit
def new_barrier():
    """A barrier in shared memory for one tile."""
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    return ready


@gluon.jit
def clear_after(s_x, n, row, LAYOUT: gl.constexpr):
    """Zeros the rows from n on, which are other sequences' tokens."""
    b_x = s_x.load(LAYOUT)
    s_x.store(gl.where(row < n, b_x, 0.0).to(gl.bfloat16))


@gluon.jit
def both_pieces(s_high, s_low, LAYOUT: gl.constexpr):
    """The number that two pieces stand for, exactly."""
    return widened(s_high.load(LAYOUT)) + widened(s_low.load(LAYOUT))


@gluon.jit
def folded(x):
    """A tile's rows, two of one thread in one: of 32, the first 16 are of the first 32 tokens."""
    return gl.sum(x.reshape([4, 2, 8, C]), 1).reshape([32, C])


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale"])
def pairs_hopper_kernel(
    r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, min_log_decay, do,
    dr, dk, dv, dw, dr_rows, dk_rows, dv_rows, dw_rows, du, T, H, scale,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, do, dr, dk, dv, dw are descriptors of [tokens, H·64], and kept, d_kept of states.

    dr_rows, … are the results again, for a last chunk that is not whole.
    min_log_decay: gets the strongest log2 decay of half a chunk, for both of its slots; where that
    is less than -FITS, all other results are recomputed.
    """
    TILES: gl.constexpr = product_of(64)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, TILES)
    FEW: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])  # each warp holds all 64
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    FOLDED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    ALONG: gl.constexpr = gl.BlockedLayout([16, 1], [1, 32], [1, 4], [0, 1])  # a thread a column
    KEYS: gl.constexpr = gl.SliceLayout(0, ALONG)
    i_h, i_c, i_n = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    n = T - i_c * C  # tokens from here to the end of the sequence
    whole = n >= C
    first = i_n * T + i_c * C
    slot = i_n * gl.cdiv(T, CHECKPOINT) + 2 * i_c
    two = n > CHECKPOINT
    last = gl.where(two, slot + 1, slot)

    s_w = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    w_ready, do_ready, v_ready = new_barrier(), new_barrier(), new_barrier()
    s_ready, ds_ready, r_ready, k_ready = new_barrier(), new_barrier(), new_barrier(), new_barrier()
    fence_async_shared()
    barrier()
    expect_tile(w_ready, True)
    expect_tile(do_ready, True)
    expect_tile(v_ready, True)
    expect_tile(s_ready, True)
    expect_tile(ds_ready, True)
    expect_tile(r_ready, True)
    expect_tile(k_ready, True)
    at = [first, i_h * C]
    tma.async_copy_global_to_shared(w, at, w_ready, s_w)
    tma.async_copy_global_to_shared(r, at, r_ready, s_r)
    tma.async_copy_global_to_shared(k, at, k_ready, s_k)
    tma.async_copy_global_to_shared(do, at, do_ready, s_do)
    tma.async_copy_global_to_shared(v, at, v_ready, s_v)
    tma.async_copy_global_to_shared(checkpoints, [(slot * H + i_h) * C, 0], s_ready, s_s)
    tma.async_copy_global_to_shared(d_checkpoints, [(last * H + i_h) * C, 0], ds_ready, s_ds)
    barrier()  # else ptxas has the copies wait for what is loaded next

    # Numbers of each key, of which a thread needs 16 or all, but not now.
    o_k = gl.arange(0, C, FEW)
    at_k = (slot * H + i_h).to(gl.int64) * C + o_k
    next_k = at_k + H * C
    at_w = (slot * H + i_h).to(gl.int64) * (2 * C) + o_k
    next_w = at_w + H * (2 * C)
    m_k = (o_k >= 0) & two
    b_early = gl.load(decays + at_w) + gl.load(decays + at_w + C)
    b_late = gl.load(decays + next_w, m_k, 0.0) + gl.load(decays + next_w + C, m_k, 0.0)
    b_first = gl.load(dw_across_chunk + at_k)
    b_second = gl.load(dw_across_chunk + next_k, m_k, 0.0)
    b_u = gl.load(u + i_h * C + o_k).to(gl.float32)
    s_early = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_late = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_log = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_first = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_second = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_u = gl.allocate_shared_memory(gl.float32, [C], PLAIN)
    s_early.store(gl.exp2(b_early))
    s_late.store(gl.exp2(b_late))
    s_log.store(b_late)
    s_first.store(b_first)
    s_second.store(b_second)
    s_u.store(b_u)
    gl.store(du + next_k, 0.0, m_k)
    b_min_log_decay = gl.min(gl.minimum(b_early, b_late, propagate_nan=tl.PropagateNan.ALL), 0)
    gl.store(min_log_decay + slot * H + i_h, b_min_log_decay)
    gl.store(min_log_decay + last * H + i_h, b_min_log_decay)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, COLUMNS)[None, :]
    s_mask = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
    s_mask.store(above_diagonal(row, col))
    s_later = s_mask._reinterpret(gl.bfloat16, [C, C], TILE)  # weights of sums over later tokens
    s_r_high = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_r_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_k_high = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_k_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_sums = gl.allocate_shared_memory(gl.float32, [32, C], FOLDED)
    s_w_low = s_sums._reinterpret(gl.bfloat16, [C, C], TILE)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)

    mbarrier.wait(w_ready, 0)
    b_w = s_w.load(TILES)
    if not whole:  # what follows are other tokens, or zeros
        mbarrier.wait(do_ready, 0)
        mbarrier.wait(v_ready, 0)
        mbarrier.wait(r_ready, 0)
        mbarrier.wait(k_ready, 0)
        clear_after(s_do, n, row, TILES)
        clear_after(s_v, n, row, TILES)
        clear_after(s_r, n, row, TILES)
        clear_after(s_k, n, row, TILES)
    if RAW:
        b_w = gl.where(row < n, -gl.exp2(widened(b_w) * LOG2E), 0.0)
        b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
        high, low = in_two(b_w)
        s_w.store(high)
        s_w_low.store(low)
    else:
        if not whole:
            b_w = gl.where(row < n, b_w, 0.0).to(gl.bfloat16)
        b_w = at_least(b_w, MIN_LOG_DECAY)
        s_w.store(b_w)
    fence_async_shared()
    barrier()
    b_x = warpgroup_mma(s_later, s_w, zeros, use_acc=False, is_async=True)
    if RAW:
        b_x = warpgroup_mma(s_later, s_w_low, b_x, is_async=True)
    mbarrier.wait(do_ready, 0)
    mbarrier.wait(v_ready, 0)
    b_g = warpgroup_mma(s_v, s_do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(s_ready, 0)
    mbarrier.wait(ds_ready, 0)
    b_dr = warpgroup_mma(s_do, s_s.permute((1, 0)), zeros, use_acc=False, is_async=True)
    b_dk = warpgroup_mma(s_v, s_ds.permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(r_ready, 0)
    mbarrier.wait(k_ready, 0)
    b_x = warpgroup_mma_wait(3, deps=(b_x,))
    if not RAW:
        b_w = widened(b_w)
    b_x = b_x * LOG2E - s_log.load(COLUMNS)[None, :]
    b_er = gl.exp2(b_w * -LOG2E - b_x)
    b_ek = gl.exp2(b_x)
    b_g, b_dr, b_dk = warpgroup_mma_wait(0, deps=(b_g, b_dr, b_dk))
    barrier()

    b_diagonal = gl.sum(gl.where(row == col, b_g, 0.0), 1)[:, None]
    high, low = above_in_two(b_g, s_mask.load(TILES))  # G, transposed
    s_g_high, s_g_low = s_s, s_w
    s_g_high.store(high)
    s_g_low.store(low)
    b_r = widened(s_r.load(TILES))
    if SCALED:
        b_r *= scale
    b_k = widened(s_k.load(TILES))
    b_self = gl.sum(b_r * b_k * s_u.load(COLUMNS)[None, :], 1)[:, None]
    b_r *= b_er
    b_k *= b_ek
    high, low = in_two(b_r)
    s_r_high.store(high)
    s_r_low.store(low)
    high, low = in_two(b_k)
    s_k_high.store(high)
    s_k_low.store(low)
    fence_async_shared()
    barrier()

    r_high, r_low = s_r_high.permute((1, 0)), s_r_low.permute((1, 0))
    b_p = warpgroup_mma(s_k_high, r_high, zeros, use_acc=False, is_async=True)
    b_p = warpgroup_mma(s_k_low, r_high, b_p, is_async=True)
    b_p = warpgroup_mma(s_k_high, r_low, b_p, is_async=True)
    b_dr *= s_early.load(COLUMNS)[None, :]
    s_a = s_v._reinterpret(gl.float32, [32, C], FOLDED)
    s_a.store(folded(b_r * b_dr))
    g_high, g_low = s_g_high.permute((1, 0)), s_g_low.permute((1, 0))
    b_dr = warpgroup_mma(g_low, s_k_low, b_dr, is_async=True)
    b_dr = warpgroup_mma(g_low, s_k_high, b_dr, is_async=True)
    b_dr = warpgroup_mma(g_high, s_k_low, b_dr, is_async=True)
    b_dr = warpgroup_mma(g_high, s_k_high, b_dr, is_async=True)
    b_late = s_late.load(COLUMNS)[None, :]
    b_dk *= b_late
    s_sums.store(folded(b_k * b_dk))
    b_dk = warpgroup_mma(s_g_low, s_r_low, b_dk, is_async=True)
    b_dk = warpgroup_mma(s_g_low, s_r_high, b_dk, is_async=True)
    b_dk = warpgroup_mma(s_g_high, s_r_low, b_dk, is_async=True)
    b_dk = warpgroup_mma(s_g_high, s_r_high, b_dk, is_async=True)
    barrier()
    b_second = gl.sum(s_sums.slice(16, 16, 0).load(ALONG), 0)
    b_first = gl.sum(s_sums.slice(0, 16, 0).load(ALONG), 0) + b_second
    b_first -= gl.sum(s_a.slice(16, 16, 0).load(ALONG), 0)
    b_first += s_first.load(KEYS)
    b_second += s_second.load(KEYS)
    barrier()  # half of the threads have the other half's keys, too
    s_first.store(b_first)
    s_second.store(b_second)
    self_high, self_low = in_two(b_self)
    b_p = warpgroup_mma_wait(8, deps=(b_p,))
    p_high, p_low = above_and_on_diagonal_in_two(b_p, self_high, self_low, s_mask.load(TILES))
    p_high, p_low = as_left_operand(p_high), as_left_operand(p_low)
    b_dv = warpgroup_mma(p_high, s_do, zeros, use_acc=False, is_async=True)
    b_dv = warpgroup_mma(p_low, s_do, b_dv, is_async=True)
    k_high, k_low = in_two(b_k * b_late)
    k_high, k_low = as_left_operand(k_high), as_left_operand(k_low)
    b_dv = warpgroup_mma(k_high, s_ds, b_dv, is_async=True)
    b_dv = warpgroup_mma(k_low, s_ds, b_dv, is_async=True)
    b_dr, b_dk, b_dv, k_high, k_low, p_high, p_low = warpgroup_mma_wait(
        0, deps=(b_dr, b_dk, b_dv, k_high, k_low, p_high, p_low)
    )
    barrier()

    s_v.store(rounded(b_dv))
    b_b = both_pieces(s_k_high, s_k_low, TILES) * b_dk
    b_a = both_pieces(s_r_high, s_r_low, TILES) * b_dr
    b_first, b_second = s_first.load(COLUMNS)[None, :], s_second.load(COLUMNS)[None, :]
    b_dw = gl.where(row < C // 2, b_first, b_second) - b_b
    high, b_rest = cut(b_a - b_b)
    middle, low = in_two(b_rest)
    s_high, s_middle, s_low = s_s, s_ds, s_do
    s_high.store(high)
    s_middle.store(middle)
    s_low.store(low)
    h_r, h_k = s_r.load(TILES), s_k.load(TILES)
    fence_async_shared()
    barrier()
    if whole:
        tma.async_copy_shared_to_global(dv, at, s_v)
    b_dw = warpgroup_mma(s_later, s_low, b_dw, is_async=True)
    b_dw = warpgroup_mma(s_later, s_middle, b_dw, is_async=True)
    b_dw = warpgroup_mma(s_later, s_high, b_dw, is_async=True)
    b_r, b_k = widened(h_r), widened(h_k)
    if SCALED:
        b_r *= scale
    s_sums.store(folded(b_r * b_k * b_diagonal))
    b_bonus = s_u.load(COLUMNS)[None, :] * b_diagonal
    b_dr = b_dr * b_er + b_bonus * b_k
    b_dk = b_dk * b_ek + b_bonus * b_r
    if SCALED:
        b_dr *= scale
    s_r.store(rounded(b_dr))
    s_k.store(rounded(b_dk))
    b_dw = warpgroup_mma_wait(0, deps=(b_dw,))
    if RAW:
        b_dw *= b_w
    s_w.store(rounded(b_dw))
    fence_async_shared()
    barrier()
    if whole:
        tma.async_copy_shared_to_global(dr, at, s_r)
        tma.async_copy_shared_to_global(dk, at, s_k)
        tma.async_copy_shared_to_global(dw, at, s_w)
    else:
        o_t = (first.to(gl.int64) * H + i_h) * C + row * (H * C) + col
        gl.store(dv_rows + o_t, s_v.load(TILES), row < n)
        gl.store(dr_rows + o_t, s_r.load(TILES), row < n)
        gl.store(dk_rows + o_t, s_k.load(TILES), row < n)
        gl.store(dw_rows + o_t, s_w.load(TILES), row < n)
    b_du = gl.sum(s_sums.slice(0, 16, 0).load(ALONG), 0)
    b_du += gl.sum(s_sums.slice(16, 16, 0).load(ALONG), 0)
    gl.store(du + (slot * H + i_h).to(gl.int64) * C + gl.arange(0, C, KEYS), b_du)
    tma.store_wait(0)
