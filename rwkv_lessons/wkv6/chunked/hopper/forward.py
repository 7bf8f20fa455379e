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
    has_s0, T, H, segments, span, scale,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w and o are descriptors of [tokens, H·64], kept and before of [states·64, 64].

    o_rows is o again, for a last chunk that is not whole. The rest is as in ../forward.py.
    """
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    FEW: gl.constexpr = product_of(16)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    i_n, i_g, i_h, _ = place(gl.program_id(0), segments, H, 64, 64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    slot = (first_checkpoint(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT).to(
        gl.int32
    )

    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_log = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)  # of k
    s_state = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_mask = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
    if checkpoints is not None:
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
        expect_tile(r_ready.index(stage), stage * C < n)
        expect_tile(k_ready.index(stage), stage * C < n)
        expect_tile(v_ready.index(stage), stage * C < n)
        expect_tile(w_ready.index(stage), stage * C < n)
    tma.async_copy_global_to_shared(w, [first, i_h * C], w_ready.index(0), s_w.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(r, [first, i_h * C], r_ready.index(0), s_r.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(k, [first, i_h * C], k_ready.index(0), s_k.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(v, [first, i_h * C], v_ready.index(0), s_v.index(0), pred=0 < n)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    # Weights of sums of decays, before a token; transposed, after it. It is the scores' mask, too.
    s_mask.store(below_diagonal(row, col))
    s_before = s_mask._reinterpret(gl.bfloat16, [C, C], TILE)
    # From the middle of the run of 16. At the middle is none: such rows sum a chunk, and its half.
    s_near = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    near = (row // 16 == col // 16) & ((col % 16 < 8) == (row % 16 < 8))
    near = gl.where(near & (col >= row) & (row % 16 < 8), -1, gl.where(near & (col < row) & (row % 16 > 8), 1, 0))
    near = gl.where((row == 8) | ((row == 40) & (col >= C // 2)), 1, near)
    s_near.store(near.to(gl.bfloat16))
    for_total = s_near.slice(8, 8, 0).permute((1, 0))
    for_second = s_near.slice(40, 8, 0).permute((1, 0))
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] == 0
    b_u = gl.load(u + i_h * C + col).to(gl.float32)
    o_s = row * C + col
    i_s = (i_n * H + i_h) * C * C
    b_s = gl.load(s0 + i_s + o_s, (row >= 0) & (has_s0 != 0), 0.0).to(gl.float32)
    if segment_states is not None:
        for g in range(0, i_g):
            part = (i_n * (segments - 1) + g) * H + i_h
            b_decay = gl.exp2(gl.load(segment_decays + part * C + gl.arange(0, C, ROWS)))
            b_s = b_s * b_decay[:, None] + gl.load(segment_states + part * C * C + o_s)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    few_zeros = gl.full([C, 16], 0.0, gl.float32, FEW)
    at_middle = gl.where((gl.arange(0, C, ROWS) == 8) | (gl.arange(0, C, ROWS) == 40), 0.0, -LOG2E)[:, None]

    barrier()
    for t in range(0, n, C):
        i = t // C % 2
        phase = t // C // 2 % 2
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
            b_k = gl.where(row < n - t, b_k, 0.0)
            s_k.index(i).store(b_k)
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
        b_bonus = (gl.sum(b_r * b_k * b_u, 1) * scale)[:, None]
        if checkpoints is None:
            b_total, b_after = warpgroup_mma_wait(0, deps=(b_total, b_after))
        else:
            b_total, b_after, b_second = warpgroup_mma_wait(0, deps=(b_total, b_after, b_second))
            b_second = gl.sum(gl.where(is_sum, b_second, 0.0), 1) * LOG2E
            b_second = gl.convert_layout(b_second, ROWS)
        b_total = gl.sum(gl.where(is_sum, b_total, 0.0), 1) * LOG2E
        b_total = gl.convert_layout(b_total, ROWS)
        strong = gl.max(gl.where(b_total >= -FITS_TO_END, 0, 1), 0) != 0  # NaN is
        expect_tile(r_ready.index(i), t + 2 * C < n)
        expect_tile(k_ready.index(i), t + 2 * C < n)
        expect_tile(v_ready.index(i), t + 2 * C < n)
        expect_tile(w_ready.index(i), t + 2 * C < n)
        at_checkpoint = ((slot + t // CHECKPOINT) * H + i_h) * C
        if strong:
            s_near_w, s_near_low = s_w.index(i), s_state
            if RAW:
                near_w = widened(s_log.load(TILES)) + widened(s_low.load(TILES))
                near_w = gl.maximum(near_w, -NEAR_DECAY, propagate_nan=tl.PropagateNan.ALL)
                f_high, f_low = in_two(near_w)
                s_near_w.store(f_high)
                s_near_low.store(f_low)
            else:
                near_w = at_least(s_log.load(TILES), -NEAR_DECAY)
                s_near_w.store(near_w)
            fence_async_shared()
            barrier()
            b_before = warpgroup_mma(s_before, s_log, zeros, use_acc=False, is_async=True)
            b_near = warpgroup_mma(s_near, s_near_w, zeros, use_acc=False, is_async=True)
            b_since = warpgroup_mma(s_before, s_near_w, zeros, use_acc=False, is_async=True)
            near_by_key = s_near_w.permute((1, 0))
            ref_0 = warpgroup_mma(near_by_key, s_before.slice(8, 8, 0).permute((1, 0)), no_sums, use_acc=False, is_async=True)
            ref_1 = warpgroup_mma(near_by_key, s_before.slice(24, 8, 0).permute((1, 0)), no_sums, use_acc=False, is_async=True)
            ref_2 = warpgroup_mma(near_by_key, s_before.slice(40, 8, 0).permute((1, 0)), no_sums, use_acc=False, is_async=True)
            ref_3 = warpgroup_mma(near_by_key, s_before.slice(56, 8, 0).permute((1, 0)), no_sums, use_acc=False, is_async=True)
            if checkpoints is not None:
                half: gl.constexpr = C // 2
                early = s_before.slice(0, half, 0).permute((1, 0))
                b_first = warpgroup_mma(w_by_key, s_before.slice(half, 8, 0).permute((1, 0)), no_sums, use_acc=False, is_async=True)
                b_early = warpgroup_mma(early, s_log.slice(0, half, 0), zeros, use_acc=False, is_async=True)
                if RAW:
                    b_first = warpgroup_mma(s_low.permute((1, 0)), s_before.slice(half, 8, 0).permute((1, 0)), b_first, is_async=True)
                    b_early = warpgroup_mma(early, s_low.slice(0, half, 0), b_early, is_async=True)
            if RAW:
                b_before = warpgroup_mma(s_before, s_low, b_before, is_async=True)
                b_near = warpgroup_mma(s_near, s_near_low, b_near, is_async=True)
                b_since = warpgroup_mma(s_before, s_near_low, b_since, is_async=True)
                low_by_key = s_near_low.permute((1, 0))
                ref_0 = warpgroup_mma(low_by_key, s_before.slice(8, 8, 0).permute((1, 0)), ref_0, is_async=True)
                ref_1 = warpgroup_mma(low_by_key, s_before.slice(24, 8, 0).permute((1, 0)), ref_1, is_async=True)
                ref_2 = warpgroup_mma(low_by_key, s_before.slice(40, 8, 0).permute((1, 0)), ref_2, is_async=True)
                ref_3 = warpgroup_mma(low_by_key, s_before.slice(56, 8, 0).permute((1, 0)), ref_3, is_async=True)
            b_before, b_near, b_since, ref_0, ref_1, ref_2, ref_3 = warpgroup_mma_wait(0, deps=(b_before, b_near, b_since, ref_0, ref_1, ref_2, ref_3))
            if checkpoints is not None:
                b_first, b_early = warpgroup_mma_wait(0, deps=(b_first, b_early))
                b_first = gl.convert_layout(gl.sum(gl.where(is_sum, b_first, 0.0), 1) * LOG2E, ROWS)
                b_after = gl.where(row < half, b_early, b_after)
            near_w = widened(s_near_w.load(TILES))
            if RAW:
                near_w += widened(s_near_low.load(TILES))
            f_k = widened(s_k.index(i).load(TILES))
            h_r = s_r.index(i).load(TILES)
            s_refs = s_state._reinterpret(gl.float32, [32, C], PLAIN)
            s_refs.slice(0, 8, 0).permute((1, 0)).store(ref_0)
            s_refs.slice(8, 8, 0).permute((1, 0)).store(ref_1)
            s_refs.slice(16, 8, 0).permute((1, 0)).store(ref_2)
            s_refs.slice(24, 8, 0).permute((1, 0)).store(ref_3)
            f_high, f_low = in_two(f_k * gl.exp2(b_after * LOG2E))
            f_k_high, f_k_low = s_k.index(i), s_low
            f_k_high.store(f_high)
            f_k_low.store(f_low)
            f_high, f_low = in_two(f_k * gl.exp2(b_near * at_middle - near_w * LOG2E))
            near_high, near_low = s_r.index(i), s_log
            near_high.store(f_high)
            near_low.store(f_low)
            s_w.index(i).store(rounded(b_s))
            if checkpoints is None:
                b_s *= gl.exp2(b_total)[:, None]
            else:
                b_s *= gl.exp2(b_first)[:, None]
            fence_async_shared()
            barrier()
            f_v = s_v.index(i)
            f_r = widened(h_r)
            if SCALED:
                f_r *= scale
            f_r_high, f_r_low = in_two(f_r * gl.exp2(b_before * LOG2E))
            f_r_high, f_r_low = as_left_operand(f_r_high), as_left_operand(f_r_low)
            b_o = warpgroup_mma(f_r_high, s_w.index(i), zeros, use_acc=False, is_async=True)
            b_o = warpgroup_mma(f_r_low, s_w.index(i), b_o, is_async=True)
            if checkpoints is None:
                b_s = warpgroup_mma(f_k_high.permute((1, 0)), f_v, b_s, is_async=True)
                b_s = warpgroup_mma(f_k_low.permute((1, 0)), f_v, b_s, is_async=True)
            else:
                tma.async_copy_shared_to_global(checkpoints, [at_checkpoint, 0], s_w.index(i))
                f_first_v = f_v.slice(0, half, 0)
                b_s = warpgroup_mma(f_k_high.slice(0, half, 0).permute((1, 0)), f_first_v, b_s, is_async=True)
                b_s = warpgroup_mma(f_k_low.slice(0, half, 0).permute((1, 0)), f_first_v, b_s, is_async=True)
                b_o, b_s, f_r_high, f_r_low = warpgroup_mma_wait(0, deps=(b_o, b_s, f_r_high, f_r_low))
                s_middle.store(rounded(b_s))
                b_s *= gl.exp2(b_second)[:, None]
                f_last_v = f_v.slice(half, half, 0)
                b_s = warpgroup_mma(f_k_high.slice(half, half, 0).permute((1, 0)), f_last_v, b_s, is_async=True)
                b_s = warpgroup_mma(f_k_low.slice(half, half, 0).permute((1, 0)), f_last_v, b_s, is_async=True)
            b_since *= LOG2E
            f_bonus = gl.convert_layout(b_bonus, FEW)
            for j in gl.static_range(4):
                b_ref = s_refs.slice(8 * j, 1, 0).load(TILES) * LOG2E
                near_r_high, near_r_low = in_two(f_r * gl.exp2(b_since - b_ref))
                near_r_high, near_r_low = as_left_operand(near_r_high), as_left_operand(near_r_low)
                run_high = near_high.slice(16 * j, 16, 0).permute((1, 0))
                run_low = near_low.slice(16 * j, 16, 0).permute((1, 0))
                f_a = warpgroup_mma(near_r_high, run_high, few_zeros, use_acc=False, is_async=True)
                f_a = warpgroup_mma(near_r_low, run_high, f_a, is_async=True)
                f_a = warpgroup_mma(near_r_high, run_low, f_a, is_async=True)
                f_a, b_o, b_s, f_r_high, f_r_low, near_r_high, near_r_low = warpgroup_mma_wait(0, deps=(f_a, b_o, b_s, f_r_high, f_r_low, near_r_high, near_r_low))
                f_a = as_left_operand(
                    below_and_on_diagonal(f_a, f_bonus.to(gl.bfloat16), s_mask.slice(16 * j, 16, 1).load(FEW))
                )
                b_o = warpgroup_mma(f_a, f_v.slice(16 * j, 16, 0), b_o, is_async=True)
                b_o, f_a = warpgroup_mma_wait(0, deps=(b_o, f_a))
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
            b_a = warpgroup_mma(r_high, k_high.permute((1, 0)), zeros, use_acc=False, is_async=True)
            b_a = warpgroup_mma(r_low, k_high.permute((1, 0)), b_a, is_async=True)
            b_a = warpgroup_mma(r_high, k_low.permute((1, 0)), b_a, is_async=True)
            b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
            b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
            if checkpoints is None:
                b_s = warpgroup_mma(k_high.permute((1, 0)), b_v, b_s, is_async=True)
                b_s = warpgroup_mma(k_low.permute((1, 0)), b_v, b_s, is_async=True)
            else:  # one more checkpoint, in the middle of the chunk
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

    tma.store_wait(0)
    is_last = i_g == gl.maximum(gl.cdiv(end - start, span) - 1, 0)
    gl.store(s1 + i_s + o_s, b_s, (row >= 0) & is_last)
