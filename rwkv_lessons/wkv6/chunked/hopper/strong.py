"""Chunks of decays too strong for forward.py's factors, 16 tokens at a time, for the same kernel.

No factor here decays backwards, for any w ≤ 0, but within runs of 16 tokens:

    r from the start of its run, k to the end of it        →  r S, S decayed + kᵀ v, run by run
    r and k from the middle of their run                   →  scores within it

The latter grow by the decays of 8 tokens. There a decay counts as at least -NEAR_DECAY, so that
they stay within float32: of what a stronger one should hide from the other tokens of its run,
1.8e-4 is left. All else, and S, is right for any w ≤ 0. Factors are two bfloat16 pieces, as in
forward.py, and the scores one; with float16 all are two.

Four runs read and change S one after the other, which is quick if S need not go through shared
memory. So it is the left factor here, on its side, as is all that comes of it:

    oᵀ = Sᵀ rᵀ + vᵀ scoresᵀ          Sᵀ ← Sᵀ decayed + vᵀ k

How the code calls what these name; h_ is in registers as it came, b_ in float32, s_ in shared
memory, and a product's factor, of one piece or two (factors.py), has neither:

    w; at least -NEAR_DECAY    w, near_w; b_w, near_pieces  log decays
    their sums in a run        b_near                       from its middle to a token
                               b_before, b_after            before a token, and after it
                               b_0, …, b_3                  of all of a run, by key
    r, k from the middle       near_r, near_k               for the scores
    r from the start           r_runs
    k to the end               k_runs
    scores, the bonus          b_a, b_bonus; scores         within runs
    Sᵀ, as a run reads it      b_s, read                    [value, key]
    oᵀ                         o_0, …, o_3; b_o             [value, token]
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

from ....sequences.gluon_tiles import raw_decay
from ..tiles import FITS_TO_END, LOG2E, MIN_LOG_DECAY
from .factors import (
    Rounded,
    Split,
    as_left,
    plus_product,
    product,
    products,
    rows_of,
    split,
    store,
    transposed,
)
from .factors import in_float32 as factor_in_float32
from .tiles import (
    TILE,
    C,
    at_least,
    barrier,
    copy_chunk,
    either_of,
    expect_chunk,
    in_float32,
    in_two,
    left_over,
    product_of,
    rounded,
    save_half,
    wait_for_chunk,
    where_one,
    widened,
)

# 8 tokens of it are 2^99.6 (../tiles.py, FITS_TO_END); and it is a bfloat16.
NEAR_DECAY = gl.constexpr(8.625)
ONE, MINUS_ONE, MINUS_ZERO = gl.constexpr(0x3F80), gl.constexpr(-0x4080), gl.constexpr(-0x8000)
ROWS_OF_KEYS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
RUNS_OF_KEYS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0]))


@gluon.jit
def turned(b_s, s_first, s_second, s_third):
    """A float32 tile on its side, exactly: through three tiles of bfloat16."""
    TILES: gl.constexpr = b_s.type.layout
    first, second = in_two(b_s)
    tma.store_wait(0)
    barrier()
    s_first.store(first)
    s_second.store(second)
    s_third.store(rounded(b_s - widened(first) - widened(second)))
    barrier()
    turned = widened(s_first.permute((1, 0)).load(TILES))
    turned += widened(s_second.permute((1, 0)).load(TILES))
    turned += widened(s_third.permute((1, 0)).load(TILES))
    barrier()
    return turned


@gluon.jit
def weights_of_runs(row, col):
    """Weights of sums of decays, as bits: Triton 3.6 makes 1 of a -1 that it converts.

    Of the sums over the earlier tokens of a run, with -0 on the diagonal; and of those from the
    middle of a run to a token. At the middle is none, and its row sums the run.
    """
    same, middle = row // 16 == col // 16, row // 16 * 16 + 8
    earlier = gl.where(same & (col < row), ONE, gl.where(row == col, MINUS_ZERO, 0))
    forwards, backwards = same & (col >= middle) & (col < row), same & (col < middle) & (col >= row)
    near = gl.where(forwards, ONE, gl.where(backwards, MINUS_ONE, 0))
    near = gl.where(same & (row == middle), ONE, near)
    return earlier.to(gl.int16), near.to(gl.int16)


@gluon.jit
def sum_of_run(s_w, s_near, run: gl.constexpr, sums, use_acc: gl.constexpr):
    """Of a run's decays, for each key, in the first of eight columns."""
    of_run = s_w.slice(16 * run, 16, 0).permute((1, 0))
    ones = s_near.slice(16 * run + 8, 8, 0).slice(16 * run, 16, 1).permute((1, 0))
    return warpgroup_mma(of_run, ones, sums, use_acc=use_acc, is_async=True)


@gluon.jit
def joined(x_0, x_1, x_2, x_3):
    """Tiles of the runs, in two more dimensions."""
    return gl.join(gl.join(x_0, x_1), gl.join(x_2, x_3))


@gluon.jit
def of_the_next_run(x):
    """A tile of which each two runs of 16 columns have changed places."""
    x = gl.permute(gl.reshape(x, [C, 2, 2, 16]), (0, 1, 3, 2))
    first, second = gl.split(x)
    swapped = gl.reshape(gl.permute(gl.join(second, first), (0, 1, 3, 2)), [C, C])
    return gl.convert_layout(swapped, product_of(64), assert_trivial=True)


@gluon.jit
def store_decays(h_w, w, near, whole, left, row, RAW: gl.constexpr):
    """Stores w, 0 where no token is left, and w where it is at least -NEAR_DECAY; the latter."""
    if len(w) == 2:
        b_w = in_float32(h_w)
        if RAW:
            b_w = raw_decay(b_w)
        b_w = gl.where(row < left, b_w, 0.0)
        b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
        store(w, split(b_w))
        near_pieces = split(gl.maximum(b_w, -NEAR_DECAY, propagate_nan=tl.PropagateNan.ALL))
        store(near, near_pieces)
        return near_pieces
    else:
        if not whole:
            h_w = gl.where(row < left, h_w, 0.0).to(gl.bfloat16)
        store(w, Rounded(at_least(h_w, MIN_LOG_DECAY)))
        near_pieces = Rounded(at_least(h_w, -NEAR_DECAY))
        store(near, near_pieces)
        return near_pieces


@gluon.jit
def sums_of_runs(w, s_near, s_earlier, zeros, no_sums):
    """Starts b_before, b_after, b_0, b_1, b_2 and b_3."""
    later = s_earlier.permute((1, 0))
    b_0 = sum_of_run(w.high, s_near, 0, no_sums, use_acc=False)
    b_1 = sum_of_run(w.high, s_near, 1, no_sums, use_acc=False)
    b_2 = sum_of_run(w.high, s_near, 2, no_sums, use_acc=False)
    b_3 = sum_of_run(w.high, s_near, 3, no_sums, use_acc=False)
    b_before = warpgroup_mma(s_earlier, w.high, zeros, use_acc=False, is_async=True)
    b_after = warpgroup_mma(later, w.high, zeros, use_acc=False, is_async=True)
    if len(w) == 2:
        b_0 = sum_of_run(w.low, s_near, 0, b_0, use_acc=True)
        b_1 = sum_of_run(w.low, s_near, 1, b_1, use_acc=True)
        b_2 = sum_of_run(w.low, s_near, 2, b_2, use_acc=True)
        b_3 = sum_of_run(w.low, s_near, 3, b_3, use_acc=True)
        b_before = warpgroup_mma(s_earlier, w.low, b_before, is_async=True)
        b_after = warpgroup_mma(later, w.low, b_after, is_async=True)
    return b_before, b_after, b_0, b_1, b_2, b_3


@gluon.jit
def pass_run(b_s, run: gl.constexpr, s_decays, r_runs, k_runs, v_runs, s_scores, zeros):
    """Sᵀ after a run, oᵀ of its tokens, on its way, and what that reads of Sᵀ.

    Second pieces of the scores, if v has some, are beside the first ones, where pairs of this run
    with another one would be.
    """
    first: gl.constexpr = 16 * run
    r, k = transposed(rows_of(r_runs, first, 16)), rows_of(k_runs, first, 16)
    v = transposed(rows_of(v_runs, first, 16))
    scores = Rounded(s_scores.slice(first, 16, 0).slice(first, 16, 1).permute((1, 0)))
    decays = s_decays.slice(8 * run, 1, 0)
    if len(v) == 1:
        read = as_left(Rounded(rounded(b_s)))
        b_s *= decays.load(b_s.type.layout)
        b_s = plus_product(b_s, v, k, SMALL_FIRST=False)
        b_o = product(read, r, zeros)
        b_o = plus_product(b_o, v, scores, SMALL_FIRST=False)
        b_s = warpgroup_mma_wait(products(read, r) + products(v, scores), deps=(b_s,))
    else:
        beside: gl.constexpr = 16 * (run ^ 1)
        low = s_scores.slice(first, 16, 0).slice(beside, 16, 1).permute((1, 0))
        scores = Split(scores.high, low)
        read = as_left(split(b_s))
        b_s *= decays.load(b_s.type.layout)
        b_o = product(read, r, zeros)
        b_s = plus_product(b_s, v, k, SMALL_FIRST=False)
        b_o = plus_product(b_o, v, scores, SMALL_FIRST=False)
        b_s = warpgroup_mma_wait(products(v, scores), deps=(b_s,) + read)[0]
    return b_s, b_o, read.high


@gluon.jit
def store_turned(o, o_rows, s_o, b_o, whole, left, at, part, place, row, col, H, V: gl.constexpr):
    """Stores o of a chunk, on its side in b_o; else as `store_chunk` in forward.py."""
    if o is None:
        gl.store(o_rows + (at + part) + col * (H * V) + row, b_o, col < left)
    elif whole:
        tma.async_copy_shared_to_global(o, place, s_o)
    else:
        gl.store(o_rows + at + row * (H * V) + col, s_o.load(product_of(64)), row < left)


@gluon.jit
def strong_chunks(
    t, b_s, b_u, n, first, i_h, i_k, i_v, H, slot, scale, tokens,
    inputs, results, staged, ready, ones,
    K: gl.constexpr, V: gl.constexpr,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """From token t of n to the end of a chunk that forward.py can go on from, or to the last.

    first, slot: the first token and checkpoint of the program. inputs, results: what forward.py
    reads, and o, o_rows and checkpoints; staged, ready, ones: the tiles of two stages and their
    barriers, and tiles of one.

    Returns:
        where it stopped, and the state there.
    """
    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    TILES: gl.constexpr = product_of(64)
    SUMS: gl.constexpr = product_of(8)
    RUNS: gl.constexpr = product_of(16)
    ROWS: gl.constexpr = gl.SliceLayout(1, TILES)
    s_w, s_r, s_k, s_v = staged
    o, o_rows, checkpoints = results
    one_log, one_low, one_state, one_more, one_weights, one_mask = ones
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    zero = t // 2**30
    row = gl.arange(0, C, ROWS)[:, None] + zero
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] + zero == 0
    to_near_log2 = gl.where(row % 16 == 8, 0.0, LOG2E)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    no_scores = gl.full([C, 16], 0.0, gl.float32, RUNS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    b_s = turned(b_s, one_log.index(zero), one_low.index(zero), one_state.index(zero))
    earlier, near = weights_of_runs(row, col)
    one_mask.index(zero).store(earlier)
    one_weights.index(zero).store(near)

    there, strong = t, 1  # the copies of the next chunk are on their way
    while (strong != 0) & (t < n):
        # 0, which the compiler cannot know: it would keep all tiles' addresses in registers.
        same_tile = t // 2**30
        s_log, s_low = one_log.index(same_tile), one_low.index(same_tile)
        s_state, s_more = one_state.index(same_tile), one_more.index(same_tile)
        s_mask = one_mask.index(same_tile)
        s_earlier = s_mask._reinterpret(gl.bfloat16, [C, C], TILE)
        s_near = one_weights.index(same_tile)._reinterpret(gl.bfloat16, [C, C], TILE)
        i = t // C % 2
        phase = t // C // 2 % 2
        wait_for_chunk(ready, i, phase)
        whole = t + C <= n
        h_r = s_r.index(i).load(TILES)
        h_k = s_k.index(i).load(TILES)
        h_w = s_w.index(i).load(TILES)
        b_v, s_rest = s_v.index(i), s_w.index(i)._reinterpret(gl.bfloat16, [C, C], TILE)
        if not whole:  # what follows are other tokens, or zeros
            h_k = gl.where(row < n - t, h_k, 0.0).to(DTYPE)
            b_v.store(gl.where(row < n - t, b_v.load(TILES), 0.0).to(DTYPE))
        w, near_w = Rounded(s_log), Rounded(s_more)
        if RAW | HALF:
            w, near_w = Split(s_log, s_low), Split(s_more, s_rest)
        near_pieces = store_decays(h_w, w, near_w, whole, n - t, row, RAW)
        if checkpoints is not None:
            i_state = (slot + t // CHECKPOINT) * H + i_h
            at_checkpoint, saved = i_state * K + i_k * C, (checkpoints, i_k, i_v, row, col)
            if HALF:
                save_half(b_s, saved, i_state, True, 0, K, V, TURNED=True)
            else:
                s_state.permute((1, 0)).store(rounded(b_s))
        fence_async_shared()
        tma.store_wait(0)
        barrier()
        more = (t + C < n) & (t != there)
        copy_chunk(inputs, first + t + C, key_column, value_column, ready, staged, 1 - i, more)
        if checkpoints is not None and not HALF:
            tma.async_copy_shared_to_global(checkpoints, [at_checkpoint, i_v * C], s_state)

        b_near = product(Rounded(s_near), near_w, zeros)
        sums = sums_of_runs(w, s_near, s_earlier, zeros, no_sums)
        b_w = factor_in_float32(near_pieces)
        b_bonus = gl.sum(in_float32(h_r) * in_float32(h_k) * b_u, 1)[:, None]
        b_near = warpgroup_mma_wait(6 * len(w), deps=(b_near,))  # but the other sums
        b_near *= to_near_log2
        near_r = as_left(split(in_float32(h_r) * gl.exp2(b_near)))
        k_pieces = split(in_float32(h_k) * gl.exp2(-b_near - b_w * LOG2E))
        b_before, b_after, b_0, b_1, b_2, b_3 = warpgroup_mma_wait(0, deps=sums)
        if RAW | HALF:
            # A wait ends a warp's own products, not the others': these may still read the tiles
            # of low pieces, which are written over next. The same holds for the two below.
            barrier()
        if HALF:
            near_low, s_scores, s_o = s_state, s_rest, s_r.index(i)
        elif checkpoints is None:
            near_low, s_scores, s_o = s_state, s_rest, s_state
        else:
            near_low, s_scores, s_o = s_rest, s_state, s_r.index(i)
        near_k = Split(s_low, near_low)
        store(near_k, k_pieces)
        fence_async_shared()
        if checkpoints is not None:
            tma.store_wait(0)
        barrier()  # tiles of decays are free
        expect_chunk(ready, i, t + 2 * C < n)

        b_a = product(near_r, transposed(near_k), zeros)
        r_runs = Split(s_r.index(i)._reinterpret(gl.bfloat16, [C, C], TILE), s_log)
        k_runs = Split(s_k.index(i)._reinterpret(gl.bfloat16, [C, C], TILE), s_more)
        store(r_runs, split(in_float32(h_r) * gl.exp2(b_before * LOG2E)))
        store(k_runs, split(in_float32(h_k) * gl.exp2(b_after * LOG2E)))
        b_a = warpgroup_mma_wait(0, deps=(b_a,) + near_r)[0]
        scores = where_one(b_a, b_bonus.to(gl.bfloat16), s_mask.load(TILES))
        if HALF:
            bonus_low = (b_bonus - b_bonus.to(gl.bfloat16).to(gl.float32)).to(gl.bfloat16)
            low = where_one(left_over(b_a), bonus_low, s_mask.load(TILES))
            scores = either_of(scores, of_the_next_run(low))
            v_pieces = split(in_float32(b_v.load(TILES)))
            v_runs = Split(b_v._reinterpret(gl.bfloat16, [C, C], TILE), s_state)
            barrier()  # all warps' products have read near_low, which v_runs.low writes over
            store(v_runs, v_pieces)
        else:
            v_runs = Rounded(b_v)
        s_scores.store(scores)
        fence_async_shared()
        barrier()

        by_run = s_low._reinterpret(gl.float32, [2, 2, 8, C], RUNS_OF_KEYS).permute((3, 2, 1, 0))
        by_run.store(gl.exp2(joined(b_0, b_1, b_2, b_3) * LOG2E))
        s_decays = s_low._reinterpret(gl.float32, [4 * 8, C], ROWS_OF_KEYS)
        of_runs = s_decays, r_runs, k_runs, v_runs, s_scores, no_scores
        b_s, o_0, read_0 = pass_run(b_s, 0, *of_runs)
        b_s, o_1, read_1 = pass_run(b_s, 1, *of_runs)
        if checkpoints is not None:
            if HALF:
                save_half(b_s, saved, i_state + H, t + C // 2 < n, 0, K, V, TURNED=True)
            else:
                near_low.permute((1, 0)).store(rounded(b_s))
        b_s, o_2, read_2 = pass_run(b_s, 2, *of_runs)
        b_s, o_3, read_3 = pass_run(b_s, 3, *of_runs)
        if t // C % 4 == 3:
            b_total = gl.sum(gl.where(is_sum, b_0 + b_1 + b_2 + b_3, 0.0), 1) * LOG2E
            strong = gl.max(gl.where(b_total >= -FITS_TO_END, 0, 1), 0)  # NaN is
        if HALF:  # what they read was read by then
            o_0, o_1, o_2, o_3 = warpgroup_mma_wait(0, deps=(o_0, o_1, o_2, o_3))
        else:
            o_0, o_1, o_2, o_3, read_0, read_1, read_2, read_3 = warpgroup_mma_wait(
                0, deps=(o_0, o_1, o_2, o_3, read_0, read_1, read_2, read_3)
            )
        b_o = gl.reshape(gl.permute(joined(o_0, o_1, o_2, o_3), (0, 3, 2, 1)), [C, C])
        b_o = gl.convert_layout(b_o, TILES, assert_trivial=True)
        if SCALED:
            b_o *= scale
        if checkpoints is not None or HALF:
            barrier()  # all warps' products have read the tile of r, which o writes over
        if o is not None:
            s_o.permute((1, 0)).store(b_o.to(gl.float16) if HALF else rounded(b_o))
        fence_async_shared()
        barrier()
        if checkpoints is not None and not HALF:
            if t + C // 2 < n:
                middle_at = [at_checkpoint + H * K, i_v * C]
                tma.async_copy_shared_to_global(checkpoints, middle_at, near_low)
        store_turned(
            o, o_rows, s_o, b_o, whole, n - t, (first + t).to(gl.int64) * H * V + value_column,
            i_k.to(gl.int64) * tokens * H * V, [first + t, value_column], row, col, H, V,
        )  # fmt: skip
        t += C
    b_s = turned(b_s, one_log.index(zero), one_low.index(zero), one_state.index(zero))
    return t, b_s
