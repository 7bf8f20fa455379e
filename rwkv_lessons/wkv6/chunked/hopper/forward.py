"""The kernel of ../forward.py once more, in Gluon, for bfloat16 and float16 on Hopper.

Triton waits for each of the eleven products of a chunk before it starts the next. Here they start
as soon as their operands are there, and a chunk waits three times:

    sums of decays         →  r and k decayed to the chunk's end, in two bfloat16 pieces each
    r kᵀ, r S, S + kᵀ v    →  the scores, in one; the bonus on their diagonal
    scores v               →  o

A left factor stays in registers, if it can. What else a product reads goes through shared memory,
into tiles whose tokens are in registers by then. The tensor memory accelerator brings the next
chunk meanwhile, and stores o and the states; Triton adds barriers where threads share a tile.

A program takes a block of 64 keys and 64 values of a head. o of a head with several blocks of keys
is a sum over those, of parts in float32.

float16 (HALF) is not multiplied as such: r decayed reaches 2^100, and states and scores may exceed
65,504. v, S and the scores are two pieces of bfloat16 then, too, which hold all that is given. Log
decays are: they are at least -1e4, and their weights 0 and 1. States are stored as float32.

A chunk whose decays are too strong for this, and those after it, up to one that is not, are
computed by strong.py, from the same tiles.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ....runtime.compile_triton import assembled
from ..checkpoints import first_checkpoint, program_place, sequence_bounds
from ..tiles import FITS_TO_END, LOG2E, MIN_LOG_DECAY
from .strong import strong_chunks
from .tiles import (
    TILE,
    C,
    as_left_operand,
    at_least,
    barrier,
    below_and_on_diagonal,
    copy_chunk,
    expect_chunk,
    in_float32,
    in_two,
    left_over,
    now,
    product_of,
    rounded,
    two_barriers,
    wait_for_chunk,
    widened,
)


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span", "scale", "tokens"])
def wkv6_hopper_kernel(
    r, k, v, w, u, s0, cu_seqlens, segment_states, segment_decays, o, o_rows, s1, checkpoints,
    has_s0, T, H, segments, span, scale, tokens,
    K: gl.constexpr, V: gl.constexpr,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, o are descriptors of [tokens, H·K] or [tokens, H·V], and checkpoints of
    [states·K, V].

    o_rows is o again, for a last chunk that is not whole. Where a head has several blocks of 64
    keys, o is None, and o_rows gets the part of each, in float32, `[K / 64, tokens, H·V]`.
    tokens: of all sequences together. The rest is as in ../forward.py.
    """
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    NV: gl.constexpr = V // 64
    i_n, i_g, i_h, i_block = program_place(gl.program_id(0), segments, H, K // 64 * V, 64)
    i_k, i_v = i_block // NV, i_block % NV
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    slot = (first_checkpoint(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT).to(
        gl.int32
    )

    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    SUMMED: gl.constexpr = gl.bfloat16 if RAW else DTYPE  # decays
    s_r = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    one_log = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)  # of k
    one_state = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_more = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)  # the state in the middle
    one_weights = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
    one_mask = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
    given, staged = (w, r, k, v), (s_w, s_r, s_k, s_v)
    ready = two_barriers(), two_barriers(), two_barriers(), two_barriers()
    fence_async_shared()
    barrier()
    expect_chunk(ready, 0, 0 < n)
    expect_chunk(ready, 1, C < n)
    copy_chunk(given, first, key_column, value_column, ready, staged, 0, 0 < n)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    b_u = gl.load(u + key_column + col).to(gl.float32)
    o_s = (i_k * C + row) * V + i_v * C + col  # of a state
    i_s = (i_n * H + i_h) * K * V
    b_s = gl.load(s0 + i_s + o_s, (row >= 0) & (has_s0 != 0), 0.0).to(gl.float32)
    if segment_states is not None:
        for g in range(0, i_g):
            part = (i_n * (segments - 1) + g) * H + i_h
            o_k = i_k * C + gl.arange(0, C, ROWS)
            b_decay = gl.exp2(gl.load(segment_decays + part * K + o_k))
            b_s = b_s * b_decay[:, None] + gl.load(segment_states + part * K * V + o_s)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    ones = one_log, one_low, one_state, one_more, one_weights, one_mask

    barrier()
    t = 0
    while t < n:
        zero = t // 2**30  # which the compiler cannot know: it would keep all of this in registers
        row = gl.arange(0, C, ROWS)[:, None] + zero
        # Weights of the sums of decays after a token. After the last is none: its row sums all.
        s_after = one_weights.index(zero)._reinterpret(SUMMED, [C, C], TILE)
        s_after.store(((col > row) | (row == C - 1)).to(SUMMED))
        to_log2 = gl.where(row < C - 1, LOG2E, 0.0)
        mask = gl.where(row > col, -256, gl.where(row == col, 255, 0))
        one_mask.index(zero).store(mask.to(gl.int16))
        is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] + zero == 7
        stop = n
        while t < stop:
            # 0, which the compiler cannot know: it would keep all tiles' addresses in registers.
            same_tile = t // 2**30
            s_log = one_log.index(same_tile)._reinterpret(SUMMED, [C, C], TILE)
            s_low = one_low.index(same_tile)
            s_state, s_middle = one_state.index(same_tile), one_more.index(same_tile)
            s_mask = one_mask.index(same_tile)
            s_after = one_weights.index(same_tile)._reinterpret(SUMMED, [C, C], TILE)
            for_total = s_after.slice(C - 8, 8, 0).permute((1, 0))
            for_second = s_after.slice(C // 2 - 8, 8, 0).permute((1, 0))
            i = t // C % 2
            phase = t // C // 2 % 2
            wait_for_chunk(ready, i, phase)
            whole = t + C <= n
            b_w = s_w.index(i).load(TILES)
            b_r = s_r.index(i).load(TILES)
            b_k = s_k.index(i).load(TILES)
            if RAW:
                b_w = -gl.exp2(b_w.to(gl.float32) * LOG2E)
            if not whole:  # what follows are other tokens, or zeros
                b_w = gl.where(row < n - t, b_w, 0.0)
                b_v = s_v.index(i).load(TILES)
                s_v.index(i).store(gl.where(row < n - t, b_v, 0.0).to(DTYPE))
            if RAW:
                b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
                high, low = in_two(b_w)
                s_log.store(high)
                s_low.store(low)
            elif HALF:
                b_w = b_w.to(gl.float32)
                b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
                s_log.store(b_w.to(gl.float16))
            else:
                b_w = at_least(b_w.to(gl.bfloat16), MIN_LOG_DECAY)
                s_log.store(b_w)
                b_w = widened(b_w)
            fence_async_shared()
            tma.store_wait(0)
            copy_chunk(
                given, first + t + C, key_column, value_column, ready, staged, 1 - i, t + C < n
            )
            w_by_key = s_log.permute((1, 0))
            b_total = warpgroup_mma(w_by_key, for_total, no_sums, use_acc=False, is_async=True)
            b_after = warpgroup_mma(s_after, s_log, zeros, use_acc=False, is_async=True)
            if checkpoints is not None:
                b_second = warpgroup_mma(
                    w_by_key, for_second, no_sums, use_acc=False, is_async=True
                )
            if RAW:
                b_total = warpgroup_mma(s_low.permute((1, 0)), for_total, b_total, is_async=True)
                b_after = warpgroup_mma(s_after, s_low, b_after, is_async=True)
                if checkpoints is not None:
                    w_low = s_low.permute((1, 0))
                    b_second = warpgroup_mma(w_low, for_second, b_second, is_async=True)
            b_r = in_float32(b_r)
            b_k = in_float32(b_k)
            if not whole:
                b_k = gl.where(row < n - t, b_k, 0.0)
            b_bonus = (gl.sum(b_r * b_k * b_u, 1) * scale)[:, None]
            if checkpoints is None:
                b_total, b_after = warpgroup_mma_wait(0, deps=(b_total, b_after))
            else:
                b_total, b_after, b_second = warpgroup_mma_wait(
                    0, deps=(b_total, b_after, b_second)
                )
                b_second = gl.sum(gl.where(is_sum, b_second, 0.0), 1) * LOG2E
                b_second = gl.convert_layout(b_second, ROWS)
            b_total = gl.sum(gl.where(is_sum, b_total, 0.0), 1) * LOG2E
            b_total = gl.convert_layout(b_total, ROWS)
            if gl.max(gl.where(b_total >= -FITS_TO_END, 0, 1), 0) != 0:  # NaN is not
                stop = t
            else:
                b_after *= to_log2
                b_k *= gl.exp2(b_after)
                b_r *= gl.exp2(-b_after - b_w * LOG2E)
                if SCALED:
                    b_r *= scale
                high, low = in_two(b_k)
                k_high, k_low, b_v = s_k.index(i), s_low, s_v.index(i)
                if HALF:  # the same tiles for pieces of bfloat16
                    k_high = k_high._reinterpret(gl.bfloat16, [C, C], TILE)
                    v_high, v_rest = in_two(in_float32(b_v.load(TILES)))
                    b_v = b_v._reinterpret(gl.bfloat16, [C, C], TILE)
                    v_low = s_w.index(i)._reinterpret(gl.bfloat16, [C, C], TILE)
                    b_v.store(v_high)
                    v_low.store(v_rest)
                k_high.store(high)
                k_low.store(low)
                r_high, r_low = in_two(b_r)
                r_high, r_low = as_left_operand(r_high), as_left_operand(r_low)
                if checkpoints is not None:
                    at_checkpoint = ((slot + t // CHECKPOINT) * H + i_h) * K + i_k * C
                    if HALF:
                        at = at_checkpoint.to(gl.int64) * V + i_v * C
                        gl.store(checkpoints + at + row * V + col, b_s)
                    else:
                        s_w.index(i).store(rounded(b_s))
                b_s *= gl.exp2(b_total)[:, None]
                if HALF:
                    b_s = now(b_s)
                    s_middle.store(rounded(left_over(b_s)))
                s_state.store(rounded(b_s))
                fence_async_shared()
                barrier()
                expect_chunk(ready, i, t + 2 * C < n)
                b_a = warpgroup_mma(
                    r_high, k_high.permute((1, 0)), zeros, use_acc=False, is_async=True
                )
                b_a = warpgroup_mma(r_low, k_high.permute((1, 0)), b_a, is_async=True)
                b_a = warpgroup_mma(r_high, k_low.permute((1, 0)), b_a, is_async=True)
                b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
                b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
                if HALF:
                    b_o = warpgroup_mma(r_high, s_middle, b_o, is_async=True)
                if checkpoints is None:
                    b_s = warpgroup_mma(k_high.permute((1, 0)), b_v, b_s, is_async=True)
                    b_s = warpgroup_mma(k_low.permute((1, 0)), b_v, b_s, is_async=True)
                    if HALF:
                        b_s = warpgroup_mma(k_high.permute((1, 0)), v_low, b_s, is_async=True)
                else:  # one more checkpoint, in the middle of the chunk
                    if not HALF:
                        state_at = [at_checkpoint, i_v * C]
                        tma.async_copy_shared_to_global(checkpoints, state_at, s_w.index(i))
                    half: gl.constexpr = C // 2
                    first_v = b_v.slice(0, half, 0)
                    b_s = warpgroup_mma(
                        k_high.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
                    )
                    b_s = warpgroup_mma(
                        k_low.slice(0, half, 0).permute((1, 0)), first_v, b_s, is_async=True
                    )
                    if HALF:
                        first_k = k_high.slice(0, half, 0).permute((1, 0))
                        first_v = v_low.slice(0, half, 0)
                        b_s = warpgroup_mma(first_k, first_v, b_s, is_async=True)
                b_a, r_high, r_low = warpgroup_mma_wait(3 if HALF else 2, deps=(b_a, r_high, r_low))
                if HALF:
                    bonus_low = (b_bonus - b_bonus.to(gl.bfloat16).to(gl.float32)).to(gl.bfloat16)
                    a_low = as_left_operand(
                        below_and_on_diagonal(left_over(b_a), bonus_low, s_mask.load(TILES))
                    )
                b_a = as_left_operand(
                    below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_mask.load(TILES))
                )
                b_o = warpgroup_mma(b_a, b_v, b_o, is_async=True)
                if HALF:
                    b_o = warpgroup_mma(a_low, b_v, b_o, is_async=True)
                    b_o = warpgroup_mma(b_a, v_low, b_o, is_async=True)
                if checkpoints is not None:
                    b_s = warpgroup_mma_wait(3 if HALF else 1, deps=(b_s,))
                    if HALF:
                        at += H.to(gl.int64) * K * V
                        kept = (row >= 0) & (t + C // 2 < n)
                        b_middle = b_s * gl.exp2(-b_second)[:, None]
                        gl.store(checkpoints + at + row * V + col, b_middle, kept)
                    else:
                        s_middle.store(rounded(b_s * gl.exp2(-b_second)[:, None]))
                    last_v = b_v.slice(half, half, 0)
                    b_s = warpgroup_mma(
                        k_high.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True
                    )
                    b_s = warpgroup_mma(
                        k_low.slice(half, half, 0).permute((1, 0)), last_v, b_s, is_async=True
                    )
                    if HALF:
                        last_k = k_high.slice(half, half, 0).permute((1, 0))
                        last_v = v_low.slice(half, half, 0)
                        b_s = warpgroup_mma(last_k, last_v, b_s, is_async=True)
                if HALF:
                    b_o, b_s, b_a, a_low = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, a_low))
                else:
                    b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))
                if o is not None:
                    s_r.index(i).store(b_o.to(gl.float16) if HALF else rounded(b_o))
                fence_async_shared()
                barrier()
                at = (start + skipped + t) * H * V + value_column
                if o is None:
                    at += i_k.to(gl.int64) * tokens * H * V
                    gl.store(o_rows + at + row * (H * V) + col, b_o, row < n - t)
                elif whole:
                    tma.async_copy_shared_to_global(o, [first + t, value_column], s_r.index(i))
                else:
                    gl.store(o_rows + at + row * (H * V) + col, b_o.to(DTYPE), row < n - t)
                if checkpoints is not None and not HALF:
                    if t + C // 2 < n:
                        middle_at = [at_checkpoint + H * K, i_v * C]
                        tma.async_copy_shared_to_global(checkpoints, middle_at, s_middle)
                t += C
        if t < n:
            t, b_s = strong_chunks(
                t, b_s, b_u, n, first, i_h, i_k, i_v, H, slot, scale, tokens,
                given, o, o_rows, checkpoints, staged, ready, ones,
                K, V, CHECKPOINT, RAW, SCALED, HALF,
            )  # fmt: skip

    tma.store_wait(0)
    is_last = i_g == gl.maximum(gl.cdiv(end - start, span) - 1, 0)
    gl.store(s1 + i_s + o_s, b_s, (row >= 0) & is_last)
