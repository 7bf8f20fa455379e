"""The forward kernel of ../forward.py once more, in Gluon, for Hopper and bfloat16 heads of 64.

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
from ..tiles import FAR, FITS_TO_END, LOG2E
from .tiles import (
    TILE,
    C,
    announce,
    as_left,
    at_least,
    barrier,
    below_and_on_diagonal,
    in_two,
    product_of,
    rounded,
    widened,
)


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span", "groups", "scale"])
def wkv6_hopper_kernel(
    r, k, v, w, u, s0, cu_seqlens, left, decays, o, o_rows, s1, kept, before, strong,
    has_s0, T, H, segments, span, groups, scale,
    KEEP: gl.constexpr, GROUP: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w and o are descriptors of [tokens, H·64], kept and before of [states·64, 64].

    o_rows is o again, for a last chunk that is not whole. The rest is as there.
    """
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    i_n, i_g, i_h, _ = place(gl.program_id(0), segments, H, 64, 64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    slot = (first_checkpoint(cu_seqlens, start, i_n, T, KEEP) + skipped // KEEP).to(gl.int32)

    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_log = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)  # of k
    s_state = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_where = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
    if kept is not None:
        s_middle = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    BARS: gl.constexpr = mbarrier.MBarrierLayout()
    r_there = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    k_there = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    v_there = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    w_there = gl.allocate_shared_memory(gl.int64, [2, 1], BARS)
    for stage in gl.static_range(2):
        mbarrier.init(r_there.index(stage), count=1)
        mbarrier.init(k_there.index(stage), count=1)
        mbarrier.init(v_there.index(stage), count=1)
        mbarrier.init(w_there.index(stage), count=1)
    fence_async_shared()
    barrier()
    for stage in gl.static_range(2):
        announce(r_there.index(stage), stage * C < n)
        announce(k_there.index(stage), stage * C < n)
        announce(v_there.index(stage), stage * C < n)
        announce(w_there.index(stage), stage * C < n)
    tma.async_copy_global_to_shared(w, [first, i_h * C], w_there.index(0), s_w.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(r, [first, i_h * C], r_there.index(0), s_r.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(k, [first, i_h * C], k_there.index(0), s_k.index(0), pred=0 < n)
    tma.async_copy_global_to_shared(v, [first, i_h * C], v_there.index(0), s_v.index(0), pred=0 < n)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    s_after = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    # Weights of the sums of decays after a token. After the last is none: there stands the total.
    s_after.store(((col > row) | (row == C - 1)).to(gl.bfloat16))
    for_total = s_after.slice(C - 8, 8, 0).permute((1, 0))
    for_second = s_after.slice(C // 2 - 8, 8, 0).permute((1, 0))
    to_log2 = gl.where(gl.arange(0, C, ROWS) < C - 1, LOG2E, 0.0)[:, None]
    s_where.store(gl.where(row > col, -256, gl.where(row == col, 255, 0)).to(gl.int16))
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] == 7
    b_u = gl.load(u + i_h * C + col).to(gl.float32)
    o_s = row * C + col
    i_s = (i_n * H + i_h) * C * C
    b_s = gl.load(s0 + i_s + o_s, (row >= 0) & (has_s0 != 0), 0.0).to(gl.float32)
    if left is not None:
        for g in range(0, i_g):
            part = (i_n * (segments - 1) + g) * H + i_h
            b_decay = gl.exp2(gl.load(decays + part * C + gl.arange(0, C, ROWS)))
            b_s = b_s * b_decay[:, None] + gl.load(left + part * C * C + o_s)
    fits = gl.full([C], 1, gl.int32, ROWS)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)

    barrier()
    for t in range(0, n, C):
        i = t // C % 2
        phase = t // C // 2 % 2
        mbarrier.wait(w_there.index(i), phase)
        mbarrier.wait(r_there.index(i), phase)
        mbarrier.wait(k_there.index(i), phase)
        mbarrier.wait(v_there.index(i), phase)
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
            b_w = gl.maximum(b_w, FAR, propagate_nan=tl.PropagateNan.ALL)
            high, low = in_two(b_w)
            s_log.store(high)
            s_low.store(low)
        else:
            b_w = at_least(b_w.to(gl.bfloat16), FAR)
            s_log.store(b_w)
            b_w = widened(b_w)
        fence_async_shared()
        more = t + C < n
        tma.store_wait(0)
        there = [first + t + C, i_h * C]
        tma.async_copy_global_to_shared(w, there, w_there.index(1 - i), s_w.index(1 - i), pred=more)
        tma.async_copy_global_to_shared(r, there, r_there.index(1 - i), s_r.index(1 - i), pred=more)
        tma.async_copy_global_to_shared(k, there, k_there.index(1 - i), s_k.index(1 - i), pred=more)
        tma.async_copy_global_to_shared(v, there, v_there.index(1 - i), s_v.index(1 - i), pred=more)
        w_by_key = s_log.permute((1, 0))
        b_total = warpgroup_mma(w_by_key, for_total, no_sums, use_acc=False, is_async=True)
        b_after = warpgroup_mma(s_after, s_log, zeros, use_acc=False, is_async=True)
        if kept is not None:
            b_second = warpgroup_mma(w_by_key, for_second, no_sums, use_acc=False, is_async=True)
        if RAW:
            b_total = warpgroup_mma(s_low.permute((1, 0)), for_total, b_total, is_async=True)
            b_after = warpgroup_mma(s_after, s_low, b_after, is_async=True)
            if kept is not None:
                w_low = s_low.permute((1, 0))
                b_second = warpgroup_mma(w_low, for_second, b_second, is_async=True)
        b_r = widened(b_r)
        b_k = widened(b_k)
        if not whole:
            b_k = gl.where(row < n - t, b_k, 0.0)
        b_bonus = (gl.sum(b_r * b_k * b_u, 1) * scale)[:, None]
        if kept is None:
            b_total, b_after = warpgroup_mma_wait(0, deps=(b_total, b_after))
        else:
            b_total, b_after, b_second = warpgroup_mma_wait(0, deps=(b_total, b_after, b_second))
            b_second = gl.sum(gl.where(is_sum, b_second, 0.0), 1) * LOG2E
            b_second = gl.convert_layout(b_second, ROWS)
        b_total = gl.sum(gl.where(is_sum, b_total, 0.0), 1) * LOG2E
        b_total = gl.convert_layout(b_total, ROWS)
        i_group = gl.program_id(0).to(gl.int64) * groups + t // GROUP
        fits &= (b_total >= -FITS_TO_END).to(gl.int32)  # NaN does not
        if (t + C) % GROUP == 0 or t + C >= n:
            gl.store(strong + i_group * C + gl.arange(0, C, ROWS), (1 - fits).to(gl.int8))
            fits = gl.full([C], 1, gl.int32, ROWS)

        b_after *= to_log2
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
        r_high, r_low = as_left(r_high), as_left(r_low)
        if kept is not None or t % GROUP == 0:
            s_w.index(i).store(rounded(b_s))
        b_s *= gl.exp2(b_total)[:, None]
        s_state.store(rounded(b_s))
        fence_async_shared()
        barrier()
        announce(r_there.index(i), t + 2 * C < n)
        announce(k_there.index(i), t + 2 * C < n)
        announce(v_there.index(i), t + 2 * C < n)
        announce(w_there.index(i), t + 2 * C < n)
        b_a = warpgroup_mma(r_high, k_high.permute((1, 0)), zeros, use_acc=False, is_async=True)
        b_a = warpgroup_mma(r_low, k_high.permute((1, 0)), b_a, is_async=True)
        b_a = warpgroup_mma(r_high, k_low.permute((1, 0)), b_a, is_async=True)
        b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
        b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
        if kept is None:
            if t % GROUP == 0:
                at = (gl.program_id(0) * groups + t // GROUP) * C
                tma.async_copy_shared_to_global(before, [at, 0], s_w.index(i))
            b_s = warpgroup_mma(k_high.permute((1, 0)), b_v, b_s, is_async=True)
            b_s = warpgroup_mma(k_low.permute((1, 0)), b_v, b_s, is_async=True)
        else:  # in the middle stands a state to keep
            at_kept = ((slot + t // KEEP) * H + i_h) * C
            tma.async_copy_shared_to_global(kept, [at_kept, 0], s_w.index(i))
            half: gl.constexpr = C // 2
            first_v = b_v.slice(0, half, 0)
            b_s = warpgroup_mma(
                k_high.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
            )
            b_s = warpgroup_mma(
                k_low.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
            )
        b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))
        b_a = as_left(below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_where.load(TILES)))
        b_o = warpgroup_mma(b_a, b_v, b_o, is_async=True)
        if kept is not None:
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
        if kept is not None:
            if t + C // 2 < n:
                tma.async_copy_shared_to_global(kept, [at_kept + H * C, 0], s_middle)

    tma.store_wait(0)
    is_last = i_g == gl.maximum(gl.cdiv(end - start, span) - 1, 0)
    gl.store(s1 + i_s + o_s, b_s, (row >= 0) & is_last)
