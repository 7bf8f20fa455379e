"""The second pass of the chunked gradients in Gluon, for bfloat16 heads of 64 on Hopper.

A program takes the 32 tokens after a checkpoint, with any decays, and gives dr, dk, dv, dw and du.
All tiles are transposed, 64 keys × 32 tokens: sums over tokens then take their left factor from the
registers in which it was computed, numbers of a key are two a thread, and half of a chunk is half
of a thread's columns. With m the sums of log decays from the middle of a run of tokens to just
before one, p those from the run's start, q those to its end, and S, dS the states around the chunk:

    G = do vᵀ, S do, dS v                            what tokens ask of each other and of states
    k 2^(-m-w), r 2^m through G inside of a run      split at its middle
    k 2^q, r 2^p through G between two runs          factors of at most 1

A chunk whose halves fit is one run. Any other is two of 16 tokens, in which a log decay of less
than LEAST counts as LEAST: 2^-11, and eight of them in a row fit float32. What should have passed
such a token is less than 2^-11 of what need not pass it, and dw of the token, of which all has
passed it, gets the factor that was left out.

What passes a token inside of a run is a difference of running sums of r dr and k dk, made of the
very same pieces, so that what does not pass cancels; in a strong chunk, what passes between states
and runs is a sum, in which nothing has to cancel.

It reads r, k, v, w, do and, as much as two each, the states, and writes four: 13 tensors of the
size of r. Three programs on an SM, of 168 registers, wait in turns: 12 waits each.
"""

import functools

import torch
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
from ..checkpoints import CHECKPOINT, bounds_of_chunk
from ..tiles import FITS, LOG2E, MIN_LOG_DECAY
from .tiles import (
    TILE,
    C,
    above_in_two,
    as_left_operand,
    at_least,
    barrier,
    below_in_two,
    cut,
    in_two,
    product_of,
    rounded,
    widened,
)

T32 = gl.constexpr(CHECKPOINT)  # tokens of a program
LEAST = gl.constexpr(-7.625)  # a log decay that bfloat16 holds, 2^-11
PAIRS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))  # rows of 32 numbers


@functools.cache
def weights_and_masks(device):
    """What sums and masks take: int16, for chunks that fit and then for those in two runs.

    Each has three times 32 · 32 and once 64 · 32 on end. In bfloat16, weights [i, t] of token i in
    sums for token t of its run: the tokens before t; from the run's middle to just before t; and
    from just after t to the middle. Then the mask of pairs between the runs, [t, s], and inside of
    them, [s, t] for G and [t, s] for the scores: in the lower byte the sign bit for G, in the upper
    for the scores. A chunk that fits is one run.
    """
    i, t = torch.arange(32)[:, None], torch.arange(32)[None, :]
    found = []
    for run in (32, 16):
        same, late = (i ^ t) < run, i % run >= run // 2
        from_middle = (same & late & (i < t)).int() - (same & ~late & (i >= t)).int()
        weights = [same & (i < t), from_middle, -from_middle - (i == t).int()]
        between = (~same & (t < i)).int() * -0x7F80
        inside = (same & (i < t)).int() * 0x80 + (same & (t < i)).int() * -0x8000
        found += [torch.stack(weights).bfloat16().view(torch.int16), between.short()]
        found.append(inside.short())
    return torch.cat([x.flatten() for x in found]).to(device)


@gluon.jit
def new_barrier():
    """A barrier in shared memory for tiles that come together."""
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    return ready


@gluon.jit
def clear_after(s_x, n, value, LAYOUT: gl.constexpr):
    """Sets the rows from n on, which are other sequences' tokens."""
    row = gl.arange(0, T32, gl.SliceLayout(1, LAYOUT))[:, None]
    b_x = s_x.load(LAYOUT)
    s_x.store(gl.where(row < n, b_x, value).to(gl.bfloat16))


@gluon.jit
def by_three(b_x):
    """A float32 tile as three of bfloat16, left factors that hold all of it."""
    high, b_rest = cut(b_x)
    middle, low = in_two(b_rest)
    return as_left_operand(high), as_left_operand(middle), as_left_operand(low)


@gluon.jit
def by_two(b_x):
    """A float32 tile as two of bfloat16, left factors."""
    high, low = in_two(b_x)
    return as_left_operand(high), as_left_operand(low)


@gluon.jit
def both_pieces(s_high, s_low, LAYOUT: gl.constexpr):
    """A tile's numbers, of tokens × keys in two pieces, as keys × tokens."""
    high, low = s_high.permute((1, 0)).load(LAYOUT), s_low.permute((1, 0)).load(LAYOUT)
    return widened(high) + widened(low)


@gluon.jit
def now(x):
    """x, computed where this stands, and not just before its use.

    LLVM would put it there: with all operands of a sum kept until then; or after the fence before a
    product that adds to x, and ptxas then waits after every single product.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $2; mov.b32 $1, $3;", "=f,=f,f,f", [x], gl.float32, is_pure=False, pack=2
    )


@gluon.jit
def log_decays(s_w, RAW: gl.constexpr, LAYOUT: gl.constexpr):
    """The log decays of a chunk, in float32."""
    b_w = widened(s_w.permute((1, 0)).load(LAYOUT))
    if RAW:
        return gl.maximum(-gl.exp2(b_w * LOG2E), MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
    else:
        return b_w


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale"])
def pairs_hopper_kernel(
    r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, chunk_bounds, weights, do,
    dr, dk, dv, dw, dr_rows, dk_rows, dv_rows, dw_rows, du, T, H, scale,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, do, dr, dk, dv, dw are descriptors of [tokens, H·64], checkpoints of states.

    weights: `weights_and_masks`. dr_rows, … are the results again, for a chunk that is not whole.
    """
    TILES: gl.constexpr = product_of(32)  # [keys, tokens]
    KEYS: gl.constexpr = gl.SliceLayout(1, TILES)
    TOKENS: gl.constexpr = gl.SliceLayout(0, TILES)
    ROWS: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])  # [tokens, keys]
    SMALL: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    i_h, i_c, i_n = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    slot = i_n * gl.num_programs(1) + i_c
    if chunk_bounds is not None:
        first, end = bounds_of_chunk(chunk_bounds, slot, T, T32)
        n = (end - first).to(gl.int32)  # tokens from here to the end of the sequence
        first = first.to(gl.int32)
        if n <= 0:  # packed sequences leave slots unused
            return
    else:
        first, n = i_n * T + i_c * T32, T - i_c * T32
    whole = n >= T32

    s_w = gl.allocate_shared_memory(gl.bfloat16, [T32, C], TILE)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [T32, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [T32, C], TILE)
    s_do_v = gl.allocate_shared_memory(gl.bfloat16, [2, T32, C], TILE)
    s_do, s_v = s_do_v.index(0), s_do_v.index(1)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    ready = new_barrier()
    fence_async_shared()
    barrier()
    ROWS_BYTES: gl.constexpr = T32 * C * 2
    mbarrier.expect(ready, 5 * ROWS_BYTES + 2 * C * C * 2)
    at = [first, i_h * C]
    at_state = [(slot * H + i_h) * C, 0]
    tma.async_copy_global_to_shared(w, at, ready, s_w)
    tma.async_copy_global_to_shared(do, at, ready, s_do)
    tma.async_copy_global_to_shared(v, at, ready, s_v)
    tma.async_copy_global_to_shared(r, at, ready, s_r)
    tma.async_copy_global_to_shared(k, at, ready, s_k)
    tma.async_copy_global_to_shared(checkpoints, at_state, ready, s_s)
    tma.async_copy_global_to_shared(d_checkpoints, at_state, ready, s_ds)
    barrier()  # else ptxas has the copies wait for what is loaded next

    # Of each key a number, two a thread.
    o_k = gl.arange(0, C, KEYS)
    at_k = (slot * H + i_h).to(gl.int64) * C + o_k
    at_w = (slot * H + i_h).to(gl.int64) * (2 * C) + o_k
    b_early = gl.load(decays + at_w)
    b_late = gl.load(decays + at_w + C)
    b_across = gl.load(dw_across_chunk + at_k)
    b_u = gl.load(u + i_h * C + o_k).to(gl.float32)
    FEW: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])  # each warp holds all 64
    o_few = (slot * H + i_h).to(gl.int64) * (2 * C) + gl.arange(0, C, FEW)
    b_halves = gl.minimum(
        gl.load(decays + o_few), gl.load(decays + o_few + C), propagate_nan=tl.PropagateNan.ALL
    )
    fits = whole & (gl.min(b_halves, 0) >= -FITS)  # NaN does not
    weights += gl.where(fits, 0, 5 * T32 * T32)
    least = gl.where(fits, MIN_LOG_DECAY, LEAST)
    u_of_rows = gl.load(u + i_h * C + gl.arange(0, C, gl.SliceLayout(0, ROWS))).to(gl.float32)

    s_before = gl.allocate_shared_memory(gl.int16, [T32, T32], PAIRS)
    s_middle = gl.allocate_shared_memory(gl.int16, [T32, T32], PAIRS)
    s_later = gl.allocate_shared_memory(gl.int16, [T32, T32], PAIRS)
    s_mask = gl.allocate_shared_memory(gl.int16, [C, T32], PAIRS)
    i = gl.arange(0, T32, gl.SliceLayout(1, SMALL))[:, None]
    t = gl.arange(0, T32, gl.SliceLayout(0, SMALL))[None, :]
    i_mask = gl.arange(0, C, gl.SliceLayout(1, SMALL))[:, None]
    s_before.store(gl.load(weights + i * T32 + t))
    s_middle.store(gl.load(weights + T32 * T32 + i * T32 + t))
    s_later.store(gl.load(weights + 2 * T32 * T32 + i * T32 + t))
    s_mask.store(gl.load(weights + 3 * T32 * T32 + i_mask * T32 + t))
    before = s_before._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
    middle = s_middle._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
    later = s_later._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
    after = before.permute((1, 0))

    # r 2^p above k 2^q, and k 2^(-m-w) above r 2^m; all but r 2^p in two pieces.
    s_pq_high = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_kq_low = gl.allocate_shared_memory(gl.bfloat16, [T32, C], TILE)
    s_mm_high, s_mm_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE), s_s
    s_rp, s_kq_high = s_pq_high.slice(0, T32, 0), s_pq_high.slice(T32, T32, 0)
    s_km_high, s_km_low = s_mm_high.slice(0, T32, 0), s_mm_low.slice(0, T32, 0)
    s_rm_high, s_rm_low = s_mm_high.slice(T32, T32, 0), s_mm_low.slice(T32, T32, 0)
    s_g_high = gl.allocate_shared_memory(gl.bfloat16, [C, T32], PAIRS)
    s_g_low = gl.allocate_shared_memory(gl.bfloat16, [C, T32], PAIRS)
    s_diagonal = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    s_self = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    row = gl.arange(0, C, KEYS)[:, None]
    col = gl.arange(0, T32, TOKENS)[None, :]
    is_left = col < T32 // 2
    zeros = gl.full([C, T32], 0.0, gl.float32, TILES)

    mbarrier.wait(ready, 0)
    if not whole:
        clear_after(s_w, n, float("-inf") if RAW else 0.0, ROWS)
        clear_after(s_do, n, 0.0, ROWS)
        clear_after(s_v, n, 0.0, ROWS)
        clear_after(s_r, n, 0.0, ROWS)
        clear_after(s_k, n, 0.0, ROWS)
    if RAW:
        b_weak = log_decays(s_w, RAW, TILES)
        b_weak = gl.maximum(b_weak, least, propagate_nan=tl.PropagateNan.ALL)
        weak_high, weak_low = by_two(b_weak)
    else:
        weak_high = as_left_operand(at_least(s_w.permute((1, 0)).load(TILES), least))
    fence_async_shared()
    barrier()
    b_er = warpgroup_mma(weak_high, middle, zeros, use_acc=False, is_async=True)
    b_ek = warpgroup_mma(weak_high, later, zeros, use_acc=False, is_async=True)
    if RAW:
        b_er = warpgroup_mma(weak_low, middle, b_er, is_async=True)
        b_ek = warpgroup_mma(weak_low, later, b_ek, is_async=True)
    s_both = s_do_v._reinterpret(gl.bfloat16, [C, C], TILE)
    b_ts = warpgroup_mma(s_both, s_v.permute((1, 0)), zeros, use_acc=False, is_async=True)
    b_st = warpgroup_mma(s_both, s_do.permute((1, 0)), zeros, use_acc=False, is_async=True)

    # Meanwhile do·v and the bonus of each token, a row in four threads.
    s_diagonal.store(gl.sum(widened(s_do.load(ROWS)) * widened(s_v.load(ROWS)), 1))
    itself = gl.sum(widened(s_r.load(ROWS)) * widened(s_k.load(ROWS)) * u_of_rows[None, :], 1)
    if SCALED:
        itself *= scale
    s_self.store(itself)
    if RAW:
        b_er, b_ek, b_ts, b_st, weak_high, weak_low = warpgroup_mma_wait(
            0, deps=(b_er, b_ek, b_ts, b_st, weak_high, weak_low)
        )
    else:
        b_er, b_ek, b_ts, b_st, weak_high = warpgroup_mma_wait(
            0, deps=(b_er, b_ek, b_ts, b_st, weak_high)
        )
    b_dr = warpgroup_mma(s_s, s_do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    b_dk = warpgroup_mma(s_ds, s_v.permute((1, 0)), zeros, use_acc=False, is_async=True)

    # G between the runs, [t, s], and below it G inside of them, [s, t].
    high, low = above_in_two(gl.where(row < T32, b_ts, b_st), s_mask.load(TILES))
    s_g_high.store(high)
    s_g_low.store(low)
    b_er = now(gl.exp2(b_er * LOG2E))
    b_ek = now(gl.exp2(b_ek * LOG2E))
    b_r = widened(s_r.permute((1, 0)).load(TILES))
    if SCALED:
        b_r *= scale
    high, low = in_two(b_r * b_er)
    s_rm_high.permute((1, 0)).store(high)
    b_dr, b_dk = warpgroup_mma_wait(0, deps=(b_dr, b_dk))
    s_rm_low.permute((1, 0)).store(low)  # S has been read, and makes room
    b_k = widened(s_k.permute((1, 0)).load(TILES))
    high, low = in_two(b_k * b_ek)
    s_km_high.permute((1, 0)).store(high)
    s_km_low.permute((1, 0)).store(low)

    b_ry, b_ky, b_pc, b_dw = zeros, zeros, zeros, zeros
    if fits:
        b_late_decay = gl.exp2(b_late)[:, None]
        b_ry = b_dr * gl.exp2(b_early)[:, None]
        b_ky = b_dk * b_late_decay
        b_kq = b_k * b_ek
        of_right = b_across + gl.sum(b_kq * b_ky, 1)
        b_dw = zeros + of_right[:, None]
        high, low = in_two(b_kq * b_late_decay)
        s_kq_high.permute((1, 0)).store(high)
        s_kq_low.permute((1, 0)).store(low)
        b_dr, b_dk = zeros, zeros
    else:
        if RAW:
            w_high, w_low = by_two(log_decays(s_w, RAW, TILES))
        else:
            w_high = as_left_operand(at_least(s_w.permute((1, 0)).load(TILES), MIN_LOG_DECAY))
        b_p = warpgroup_mma(w_high, before, zeros, use_acc=False, is_async=True)
        b_q = warpgroup_mma(w_high, after, zeros, use_acc=False, is_async=True)
        if RAW:
            b_p = warpgroup_mma(w_low, before, b_p, is_async=True)
            b_q = warpgroup_mma(w_low, after, b_q, is_async=True)
            b_p, b_q, w_high, w_low = warpgroup_mma_wait(0, deps=(b_p, b_q, w_high, w_low))
        else:
            b_p, b_q, w_high = warpgroup_mma_wait(0, deps=(b_p, b_q, w_high))
        b_x = now(gl.exp2(b_p * LOG2E))
        b_y = now(gl.exp2(b_q * LOG2E))
        b_r = widened(s_r.permute((1, 0)).load(TILES))
        if SCALED:
            b_r *= scale
        b_rp = b_r * b_x
        s_rp.permute((1, 0)).store(rounded(b_rp))
        b_kq = b_k * b_y
        high, low = in_two(b_kq)
        s_kq_high.permute((1, 0)).store(high)
        s_kq_low.permute((1, 0)).store(low)
        fence_async_shared()
        barrier()
        b_late_decay = gl.exp2(b_late)[:, None]
        b_dr = now(gl.where(is_left, b_dr, b_dr * gl.exp2(b_early)[:, None]))
        b_dk = now(gl.where(is_left, b_dk * b_late_decay, b_dk))
        of_left = b_across + gl.sum(gl.where(is_left, 0.0, b_rp * b_dr), 1)
        of_right = b_across + gl.sum(gl.where(is_left, b_kq * b_dk, 0.0), 1)
        b_dw = now(gl.where(is_left, of_left[:, None], of_right[:, None]))
        g_high, g_low = s_g_high.slice(0, T32, 0), s_g_low.slice(0, T32, 0)
        k_high, k_low = s_kq_high.permute((1, 0)), s_kq_low.permute((1, 0))
        b_dr = warpgroup_mma(k_low, g_high.permute((1, 0)), b_dr, is_async=True)
        b_dr = warpgroup_mma(k_high, g_high.permute((1, 0)), b_dr, is_async=True)
        b_dk = warpgroup_mma(s_rp.permute((1, 0)), g_low, b_dk, is_async=True)
        b_dk = warpgroup_mma(s_rp.permute((1, 0)), g_high, b_dk, is_async=True)
        b_pc = warpgroup_mma(s_pq_high, k_low, zeros, use_acc=False, is_async=True)
        b_pc = warpgroup_mma(s_pq_high, k_high, b_pc, is_async=True)
        high, low = in_two(gl.where(is_left, b_kq * b_late_decay, b_kq))
        b_dr, b_dk, b_pc = warpgroup_mma_wait(0, deps=(b_dr, b_dk, b_pc))
        s_kq_high.permute((1, 0)).store(high)
        s_kq_low.permute((1, 0)).store(low)

        # What passes a token on its way between states and runs.
        b_dr = now(b_dr * b_x)
        b_r = widened(s_r.permute((1, 0)).load(TILES))
        if SCALED:
            b_r *= scale
        a_high, a_low = by_two(b_r * b_dr)
        b_dk = now(b_dk * b_y)
        b_k = widened(s_k.permute((1, 0)).load(TILES))
        b_high, b_low = by_two(b_k * b_dk)
        b_dw = warpgroup_mma(a_low, after, b_dw, is_async=True)
        b_dw = warpgroup_mma(a_high, after, b_dw, is_async=True)
        b_dw = warpgroup_mma(b_low, before, b_dw, is_async=True)
        b_dw = warpgroup_mma(b_high, before, b_dw, is_async=True)
        b_dw, a_high, a_low, b_high, b_low = warpgroup_mma_wait(
            0, deps=(b_dw, a_high, a_low, b_high, b_low)
        )
    b_ry, b_ky = now(b_ry), now(b_ky)
    fence_async_shared()
    barrier()

    # And inside of the runs.
    g_high = s_g_high.slice(T32, T32, 0)
    k_high, k_low = s_km_high.permute((1, 0)), s_km_low.permute((1, 0))
    b_ry = warpgroup_mma(k_low, g_high, b_ry, is_async=True)
    b_ry = warpgroup_mma(k_high, g_high, b_ry, is_async=True)
    g_high = g_high.permute((1, 0))
    r_high, r_low = s_rm_high.permute((1, 0)), s_rm_low.permute((1, 0))
    b_ky = warpgroup_mma(r_low, g_high, b_ky, is_async=True)
    b_ky = warpgroup_mma(r_high, g_high, b_ky, is_async=True)
    b_pd = warpgroup_mma(s_mm_high, k_low, zeros, use_acc=False, is_async=True)
    b_pd = warpgroup_mma(s_mm_high, k_high, b_pd, is_async=True)
    b_ry, b_ky, b_pd = warpgroup_mma_wait(0, deps=(b_ry, b_ky, b_pd))
    b_b = now(both_pieces(s_km_high, s_km_low, TILES) * b_ky)
    b_dk = now(b_dk + b_ek * b_ky)
    b_a = now(both_pieces(s_rm_high, s_rm_low, TILES) * b_ry)
    b_dr = now(b_dr + b_er * b_ry)
    d_high, d_middle, d_low = by_three(b_a - b_b)
    b_passed = warpgroup_mma(d_low, after, zeros, use_acc=False, is_async=True)
    b_passed = warpgroup_mma(d_middle, after, b_passed, is_async=True)
    b_passed = warpgroup_mma(d_high, after, b_passed, is_async=True)

    # Scores between the runs, [t, s], and below them those inside of them.
    high, low = below_in_two(gl.where(row < T32, b_pc, b_pd), s_mask.load(TILES))
    s_g_high.store(high)
    s_g_low.store(low)
    b_passed, d_high, d_middle, d_low = warpgroup_mma_wait(
        0, deps=(b_passed, d_high, d_middle, d_low)
    )
    b_passed -= b_b
    if not fits:
        b_passed *= gl.exp2(gl.minimum((log_decays(s_w, RAW, TILES) - LEAST) * LOG2E, 0.0))
    fence_async_shared()
    barrier()
    of_do, of_ds = s_do.permute((1, 0)), s_ds.permute((1, 0))
    b_dv = warpgroup_mma(of_do, s_g_low.slice(0, T32, 0), zeros, use_acc=False, is_async=True)
    b_dv = warpgroup_mma(of_do, s_g_low.slice(T32, T32, 0), b_dv, is_async=True)
    b_dv = warpgroup_mma(of_do, s_g_high.slice(0, T32, 0), b_dv, is_async=True)
    b_dv = warpgroup_mma(of_do, s_g_high.slice(T32, T32, 0), b_dv, is_async=True)
    b_dv = warpgroup_mma(of_ds, s_kq_low.permute((1, 0)), b_dv, is_async=True)
    b_dv = warpgroup_mma(of_ds, s_kq_high.permute((1, 0)), b_dv, is_async=True)

    b_dw += b_passed
    if RAW:
        b_dw *= log_decays(s_w, RAW, TILES)
    s_w.permute((1, 0)).store(rounded(b_dw))

    b_diagonal = s_diagonal.load(TOKENS)[None, :]
    b_r = widened(s_r.permute((1, 0)).load(TILES))
    b_k = widened(s_k.permute((1, 0)).load(TILES))
    if SCALED:
        b_r *= scale
    gl.store(du + at_k, gl.sum(b_r * b_k * b_diagonal, 1))
    b_bonus = b_u[:, None] * b_diagonal
    b_dr += b_bonus * b_k
    if SCALED:
        b_dr *= scale
    s_r.permute((1, 0)).store(rounded(b_dr))
    b_dk += b_bonus * b_r
    s_k.permute((1, 0)).store(rounded(b_dk))
    b_dv = warpgroup_mma_wait(0, deps=(b_dv,))
    b_dv += widened(s_do.permute((1, 0)).load(TILES)) * s_self.load(TOKENS)[None, :]
    s_v.permute((1, 0)).store(rounded(b_dv))
    fence_async_shared()
    barrier()
    if whole:
        tma.async_copy_shared_to_global(dr, at, s_r)
        tma.async_copy_shared_to_global(dk, at, s_k)
        tma.async_copy_shared_to_global(dw, at, s_w)
        tma.async_copy_shared_to_global(dv, at, s_v)
    else:
        row_t = gl.arange(0, T32, gl.SliceLayout(1, ROWS))[:, None]
        col_k = gl.arange(0, C, gl.SliceLayout(0, ROWS))[None, :]
        o_t = (first.to(gl.int64) * H + i_h) * C + row_t * (H * C) + col_k
        gl.store(dr_rows + o_t, s_r.load(ROWS), row_t < n)
        gl.store(dk_rows + o_t, s_k.load(ROWS), row_t < n)
        gl.store(dw_rows + o_t, s_w.load(ROWS), row_t < n)
        gl.store(dv_rows + o_t, s_v.load(ROWS), row_t < n)
    tma.store_wait(0)
