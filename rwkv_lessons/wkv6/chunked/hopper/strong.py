"""Chunks of decays too strong for forward.py, in Gluon, for Hopper and bfloat16 heads of 64.

No factor here decays backwards, for any w ≤ 0, but within runs of 16 tokens. A chunk of 64 tokens
is two halves of 32, of two runs each:

    r from the start of its half, k to the end of it       →  r S, S decayed + kᵀ v, half by half
    r from the start of a run, k to the end of the last    →  scores between the runs of a half
    r and k from the middle of their run                   →  scores within it

The last of these grow by the decays of 8 tokens. There a decay counts as at least -NEAR_DECAY, so
that they stay within float32: of what a stronger one should hide from the other tokens of its run,
1.8e-4 is left. All else, and S, is right for any w ≤ 0. Factors are two bfloat16 pieces, as in
forward.py, and the scores one.

A program goes on where its namesake in forward.py stopped, and returns at once where that did not.
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
from ..tiles import LOG2E, MIN_LOG_DECAY
from .tiles import (
    TILE,
    C,
    as_left_operand,
    at_least,
    barrier,
    chosen,
    expect_tile,
    in_two,
    kept,
    product_of,
    rounded,
    where_one,
    widened,
)

# 8 tokens of it are 2^99.6 (../tiles.py, FITS_TO_END); and it is a bfloat16.
NEAR_DECAY = gl.constexpr(8.625)
ONE, MINUS_ONE, MINUS_ZERO = gl.constexpr(0x3F80), gl.constexpr(-0x4080), gl.constexpr(-0x8000)


@gluon.jit
def sums_in_runs(in_half, s_w, sums, use_acc: gl.constexpr):
    """Of a tile's decays: to the end of the first run of each half, from the start of the second.

    in_half: weights of sums over the earlier tokens of a half. One run's tokens at a time, so that
    they leave the rows of other runs as they are: at 0.
    """
    for run in gl.static_range(4):
        if run % 2 == 0:
            weights = in_half.slice(16 * run, 16, 0).permute((1, 0))
        else:
            weights = in_half.slice(16 * run, 16, 1)
        of_run = s_w.slice(16 * run, 16, 0)
        if run == 0:
            sums = warpgroup_mma(weights, of_run, sums, use_acc=use_acc, is_async=True)
        else:
            sums = warpgroup_mma(weights, of_run, sums, is_async=True)
    return sums


@gluon.jit
def pairs_of_runs(s_high, s_low, first: gl.constexpr, zeros):
    """All rows of a tile in two pieces times 16 of them."""
    high = s_high.slice(first, 16, 0).permute((1, 0))
    low = s_low.slice(first, 16, 0).permute((1, 0))
    scores = warpgroup_mma(s_high, high, zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma(s_low, high, scores, is_async=True)
    return warpgroup_mma(s_high, low, scores, is_async=True)


@gluon.jit
def add_keys(b_s, s_high, s_low, s_v, first: gl.constexpr):
    """S + kᵀ v of one half's tokens."""
    half: gl.constexpr = C // 2
    of_half = s_v.slice(first, half, 0)
    high = s_high.slice(first, half, 0).permute((1, 0))
    low = s_low.slice(first, half, 0).permute((1, 0))
    b_s = warpgroup_mma(high, of_half, b_s, is_async=True)
    return warpgroup_mma(low, of_half, b_s, is_async=True)


@gluon.jit
def by_key(sums, is_sum, ROWS: gl.constexpr):
    """The chosen one of eight columns, as log2, a number for each row of S."""
    return gl.convert_layout(gl.sum(gl.where(is_sum, sums, 0.0), 1) * LOG2E, ROWS)


@assembled
@gluon.jit(do_not_specialize=["T", "H", "segments", "span", "scale"])
def wkv6_hopper_strong_kernel(
    r, k, v, w, u, cu_seqlens, o, o_rows, s1, checkpoints, handed, done,
    T, H, segments, span, scale,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """The arguments are those of forward.py; handed and done are read."""
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    RUNS: gl.constexpr = product_of(16)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    half: gl.constexpr = C // 2
    i_n, i_g, i_h, _ = place(gl.program_id(0), segments, H, 64, 64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    t = gl.load(done + gl.program_id(0))
    if t >= n:
        return
    slot = (first_checkpoint(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT).to(
        gl.int32
    )

    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    one_log = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_state = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_more = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_half = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
    one_near = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
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
    first_at = [first + t, i_h * C]
    tma.async_copy_global_to_shared(w, first_at, w_ready.index(0), s_w.index(0))
    tma.async_copy_global_to_shared(r, first_at, r_ready.index(0), s_r.index(0))
    tma.async_copy_global_to_shared(k, first_at, k_ready.index(0), s_k.index(0))
    tma.async_copy_global_to_shared(v, first_at, v_ready.index(0), s_v.index(0))

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    # Weights, as bits: Triton 3.6 makes 1 of a -1 that it converts from a comparison.
    # Sums over the tokens of a half before a token; transposed, after it. The scores' mask, too.
    earlier = (row // 32 == col // 32) & (col < row)
    in_half = gl.where(earlier, ONE, gl.where(row == col, MINUS_ZERO, 0))
    one_half.index(0).store(in_half.to(gl.int16))
    # From the middle of a run to a token. At the middle is none: such rows sum a half.
    same, middle = row // 16 == col // 16, row // 16 * 16 + 8
    forwards, backwards = same & (col >= middle) & (col < row), same & (col < middle) & (col >= row)
    near = gl.where(forwards, ONE, gl.where(backwards, MINUS_ONE, 0))
    sums_first, sums_second = (row == 8) & (col < half), (row == 24) & (col >= half)
    near = gl.where(sums_first | sums_second, ONE, near)
    one_near.index(0).store(near.to(gl.int16))
    near_log2 = gl.where((row == 8) | (row == 24), 0.0, LOG2E)
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] == 0
    in_second_half = gl.where(row < half, 0, -1).to(gl.int16)
    in_first_run = gl.where(row // 16 % 2 == 0, -1, 0).to(gl.int16)
    of_runs = gl.arange(0, C, gl.SliceLayout(1, RUNS))[:, None] // 16
    b_u = gl.load(u + i_h * C + col).to(gl.float32)
    o_s = row * C + col
    b_s = gl.load(handed + gl.program_id(0).to(gl.int64) * (C * C) + o_s)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    no_scores = gl.full([C, 16], 0.0, gl.float32, RUNS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)

    barrier()
    first_t = t
    while t < n:
        i = (t - first_t) // C % 2
        phase = (t - first_t) // C // 2 % 2
        # 0, which the compiler cannot know: it would keep all tiles' addresses in registers.
        same_tile = t // 2**30
        s_log, s_low = one_log.index(same_tile), one_low.index(same_tile)
        s_state, s_more = one_state.index(same_tile), one_more.index(same_tile)
        s_mask = one_half.index(same_tile)
        s_half = s_mask._reinterpret(gl.bfloat16, [C, C], TILE)
        s_near = one_near.index(same_tile)._reinterpret(gl.bfloat16, [C, C], TILE)
        for_first = s_near.slice(8, 8, 0).permute((1, 0))
        for_second = s_near.slice(24, 8, 0).permute((1, 0))
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
            h_v = s_v.index(i).load(TILES)
            s_v.index(i).store(gl.where(row < n - t, h_v, 0.0).to(gl.bfloat16))
        if RAW:
            b_w = gl.where(row < n - t, -gl.exp2(widened(h_w) * LOG2E), 0.0)
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

        w_by_key, near_w, later = s_log.permute((1, 0)), s_w.index(i), s_half.permute((1, 0))
        b_after = warpgroup_mma(later, s_log, zeros, use_acc=False, is_async=True)
        b_run = sums_in_runs(s_half, s_log, zeros, use_acc=False)
        b_before = warpgroup_mma(s_half, s_log, zeros, use_acc=False, is_async=True)
        b_first = warpgroup_mma(w_by_key, for_first, no_sums, use_acc=False, is_async=True)
        b_second = warpgroup_mma(w_by_key, for_second, no_sums, use_acc=False, is_async=True)
        if RAW:
            low_by_key = s_low.permute((1, 0))
            b_after = warpgroup_mma(later, s_low, b_after, is_async=True)
            b_run = sums_in_runs(s_half, s_low, b_run, use_acc=True)
            b_before = warpgroup_mma(s_half, s_low, b_before, is_async=True)
            b_first = warpgroup_mma(low_by_key, for_first, b_first, is_async=True)
            b_second = warpgroup_mma(low_by_key, for_second, b_second, is_async=True)
            b_near = warpgroup_mma(s_near, near_w, zeros, use_acc=False, is_async=True)
            b_near = warpgroup_mma(s_near, s_more, b_near, is_async=True)
            b_near = warpgroup_mma_wait(0, deps=(b_near,))
            near_low = s_more.load(TILES)
        b_bonus = gl.sum(widened(h_r) * widened(h_k) * b_u, 1)[:, None]
        b_after, b_run, b_before, b_first, b_second = warpgroup_mma_wait(
            0, deps=(b_after, b_run, b_before, b_first, b_second)
        )
        if RAW:
            barrier()  # tiles of decays are free
        high, low = in_two(widened(h_k) * gl.exp2(b_after * LOG2E))
        k_high, k_low, b_v = s_r.index(i), s_k.index(i), s_v.index(i)
        k_high.store(high)
        k_low.store(low)
        high, low = in_two(widened(chosen(h_k, h_r, in_first_run)) * gl.exp2(b_run * LOG2E))
        s_more.store(high)
        s_low.store(low)
        fence_async_shared()
        barrier()

        b_s *= gl.exp2(by_key(b_first, is_sum, ROWS))[:, None]
        b_s = add_keys(b_s, k_high, k_low, b_v, 0)
        if not RAW:
            b_near = warpgroup_mma(s_near, near_w, zeros, use_acc=False, is_async=True)
        b_run_0 = pairs_of_runs(s_more, s_low, 0, no_scores)
        b_run_2 = pairs_of_runs(s_more, s_low, half, no_scores)
        r_high, r_low = in_two(widened(h_r) * gl.exp2(b_before * LOG2E))
        left_high, left_low = as_left_operand(r_high), as_left_operand(r_low)
        b_o = warpgroup_mma(left_high, s_state, zeros, use_acc=False, is_async=True)
        b_o = warpgroup_mma(left_low, s_state, b_o, is_async=True)
        if checkpoints is not None:
            at_checkpoint = ((slot + t // CHECKPOINT) * H + i_h) * C
            tma.async_copy_shared_to_global(checkpoints, [at_checkpoint, 0], s_state)
        if RAW:
            b_s, b_run_0, b_run_2 = warpgroup_mma_wait(2, deps=(b_s, b_run_0, b_run_2))
            b_w = widened(near_w.load(TILES)) + widened(near_low)
        else:
            b_near, b_s, b_run_0, b_run_2 = warpgroup_mma_wait(
                2, deps=(b_near, b_s, b_run_0, b_run_2)
            )
            b_w = widened(near_w.load(TILES))
        run_0 = as_left_operand(rounded(gl.where(of_runs == 1, b_run_0, 0.0)))
        run_2 = as_left_operand(rounded(gl.where(of_runs == 3, b_run_2, 0.0)))
        b_near *= near_log2
        near_high, near_rest = in_two(widened(h_r) * gl.exp2(b_near))
        near_high, near_rest = as_left_operand(near_high), as_left_operand(near_rest)
        high, low = in_two(widened(h_k) * gl.exp2(-b_near - b_w * LOG2E))
        b_o, left_high, left_low = warpgroup_mma_wait(0, deps=(b_o, left_high, left_low))
        b_o = gl.where(row < half, b_o, 0.0)
        tma.store_wait(0)
        barrier()  # the products of all warps have read their tiles
        s_log.store(high)
        s_w.index(i).store(low)
        s_state.store(rounded(b_s))
        fence_async_shared()
        barrier()

        b_a = warpgroup_mma(near_high, s_log.permute((1, 0)), zeros, use_acc=False, is_async=True)
        b_a = warpgroup_mma(near_rest, s_log.permute((1, 0)), b_a, is_async=True)
        b_a = warpgroup_mma(near_high, s_w.index(i).permute((1, 0)), b_a, is_async=True)
        if checkpoints is not None:
            if t + half < n:
                tma.async_copy_shared_to_global(checkpoints, [at_checkpoint + H * C, 0], s_state)
        left_high = as_left_operand(kept(r_high, in_second_half))
        left_low = as_left_operand(kept(r_low, in_second_half))
        b_o = warpgroup_mma(left_high, s_state, b_o, is_async=True)
        b_o = warpgroup_mma(left_low, s_state, b_o, is_async=True)
        b_o = warpgroup_mma(run_0, b_v.slice(0, 16, 0), b_o, is_async=True)
        b_o = warpgroup_mma(run_2, b_v.slice(half, 16, 0), b_o, is_async=True)
        b_s *= gl.exp2(by_key(b_second, is_sum, ROWS))[:, None]
        b_s = add_keys(b_s, k_high, k_low, b_v, half)
        b_a, near_high, near_rest = warpgroup_mma_wait(6, deps=(b_a, near_high, near_rest))
        b_a = gl.where(row // 16 == col // 16, b_a, 0.0)
        b_a = as_left_operand(where_one(b_a, b_bonus.to(gl.bfloat16), s_mask.load(TILES)))
        b_o = warpgroup_mma(b_a, b_v, b_o, is_async=True)
        b_o, b_s, b_a, left_high, left_low, run_0, run_2 = warpgroup_mma_wait(
            0, deps=(b_o, b_s, b_a, left_high, left_low, run_0, run_2)
        )
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

    tma.store_wait(0)
    is_last = i_g == gl.maximum(gl.cdiv(end - start, span) - 1, 0)
    gl.store(s1 + (i_n * H + i_h) * C * C + o_s, b_s, (row >= 0) & is_last)
