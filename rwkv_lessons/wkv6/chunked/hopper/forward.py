"""The kernel of ../forward.py once more, in Gluon, for Hopper and bfloat16 heads of 64.

Triton waits for each of the eleven products of a chunk before it starts the next. Here they start
as soon as their operands are there, and a chunk waits three times:

    sums of decays         →  r and k decayed to the chunk's end, in two bfloat16 pieces each
    r kᵀ, r S, S + kᵀ v    →  the scores, in one; the bonus on their diagonal
    scores v               →  o

A left factor stays in registers, if it can. What else a product reads goes through shared memory,
into tiles whose tokens are in registers by then. The tensor memory accelerator brings the next
chunk meanwhile, and stores o and the states; Triton adds barriers where threads share a tile.
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
from ..checkpoints import first_checkpoint, place, sequence_bounds
NEAR_DECAY = gl.constexpr(8.625)
from ..tiles import FITS_TO_END, LOG2E, MIN_LOG_DECAY
from .tiles import (
    TILE,
    C,
    as_left_operand,
    at_least,
    barrier,
    below_and_on_diagonal,
    below_diagonal,
    chosen,
    late,
    expect_tile,
    in_two,
    product_of,
    rounded,
    widened,
)


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span", "scale"])
def wkv6_hopper_kernel(
    r, k, v, w, u, s0, cu_seqlens, segment_states, segment_decays, o, o_rows, s1, checkpoints,
    handed, done, has_s0, T, H, segments, span, scale,
    STRONG: gl.constexpr, CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w and o are descriptors of [tokens, H·64], kept and before of [states·64, 64].

    o_rows is o again, for a last chunk that is not whole. The rest is as in ../forward.py.
    """
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    i_n, i_g, i_h, _ = place(gl.program_id(0), segments, H, 64, 64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    slot = (first_checkpoint(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT).to(
        gl.int32
    )

    o_s = gl.arange(0, C, ROWS)[:, None] * C + gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    t = 0
    if STRONG:
        t = gl.load(done + gl.program_id(0))
        if t >= n:
            return

    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    if not STRONG:
        s_log = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    if not STRONG:
        s_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    if not STRONG:
        s_state = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    if STRONG:
        p_half = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        p_near = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        p_log = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        p_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        p_state = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        p_more = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        s_mask = p_half.index(0)._reinterpret(gl.int16, [C, C], TILE)
    else:
        s_mask = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
    if not STRONG and checkpoints is not None:
        s_middle = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    BARS: gl.constexpr = mbarrier.MBarrierLayout()
    r_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    k_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    v_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    w_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    for stage in gl.static_range(2):
        mbarrier.init(r_ready.index(stage), count=1)
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(w_ready.index(stage), count=1)
    fence_async_shared()
    barrier()
    for stage in gl.static_range(2):
        expect_tile(r_ready.index(stage), t + stage * C < n)
        expect_tile(k_ready.index(stage), t + stage * C < n)
        expect_tile(v_ready.index(stage), t + stage * C < n)
        expect_tile(w_ready.index(stage), t + stage * C < n)
    tma.async_copy_global_to_shared(w, [first + t, i_h * C], w_ready.index(0), s_w.index(0), pred=t < n)
    tma.async_copy_global_to_shared(r, [first + t, i_h * C], r_ready.index(0), s_r.index(0), pred=t < n)
    tma.async_copy_global_to_shared(k, [first + t, i_h * C], k_ready.index(0), s_k.index(0), pred=t < n)
    tma.async_copy_global_to_shared(v, [first + t, i_h * C], v_ready.index(0), s_v.index(0), pred=t < n)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    # Weights of sums of decays, before a token; transposed, after it. It is the scores' mask, too.
    if not STRONG:
        s_mask.store(below_diagonal(row, col))
    s_before = s_mask._reinterpret(gl.bfloat16, [C, C], TILE)
    if STRONG:
        s_near = p_near.index(0)
    else:
        s_near = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    if STRONG:
        same, middle = row // 16 == col // 16, row // 16 * 16 + 8
        is_since, is_until = same & (col >= middle) & (col < row), same & (col < middle) & (col >= row)
        near = gl.where(is_since, 0x3F80, gl.where(is_until, -0x4080, 0))
        s_mask.store(gl.where((row // 32 == col // 32) & (col < row), 0x3F80, gl.where(col == row, -0x8000, 0)).to(gl.int16))
    else:
        near = gl.where(row < 0, 0x3F80, 0) + col * 0
    # At the middle is none: such rows sum all of a chunk, its second half, its first.
    near = gl.where((row == 8) | ((row == 24) & (col >= C // 2)) | ((row == 40) & (col < C // 2)), 0x3F80, near)
    s_near._reinterpret(gl.int16, [C, C], TILE).store(near.to(gl.int16))
    for_total = s_near.slice(8, 8, 0).permute((1, 0))
    for_second = s_near.slice(24, 8, 0).permute((1, 0))
    for_first = s_near.slice(40, 8, 0).permute((1, 0))
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] == 0
    b_u = gl.load(u + i_h * C + col).to(gl.float32)
    i_s = (i_n * H + i_h) * C * C
    if STRONG:
        b_s = gl.load(handed + gl.program_id(0).to(gl.int64) * (C * C) + o_s)
    else:
        b_s = gl.load(s0 + i_s + o_s, (row >= 0) & (has_s0 != 0), 0.0).to(gl.float32)
    if segment_states is not None and not STRONG:
        for g in range(0, i_g):
            part = (i_n * (segments - 1) + g) * H + i_h
            b_decay = gl.exp2(gl.load(segment_decays + part * C + gl.arange(0, C, ROWS)))
            b_s = b_s * b_decay[:, None] + gl.load(segment_states + part * C * C + o_s)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    if STRONG:
        FEW: gl.constexpr = product_of(16)
        few_zeros = gl.full([C, 16], 0.0, gl.float32, FEW)
        few_row = gl.arange(0, C, gl.SliceLayout(1, FEW))[:, None]
        is_late = gl.where(row < C // 2, 0, -1).to(gl.int16)
        even = gl.where(row // 16 % 2 == 0, -1, 0).to(gl.int16)
        at_middle = gl.where((row == 8) | (row == 24) | (row == 40), 0.0, LOG2E)

    barrier()
    first_t, stop = t, n
    if STRONG:
        while t < n:
            z = t // 2**30  # 0: addresses that a loop keeps would fill registers
            s_half, s_weights = p_half.index(z), p_near.index(z)
            s_log, s_low, s_state, s_more = p_log.index(z), p_low.index(z), p_state.index(z), p_more.index(z)
            to_first, to_second = s_weights.slice(40, 8, 0).permute((1, 0)), s_weights.slice(24, 8, 0).permute((1, 0))
            s_below = s_half._reinterpret(gl.int16, [C, C], TILE)
            i = (t - first_t) // C % 2
            phase = (t - first_t) // C // 2 % 2
            mbarrier.wait(w_ready.index(i), phase)
            mbarrier.wait(r_ready.index(i), phase)
            mbarrier.wait(k_ready.index(i), phase)
            mbarrier.wait(v_ready.index(i), phase)
            whole = t + C <= n
            tma.store_wait(0)
            h_r = s_r.index(i).load(TILES)
            h_k = s_k.index(i).load(TILES)
            h_w = s_w.index(i).load(TILES)
            if not whole:  # what follows are other tokens, or zeros
                h_k = gl.where(row < n - t, h_k, 0.0).to(gl.bfloat16)
                b_v = s_v.index(i).load(TILES)
                s_v.index(i).store(gl.where(row < n - t, b_v, 0.0).to(gl.bfloat16))
            if RAW:
                b_w = -gl.exp2(widened(h_w) * LOG2E)
                b_w = gl.where(row < n - t, b_w, 0.0)
                b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
                high, low = in_two(b_w)
                s_log.store(high)
                s_low.store(low)
                high, low = in_two(gl.maximum(b_w, -NEAR_DECAY, propagate_nan=tl.PropagateNan.ALL))
                s_w.index(i).store(high)
                s_more.store(low)
            else:
                if not whole:
                    h_w = gl.where(row < n - t, h_w, 0.0).to(gl.bfloat16)
                s_log.store(at_least(h_w, MIN_LOG_DECAY))
                s_w.index(i).store(at_least(h_w, -NEAR_DECAY))
            s_state.store(rounded(b_s))
            fence_async_shared()
            barrier()
            more = t + C < n
            next_at = [first + t + C, i_h * C]
            tma.async_copy_global_to_shared(
                w, next_at, w_ready.index(1 - i), s_w.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                r, next_at, r_ready.index(1 - i), s_r.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                k, next_at, k_ready.index(1 - i), s_k.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                v, next_at, v_ready.index(1 - i), s_v.index(1 - i), pred=more
            )
            expect_tile(r_ready.index(i), t + 2 * C < n)
            expect_tile(k_ready.index(i), t + 2 * C < n)
            expect_tile(v_ready.index(i), t + 2 * C < n)
            expect_tile(w_ready.index(i), t + 2 * C < n)
            at_checkpoint = ((slot + t // CHECKPOINT) * H + i_h) * C
            half: gl.constexpr = C // 2
            w_by_key, near_w = s_log.permute((1, 0)), s_w.index(i)
            until = s_half.permute((1, 0))
            b_y = warpgroup_mma(until, s_log, zeros, use_acc=False, is_async=True)
            b_16 = warpgroup_mma(s_half.slice(0, 16, 0).permute((1, 0)), s_log.slice(0, 16, 0), zeros, use_acc=False, is_async=True)
            b_16 = warpgroup_mma(s_half.slice(16, 16, 1), s_log.slice(16, 16, 0), b_16, is_async=True)
            b_16 = warpgroup_mma(s_half.slice(32, 16, 0).permute((1, 0)), s_log.slice(32, 16, 0), b_16, is_async=True)
            b_16 = warpgroup_mma(s_half.slice(48, 16, 1), s_log.slice(48, 16, 0), b_16, is_async=True)
            b_x = warpgroup_mma(s_half, s_log, zeros, use_acc=False, is_async=True)
            b_first = warpgroup_mma(w_by_key, to_first, no_sums, use_acc=False, is_async=True)
            b_second = warpgroup_mma(w_by_key, to_second, no_sums, use_acc=False, is_async=True)
            if RAW:
                low_by_key = s_low.permute((1, 0))
                b_y = warpgroup_mma(until, s_low, b_y, is_async=True)
                b_x = warpgroup_mma(s_half, s_low, b_x, is_async=True)
                b_16 = warpgroup_mma(s_half.slice(0, 16, 0).permute((1, 0)), s_low.slice(0, 16, 0), b_16, is_async=True)
                b_16 = warpgroup_mma(s_half.slice(16, 16, 1), s_low.slice(16, 16, 0), b_16, is_async=True)
                b_16 = warpgroup_mma(s_half.slice(32, 16, 0).permute((1, 0)), s_low.slice(32, 16, 0), b_16, is_async=True)
                b_16 = warpgroup_mma(s_half.slice(48, 16, 1), s_low.slice(48, 16, 0), b_16, is_async=True)
                b_first = warpgroup_mma(low_by_key, to_first, b_first, is_async=True)
                b_second = warpgroup_mma(low_by_key, to_second, b_second, is_async=True)
                b_near = warpgroup_mma(s_weights, near_w, zeros, use_acc=False, is_async=True)
                b_near = warpgroup_mma(s_weights, s_more, b_near, is_async=True)
                b_near = warpgroup_mma_wait(0, deps=(b_near,))
                near_low = s_more.load(TILES)
            b_bonus = gl.sum(widened(h_r) * widened(h_k) * b_u, 1)[:, None]
            b_y, b_16, b_x, b_first, b_second = warpgroup_mma_wait(0, deps=(b_y, b_16, b_x, b_first, b_second))
            b_first = gl.convert_layout(gl.sum(gl.where(is_sum, b_first, 0.0), 1) * LOG2E, ROWS)
            b_second = gl.convert_layout(gl.sum(gl.where(is_sum, b_second, 0.0), 1) * LOG2E, ROWS)
            if RAW:
                barrier()
            high, low = in_two(widened(h_k) * gl.exp2(b_y * LOG2E))
            k_high, k_low, b_v = s_r.index(i), s_k.index(i), s_v.index(i)
            k_high.store(high)
            k_low.store(low)
            high, low = in_two(widened(chosen(h_k, h_r, even)) * gl.exp2(b_16 * LOG2E))
            s_more.store(high)
            s_low.store(low)
            fence_async_shared()
            barrier()
            first_v, last_v = b_v.slice(0, half, 0), b_v.slice(half, half, 0)
            b_s *= gl.exp2(b_first)[:, None]
            b_s = warpgroup_mma(k_high.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True)
            b_s = warpgroup_mma(k_low.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True)
            if not RAW:
                b_near = warpgroup_mma(s_weights, near_w, zeros, use_acc=False, is_async=True)
            keys, low_keys = s_more.slice(0, 16, 0).permute((1, 0)), s_low.slice(0, 16, 0).permute((1, 0))
            a_1 = warpgroup_mma(s_more, keys, few_zeros, use_acc=False, is_async=True)
            a_1 = warpgroup_mma(s_low, keys, a_1, is_async=True)
            a_1 = warpgroup_mma(s_more, low_keys, a_1, is_async=True)
            keys, low_keys = s_more.slice(half, 16, 0).permute((1, 0)), s_low.slice(half, 16, 0).permute((1, 0))
            a_3 = warpgroup_mma(s_more, keys, few_zeros, use_acc=False, is_async=True)
            a_3 = warpgroup_mma(s_low, keys, a_3, is_async=True)
            a_3 = warpgroup_mma(s_more, low_keys, a_3, is_async=True)
            r_high, r_low = in_two(widened(h_r) * gl.exp2(b_x * LOG2E))
            left_high, left_low = as_left_operand(r_high), as_left_operand(r_low)
            b_o = warpgroup_mma(left_high, s_state, zeros, use_acc=False, is_async=True)
            b_o = warpgroup_mma(left_low, s_state, b_o, is_async=True)
            if checkpoints is not None:
                tma.async_copy_shared_to_global(checkpoints, [at_checkpoint, 0], s_state)
            if RAW:
                b_s, a_1, a_3 = warpgroup_mma_wait(2, deps=(b_s, a_1, a_3))
                b_w = widened(near_w.load(TILES)) + widened(near_low)
            else:
                b_near, b_s, a_1, a_3 = warpgroup_mma_wait(2, deps=(b_near, b_s, a_1, a_3))
                b_w = widened(near_w.load(TILES))
            a_1 = rounded(gl.where(few_row // 16 == 1, a_1, 0.0))
            a_3 = rounded(gl.where(few_row // 16 == 3, a_3, 0.0))
            b_near *= at_middle
            near_high, near_low_r = in_two(widened(h_r) * gl.exp2(b_near))
            near_high, near_low_r = as_left_operand(near_high), as_left_operand(near_low_r)
            high, low = in_two(widened(h_k) * gl.exp2(-b_near - b_w * LOG2E))
            b_o, left_high, left_low = warpgroup_mma_wait(0, deps=(b_o, left_high, left_low))
            b_o = gl.where(row < half, b_o, 0.0)
            tma.store_wait(0)
            barrier()
            s_log.store(high)
            s_w.index(i).store(low)
            s_state.store(rounded(b_s))
            fence_async_shared()
            barrier()
            b_a = warpgroup_mma(near_high, s_log.permute((1, 0)), zeros, use_acc=False, is_async=True)
            b_a = warpgroup_mma(near_low_r, s_log.permute((1, 0)), b_a, is_async=True)
            b_a = warpgroup_mma(near_high, s_w.index(i).permute((1, 0)), b_a, is_async=True)
            if checkpoints is not None:
                if t + C // 2 < n:
                    tma.async_copy_shared_to_global(checkpoints, [at_checkpoint + H * C, 0], s_state)
            left_high, left_low = as_left_operand(late(r_high, is_late)), as_left_operand(late(r_low, is_late))
            b_o = warpgroup_mma(left_high, s_state, b_o, is_async=True)
            b_o = warpgroup_mma(left_low, s_state, b_o, is_async=True)
            left_1, left_3 = as_left_operand(a_1), as_left_operand(a_3)
            b_o = warpgroup_mma(left_1, b_v.slice(0, 16, 0), b_o, is_async=True)
            b_o = warpgroup_mma(left_3, b_v.slice(half, 16, 0), b_o, is_async=True)
            b_s *= gl.exp2(b_second)[:, None]
            b_s = warpgroup_mma(k_high.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True)
            b_s = warpgroup_mma(k_low.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True)
            b_a, near_high, near_low_r = warpgroup_mma_wait(6, deps=(b_a, near_high, near_low_r))
            b_a = gl.where(row // 16 == col // 16, b_a, 0.0)
            b_a = as_left_operand(
                below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_below.load(TILES))
            )
            b_o = warpgroup_mma(b_a, b_v, b_o, is_async=True)
            b_o, b_s, b_a, left_high, left_low, left_1, left_3 = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, left_high, left_low, left_1, left_3))
            if SCALED:
                b_o *= scale
            barrier()
            s_r.index(i).store(rounded(b_o))
            fence_async_shared()
            barrier()
            if whole:
                tma.async_copy_shared_to_global(o, [first + t, i_h * C], s_r.index(i))
            else:
                at = (start + skipped + t) * H + i_h
                gl.store(o_rows + at * C + row * (H * C) + col, b_o.to(gl.bfloat16), row < n - t)
            t += C
    else:
        while t < stop:
            i = (t - first_t) // C % 2
            phase = (t - first_t) // C // 2 % 2
            mbarrier.wait(w_ready.index(i), phase)
            mbarrier.wait(r_ready.index(i), phase)
            mbarrier.wait(k_ready.index(i), phase)
            mbarrier.wait(v_ready.index(i), phase)
            whole = t + C <= n
            b_w = s_w.index(i).load(TILES)
            b_r = s_r.index(i).load(TILES)
            b_k = s_k.index(i).load(TILES)
            if RAW:
                b_w = -gl.exp2(b_w.to(gl.float32) * LOG2E)
            if not whole:  # what follows are other tokens, or zeros
                b_w = gl.where(row < n - t, b_w, 0.0)
                b_v = s_v.index(i).load(TILES)
                s_v.index(i).store(gl.where(row < n - t, b_v, 0.0))
            if RAW:
                b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
                high, low = in_two(b_w)
                s_log.store(high)
                s_low.store(low)
            else:
                b_w = at_least(b_w.to(gl.bfloat16), MIN_LOG_DECAY)
                s_log.store(b_w)
                b_w = widened(b_w)
            fence_async_shared()
            more = t + C < n
            tma.store_wait(0)
            next_at = [first + t + C, i_h * C]
            tma.async_copy_global_to_shared(
                w, next_at, w_ready.index(1 - i), s_w.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                r, next_at, r_ready.index(1 - i), s_r.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                k, next_at, k_ready.index(1 - i), s_k.index(1 - i), pred=more
            )
            tma.async_copy_global_to_shared(
                v, next_at, v_ready.index(1 - i), s_v.index(1 - i), pred=more
            )
            w_by_key = s_log.permute((1, 0))
            b_total = warpgroup_mma(w_by_key, for_total, no_sums, use_acc=False, is_async=True)
            b_after = warpgroup_mma(s_before.permute((1, 0)), s_log, zeros, use_acc=False, is_async=True)
            if checkpoints is not None:
                b_second = warpgroup_mma(w_by_key, for_second, no_sums, use_acc=False, is_async=True)
            if RAW:
                b_total = warpgroup_mma(s_low.permute((1, 0)), for_total, b_total, is_async=True)
                b_after = warpgroup_mma(s_before.permute((1, 0)), s_low, b_after, is_async=True)
                if checkpoints is not None:
                    w_low = s_low.permute((1, 0))
                    b_second = warpgroup_mma(w_low, for_second, b_second, is_async=True)
            b_r = widened(b_r)
            b_k = widened(b_k)
            if not whole:
                b_k = gl.where(row < n - t, b_k, 0.0)
            b_bonus = (gl.sum(b_r * b_k * b_u, 1) * scale)[:, None]
            if checkpoints is None:
                b_total, b_after = warpgroup_mma_wait(0, deps=(b_total, b_after))
            else:
                b_total, b_after, b_second = warpgroup_mma_wait(0, deps=(b_total, b_after, b_second))
                b_second = gl.sum(gl.where(is_sum, b_second, 0.0), 1) * LOG2E
                b_second = gl.convert_layout(b_second, ROWS)
            b_total = gl.sum(gl.where(is_sum, b_total, 0.0), 1) * LOG2E
            b_total = gl.convert_layout(b_total, ROWS)
            if gl.max(gl.where(b_total >= -FITS_TO_END, 0, 1), 0) != 0:  # NaN is
                stop = t
            else:
                b_after *= LOG2E
                b_k *= gl.exp2(b_after)
                b_r *= gl.exp2(-b_after - b_w * LOG2E)
                if SCALED:
                    b_r *= scale
                high, low = in_two(b_k)
                k_high = s_k.index(i)
                k_low, b_v = s_low, s_v.index(i)
                k_high.store(high)
                k_low.store(low)
                r_high, r_low = in_two(b_r)
                r_high, r_low = as_left_operand(r_high), as_left_operand(r_low)
                if checkpoints is not None:
                    s_w.index(i).store(rounded(b_s))
                b_s *= gl.exp2(b_total)[:, None]
                s_state.store(rounded(b_s))
                fence_async_shared()
                barrier()
                expect_tile(r_ready.index(i), t + 2 * C < n)
                expect_tile(k_ready.index(i), t + 2 * C < n)
                expect_tile(v_ready.index(i), t + 2 * C < n)
                expect_tile(w_ready.index(i), t + 2 * C < n)
                b_a = warpgroup_mma(r_high, k_high.permute((1, 0)), zeros, use_acc=False, is_async=True)
                b_a = warpgroup_mma(r_low, k_high.permute((1, 0)), b_a, is_async=True)
                b_a = warpgroup_mma(r_high, k_low.permute((1, 0)), b_a, is_async=True)
                b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
                b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
                if checkpoints is None:
                    b_s = warpgroup_mma(k_high.permute((1, 0)), b_v, b_s, is_async=True)
                    b_s = warpgroup_mma(k_low.permute((1, 0)), b_v, b_s, is_async=True)
                else:  # one more checkpoint, in the middle of the chunk
                    at_checkpoint = ((slot + t // CHECKPOINT) * H + i_h) * C
                    tma.async_copy_shared_to_global(checkpoints, [at_checkpoint, 0], s_w.index(i))
                    half: gl.constexpr = C // 2
                    first_v = b_v.slice(0, half, 0)
                    b_s = warpgroup_mma(
                        k_high.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
                    )
                    b_s = warpgroup_mma(
                        k_low.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
                    )
                b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))
                b_a = as_left_operand(
                    below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_mask.load(TILES))
                )
                b_o = warpgroup_mma(b_a, b_v, b_o, is_async=True)
                if checkpoints is not None:
                    b_s = warpgroup_mma_wait(1, deps=(b_s,))
                    s_middle.store(rounded(b_s * gl.exp2(-b_second)[:, None]))
                    last_v = b_v.slice(half, half, 0)
                    b_s = warpgroup_mma(
                        k_high.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True
                    )
                    b_s = warpgroup_mma(
                        k_low.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True
                    )
                b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))
                s_r.index(i).store(rounded(b_o))
                fence_async_shared()
                barrier()
                if whole:
                    tma.async_copy_shared_to_global(o, [first + t, i_h * C], s_r.index(i))
                else:
                    at = (start + skipped + t) * H + i_h
                    gl.store(o_rows + at * C + row * (H * C) + col, b_o.to(gl.bfloat16), row < n - t)
                if checkpoints is not None:
                    if t + C // 2 < n:
                        tma.async_copy_shared_to_global(checkpoints, [at_checkpoint + H * C, 0], s_middle)

                t += C
    if t < n:
        i = (t - first_t) // C % 2
        if t + C < n:  # loads that nobody needs
            phase = (t + C - first_t) // C // 2 % 2
            mbarrier.wait(w_ready.index(1 - i), phase)
            mbarrier.wait(r_ready.index(1 - i), phase)
            mbarrier.wait(k_ready.index(1 - i), phase)
            mbarrier.wait(v_ready.index(1 - i), phase)
        gl.store(handed + gl.program_id(0).to(gl.int64) * (C * C) + o_s, b_s)
    gl.store(done + gl.program_id(0), t)
    tma.store_wait(0)
    is_last = i_g == gl.maximum(gl.cdiv(end - start, span) - 1, 0)
    gl.store(s1 + i_s + o_s, b_s, (row >= 0) & is_last & (t >= n))
