"""Four warps that make the factors of a chunk: what it reads of the state, and adds to it.

A mild chunk is one run, with r and k decayed from and to where half of its decays are past, as in
forward.py. One with strong decays is four runs of 16 tokens, as in strong.py: r from the start of
its run, k to the end of it, and scores within runs, from r and k decayed from and to the middle of
their run. Keys come in two halves; which kind a chunk is depends on both.

h_ is in registers as it came. w, near_w, r, k and near_k are factors, of one piece or two.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from ..tiles import LOG2E, MIN_LOG_DECAY
from .factors import (
    Rounded,
    Split,
    as_left,
    in_float32,
    load,
    plus_product,
    product,
    split,
    store,
    transposed,
)
from .strong import NEAR_DECAY, sum_of_run, sums_of_runs
from .tiles import TILE, C, at_least, barrier, product_of, where_one, widened
from .wide_tiles import decays_of, is_mild

TILES = gl.constexpr(product_of(64))
SUMS = gl.constexpr(product_of(8))
ROWS = gl.constexpr(gl.SliceLayout(1, product_of(64)))


@gluon.jit
def log_decays(h_w, rest, row, RAW: gl.constexpr):
    """The log decays of a tile, 0 where no token is left, in as many pieces as they take."""
    if RAW:
        b_w = -gl.exp2(widened(h_w) * LOG2E)
        b_w = gl.where(row < rest, b_w, 0.0)
        return split(gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL))
    else:
        if rest < C:
            h_w = gl.where(row < rest, h_w, 0.0).to(gl.bfloat16)
        return Rounded(at_least(h_w, MIN_LOG_DECAY))


@gluon.jit
def near_decays(w):
    """The same, at least -NEAR_DECAY."""
    if len(w) == 2:
        return split(gl.maximum(in_float32(w), -NEAR_DECAY, propagate_nan=tl.PropagateNan.ALL))
    else:
        return Rounded(at_least(w.high, -NEAR_DECAY))


@gluon.jit
def store_decay(
    s_x, b_sums, zero, SHARE: gl.constexpr = 1.0, LOG2: gl.constexpr = False
):  # fmt: skip
    """A share of the first of eight columns of sums of log decays, as a decay or its log2."""
    is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] + zero == 0
    b_log = gl.sum(gl.where(is_sum, b_sums, 0.0), 1) * (SHARE * LOG2E)
    s_x.store(b_log if LOG2 else gl.exp2(b_log))


@gluon.jit
def chunk_sums(w, s_earlier, s_near):
    """Starts the sums of log decays after a token, and by key over each half of the chunk."""
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    b_after = product(Rounded(s_earlier.permute((1, 0))), w, zeros)
    b_early = sum_of_run(w.high, s_near, 0, no_sums, use_acc=False)
    b_late = sum_of_run(w.high, s_near, 2, no_sums, use_acc=False)
    b_early = sum_of_run(w.high, s_near, 1, b_early, use_acc=True)
    b_late = sum_of_run(w.high, s_near, 3, b_late, use_acc=True)
    if len(w) == 2:
        b_early = sum_of_run(w.low, s_near, 0, b_early, use_acc=True)
        b_late = sum_of_run(w.low, s_near, 2, b_late, use_acc=True)
        b_early = sum_of_run(w.low, s_near, 1, b_early, use_acc=True)
        b_late = sum_of_run(w.low, s_near, 3, b_late, use_acc=True)
    return b_after, b_early, b_late


@gluon.jit
def store_scores(s_scores, b_a, b_bonus, s_mask):
    """Scores before a token and its bonus, in bfloat16."""
    s_scores.store(where_one(b_a, b_bonus.to(gl.bfloat16), s_mask.load(TILES)))


@gluon.jit
def load_k(s_k, rest, row):
    """k as it came, 0 where no token is left: what follows are other tokens, or zeros."""
    h_k = s_k.load(TILES)
    if rest < C:
        h_k = gl.where(row < rest, h_k, 0.0).to(gl.bfloat16)
    return h_k


@gluon.jit
def make_mild(s_w, b_after, s_half, scale, s_r, s_k, rest, row):
    """r and k of a chunk that is one run, to shared memory; r, as a left factor, too.

    s_half: log2 of half of the chunk's decays.
    """
    b_after = b_after * LOG2E - s_half.load(gl.SliceLayout(0, TILES))[None, :]
    w = load(s_w, TILES)
    store(s_k, split(widened(load_k(s_k.high, rest, row)) * gl.exp2(b_after)))
    h_r = s_r.high.load(TILES)
    r = split(widened(h_r) * scale * gl.exp2(-b_after - in_float32(w) * LOG2E))
    store(s_r, r)
    return as_left(r)


@gluon.jit
def near_scores(b_a, s_w, scale, s_r, s_k, s_scores, s_weights, rest, row):
    """b_a and the scores within runs of 16 tokens, of 64 keys.

    By way of s_scores and of the tile of r's low pieces; if low pieces of w are there, they are
    stored again.
    """
    s_near = s_weights.index(2)._reinterpret(gl.bfloat16, [C, C], TILE)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    w = load(s_w, TILES)
    near = near_decays(w)
    near_w = Rounded(s_scores)
    if len(w) == 2:
        near_w = Split(s_scores, s_r.low)
    store(near_w, near)
    fence_async_shared()
    barrier()
    b_near = product(Rounded(s_near), near_w, zeros)
    b_near = warpgroup_mma_wait(0, deps=(b_near,))
    barrier()  # all warps' products have read near_w
    b_near *= gl.where(row % 16 == 8, 0.0, LOG2E)
    near_k = Split(s_scores, s_r.low)
    b_k = widened(load_k(s_k.high, rest, row))
    store(near_k, split(b_k * gl.exp2(-b_near - in_float32(near) * LOG2E)))
    near_r = as_left(split(widened(s_r.high.load(TILES)) * scale * gl.exp2(b_near)))
    fence_async_shared()
    barrier()
    b_a = plus_product(b_a, near_r, transposed(near_k))
    b_a = warpgroup_mma_wait(0, deps=(b_a,) + near_r)[0]
    barrier()  # all warps' products have read near_k
    if len(w) == 2:
        s_w.low.store(w.low)
    return b_a


@gluon.jit
def make_strong(s_w, scale, s_r, s_k, s_weights, s_decay, i, rest, row, zero, g: gl.constexpr):
    """r, k and decays of a chunk that is four runs, to shared memory."""
    s_earlier = s_weights.index(1)._reinterpret(gl.bfloat16, [C, C], TILE)
    s_near = s_weights.index(2)._reinterpret(gl.bfloat16, [C, C], TILE)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    b_before, b_after, b_0, b_1, b_2, b_3 = warpgroup_mma_wait(
        0, deps=sums_of_runs(s_w, s_near, s_earlier, zeros, no_sums)
    )
    barrier()  # all warps' products have read s_w
    store_decay(decays_of(s_decay, i, 0, g), b_0, zero)
    store_decay(decays_of(s_decay, i, 1, g), b_1, zero)
    store_decay(decays_of(s_decay, i, 2, g), b_2, zero)
    store_decay(decays_of(s_decay, i, 3, g), b_3, zero)
    h_r = s_r.high.load(TILES)
    store(s_r, split(widened(h_r) * scale * gl.exp2(b_before * LOG2E)))
    h_k = load_k(s_k.high, rest, row)
    store(s_k, split(widened(h_k) * gl.exp2(b_after * LOG2E)))


@gluon.jit
def tiles_of(tiles, j, RAW: gl.constexpr):
    """w, r and k of 64 keys of a stage, as factors in shared memory."""
    s_w, s_r, s_k, s_v, s_low, s_scores, s_decay = tiles
    w, low = s_w.index(j), s_low.index(j)
    log = Rounded(w)
    if RAW:
        log = Split(w, low)
    return log, Split(s_r.index(j), low), Split(s_k.index(j), w)


@gluon.jit
def bonus_of(s_r, s_k, s_u, scale):
    """What a token reads of itself, through 64 keys."""
    b_u = s_u.load(gl.SliceLayout(0, TILES))[None, :]
    b_bonus = widened(s_r.high.load(TILES)) * widened(s_k.high.load(TILES)) * b_u
    return (gl.sum(b_bonus, 1) * scale)[:, None]


@gluon.jit
def make_factors(arguments, RAW: gl.constexpr, SCALED: gl.constexpr, KEEP: gl.constexpr):
    """All chunks of a segment."""
    tiles, s_weights, s_u, loaded, ready, n, scale = arguments
    s_decay = tiles[6]
    if not SCALED:
        scale = 1.0
    for t in range(0, n, C):
        zero = t // 2**30  # which the compiler cannot know: it would keep masks in registers
        i, phase, rest = t // C % 2, t // C // 2 % 2, n - t
        row = gl.arange(0, C, ROWS)[:, None] + zero
        log_0, r_0, k_0 = tiles_of(tiles, 2 * i, RAW)
        log_1, r_1, k_1 = tiles_of(tiles, 2 * i + 1, RAW)
        s_scores, s_earlier = tiles[5].index(i), s_weights.index(0)
        s_earlier = s_earlier._reinterpret(gl.bfloat16, [C, C], TILE)
        s_near = s_weights.index(2)._reinterpret(gl.bfloat16, [C, C], TILE)
        zeros = gl.full([C, C], 0.0, gl.float32, TILES)
        for g in gl.static_range(2):
            for x in gl.static_range(3):
                mbarrier.wait(loaded[g][x].index(i), phase)
        b_bonus = bonus_of(r_0, k_0, s_u.index(0), scale)
        b_bonus += bonus_of(r_1, k_1, s_u.index(1), scale)
        store(log_0, log_decays(log_0.high.load(TILES), rest, row, RAW))
        store(log_1, log_decays(log_1.high.load(TILES), rest, row, RAW))
        fence_async_shared()
        barrier()
        sums_0 = chunk_sums(log_0, s_earlier, s_near)
        sums_1 = chunk_sums(log_1, s_earlier, s_near)
        sums = warpgroup_mma_wait(0, deps=sums_0 + sums_1)
        after_0, early_0, late_0, after_1, early_1, late_1 = sums
        store_decay(decays_of(s_decay, i, 4, 0), early_0 + late_0, zero, SHARE=0.5)
        store_decay(decays_of(s_decay, i, 4, 1), early_1 + late_1, zero, SHARE=0.5)
        store_decay(decays_of(s_decay, i, 5, 0), early_0 + late_0, zero, SHARE=0.5, LOG2=True)
        store_decay(decays_of(s_decay, i, 5, 1), early_1 + late_1, zero, SHARE=0.5, LOG2=True)
        if KEEP:
            store_decay(decays_of(s_decay, i, 6, 0), early_0 - late_0, zero, SHARE=0.5)
            store_decay(decays_of(s_decay, i, 6, 1), early_1 - late_1, zero, SHARE=0.5)
        barrier()  # all warps' decays are stored, and their products have read the tiles of w
        if is_mild(s_decay, i):
            left_0 = make_mild(
                log_0, after_0, decays_of(s_decay, i, 5, 0), scale, r_0, k_0, rest, row
            )
            fence_async_shared()
            barrier()  # all warps' parts of k are stored
            b_a = product(left_0, transposed(k_0), zeros)
            left_1 = make_mild(
                log_1, after_1, decays_of(s_decay, i, 5, 1), scale, r_1, k_1, rest, row
            )
            fence_async_shared()
            barrier()
            b_a = plus_product(b_a, left_1, transposed(k_1))
            b_a = warpgroup_mma_wait(0, deps=(b_a,) + left_0 + left_1)[0]
            store_scores(s_scores, b_a, b_bonus, s_weights.index(0))
        else:
            b_a = near_scores(zeros, log_0, scale, r_0, k_0, s_scores, s_weights, rest, row)
            b_a = near_scores(b_a, log_1, scale, r_1, k_1, s_scores, s_weights, rest, row)
            store_scores(s_scores, b_a, b_bonus, s_weights.index(1))
            fence_async_shared()
            barrier()  # low pieces of w are there again
            make_strong(log_0, scale, r_0, k_0, s_weights, s_decay, i, rest, row, zero, 0)
            make_strong(log_1, scale, r_1, k_1, s_weights, s_decay, i, rest, row, zero, 1)
        fence_async_shared()
        barrier()  # all warps' factors are there
        mbarrier.arrive(ready.index(i), count=1)
