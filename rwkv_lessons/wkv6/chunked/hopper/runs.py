"""What a chunk's tokens ask of each other and of the states around it: formulas of sweep.py.

A chunk is one run of 32 tokens (`one_run`) or two of 16 (`two_runs`); `inside_of_runs` is the same
for both. The symbols are those of the table in sweep.py.
"""

from typing import NamedTuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ....sequences.gluon_tiles import raw_decay
from ..sizes import CHECKPOINT
from ..tiles import LOG2E, MIN_LOG_DECAY
from .factors import (
    Rounded,
    Split,
    as_left,
    high_of,
    in_float32,
    load,
    plus_product,
    plus_product_of_low,
    product,
    products,
    rows_of,
    split,
    store,
    store_split,
    transposed,
)
from .tiles import (
    above_in_two,
    at_least,
    barrier,
    below,
    below_in_two,
    cut,
    in_two_of_float16,
    now,
    product_of,
    to_float16,
)
from .tiles import in_float32 as tile_in_float32

T32 = gl.constexpr(CHECKPOINT)  # tokens of a chunk
LEAST = gl.constexpr(-7.625)  # a log decay that bfloat16 holds, 2^-11
LEAST_OF_FLOAT16 = gl.constexpr(-8.6875)  # 2^-12.5, and eight of them 2^-100
PAIRS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))  # rows of 32 numbers
TILES = gl.constexpr(product_of(32))  # [keys, tokens]
STATE = gl.constexpr(product_of(64))  # [keys, values]
KEYS = gl.constexpr(gl.SliceLayout(1, product_of(32)))
# Scores of float16 are 2^-6 of what they are, up to 2^22; and so is dv, until it is stored.
FROM_SCORES, TO_SCORES = gl.constexpr(2.0**6), gl.constexpr(2.0**-6)


class Tokens(NamedTuple):
    """Of a chunk's inputs, in the order of their use: descriptors, barriers, or tiles."""

    w: object
    do: object
    s: object  # the state before the chunk
    v: object
    r: object
    k: object


class Factors(NamedTuple):
    """A chunk's factors in shared memory, `Rounded` or `Split`.

    rs, ks: what is multiplied by do for dS, and by dS for dv, in a chunk that is one run: rm and
    km, or, in float16, r decayed from the chunk's start and k decayed to its end.
    """

    do_v: tuple  # do above v
    s: tuple
    ds: tuple
    rp_kq: tuple  # r 2^p above k 2^q, as a left factor
    rp: tuple
    kq: tuple
    km_rm: tuple  # k 2^(-m-w) above r 2^m, as a left factor
    km: tuple
    rm: tuple
    rs: tuple
    ks: tuple
    g: tuple  # G, and then the scores: between the runs above those inside of them


class Sums(NamedTuple):
    """Tiles of the weights of sums over tokens, and of masks, both for one run and for two.

    later: of none in float16.
    """

    before: object
    middle: object
    later: tuple
    masks: object


class Places(NamedTuple):
    """Where a thread's elements of a tile of keys × tokens are."""

    row: object
    col: object
    is_left: object  # in the first half of the chunk


class Decays(NamedTuple):
    """Of each key the decays of a chunk's halves; and their log2 in the layout of S."""

    early: object
    late: object
    early_of_state: object
    late_of_state: object


class Units(NamedTuple):
    """By what the tiles of S and dS are smaller than these, powers of two, if in float16."""

    s: object  # of each key
    ds: object
    ds_up: object  # 1 / ds


class Gradients(NamedTuple):
    """dS and the gradients of a chunk, so far, and what `inside_of_runs` goes on with."""

    ds: object
    e_m: object
    e_mw: object
    dr: object
    b_between: object  # scores
    dk: object
    dv: object
    dw: object
    dk_inside: object  # the part of dk / 2^(-m-w) that r of the same run will add to
    dr_inside: object  # of dr / 2^m, and k, likewise


@gluon.jit
def weights_of(s_weights, runs):
    """Weights of sums, one run's or two runs', as a factor."""
    return Rounded(s_weights.index(runs)._reinterpret(gl.bfloat16, [T32, T32], PAIRS))


@gluon.jit
def mask_of(sums, runs):
    """The mask of G and of scores."""
    return sums.masks.index(runs).load(TILES)


@gluon.jit
def store_ds(x, b_ds, units):
    """dS as a factor; in float16, in its units."""
    if x.ds.high.dtype == gl.float16:
        x.ds.high.store(to_float16(b_ds * units.ds_up))
    else:
        store_split(x.ds, b_ds)


@gluon.jit
def split_in_float16(b_x):
    """A float32 tile in two pieces of float16."""
    high, low = in_two_of_float16(b_x)
    return Split(high, low)


@gluon.jit
def by_key(s_x):
    """A tile of tokens × keys as keys × tokens, in float32."""
    return tile_in_float32(s_x.permute((1, 0)).load(TILES))


@gluon.jit
def r_by_key(s_r, scale, SCALED: gl.constexpr):
    b_r = by_key(s_r)
    if SCALED:
        b_r *= scale
    return b_r


@gluon.jit
def log_decays(s_w, RAW: gl.constexpr):
    """The log decays of a chunk, in float32, at least MIN_LOG_DECAY."""
    b_w = by_key(s_w)
    if RAW:
        b_w = raw_decay(b_w)
    return gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def decays(s_w, RAW: gl.constexpr):
    """w, in as many pieces as it takes."""
    if s_w.dtype == gl.bfloat16 and not RAW:
        return Rounded(at_least(s_w.permute((1, 0)).load(TILES), MIN_LOG_DECAY))
    else:
        return split(log_decays(s_w, RAW))


@gluon.jit
def decays_and_weakened(s_w, RAW: gl.constexpr):
    """w as a left factor, and w where it is at least LEAST, else that, in as many pieces."""
    if s_w.dtype == gl.bfloat16 and not RAW:
        b_w = s_w.permute((1, 0)).load(TILES)
        w = as_left(Rounded(at_least(b_w, MIN_LOG_DECAY)))
        return w, Rounded(at_least(b_w, LEAST))
    else:
        b_w = log_decays(s_w, RAW)
        w = as_left(split(b_w))
        least: gl.constexpr = LEAST_OF_FLOAT16 if s_w.dtype == gl.float16 else LEAST
        return w, split(gl.maximum(b_w, least, propagate_nan=tl.PropagateNan.ALL))


@gluon.jit
def exponents(w, middle, sums, runs, zeros):
    """Starts m and -m-w, sums of w; without weights for the latter, which follows, m alone."""
    b_m = product(w, middle, zeros)
    if len(sums.later) == 0:
        return (b_m,)
    else:
        return b_m, product(w, weights_of(sums.later[0], runs), zeros)


@gluon.jit
def common_with_state(b_ds, x, units):
    """Of each key the sum of dS times S."""
    b_across = gl.sum(b_ds * tile_in_float32(x.s.high.load(b_ds.type.layout)), 1)
    b_across = gl.convert_layout(b_across, KEYS)
    if x.s.high.dtype == gl.float16:
        b_across *= units.s
    return b_across


@gluon.jit
def store_factors_of_pairs(b_m, b_mw, late, c, x, scale, SCALED: gl.constexpr):
    """r 2^m and k 2^(-m-w), into shared memory; 2^m, 2^(-m-w), r 2^m, k 2^(-m-w) and k.

    late: None, or of float16 the decays of the chunk's second half, for `Factors.ks`.
    """
    e_m = now(gl.exp2(b_m * LOG2E))
    e_mw = now(gl.exp2(b_mw * LOG2E))
    b_rm = r_by_key(c.r, scale, SCALED) * e_m
    store_split(transposed(x.rm), b_rm)
    b_k = by_key(c.k)
    b_km = b_k * e_mw
    km = split(b_km)
    if c.k.dtype == gl.float16:
        b_km = in_float32(km)
    if late is not None:  # first, since a barrier comes between two stores to one tile
        store(transposed(x.ks), Rounded(to_float16(b_km * late[:, None])))
    store(transposed(x.km), km)
    return e_m, e_mw, b_rm, b_km, b_k


@gluon.jit
def store_pairs(s_g, b_g, mask):
    """G where tokens see each other, in two pieces."""
    high, low = above_in_two(b_g, mask)
    s_g.high.store(high)
    s_g.low.store(low)


@gluon.jit
def one_run(
    b_ds, b_dr, b_st, b_m, b_mw, d, c, x, sums, runs, units, place, zeros, scale,
    SCALED: gl.constexpr,
):  # fmt: skip
    """`Gradients` of a chunk that is one run: S do is decayed to its middle, and dS, or dS v.

    b_dr: S do, by key; b_st: G, [s, t], in its lower half; d: the chunk's `Decays`.
    """
    HALF: gl.constexpr = c.r.dtype == gl.float16
    do, v = rows_of(x.do_v, 0, T32), transposed(rows_of(x.do_v, T32, T32))
    if HALF:
        store_ds(x, b_ds, units)
        b_across = common_with_state(b_ds, x, units) * (d.early * d.late)
        b_ds *= gl.exp2(d.early_of_state + d.late_of_state)[:, None]
    else:
        b_ds *= gl.exp2(d.late_of_state)[:, None]
        store_split(x.ds, b_ds)
        b_across = common_with_state(b_ds, x, units) * d.early
    store_pairs(x.g, b_st, mask_of(sums, runs))
    late = d.late if HALF else None
    e_m, e_mw, b_rm, b_km, _ = store_factors_of_pairs(b_m, b_mw, late, c, x, scale, SCALED)
    if HALF:
        store(transposed(x.rs), split_in_float16(b_rm * d.early[:, None]))
        b_dr_inside = now(b_dr * (d.early * units.s)[:, None])
    else:
        b_dr_inside = now(b_dr * d.early[:, None])
    fence_async_shared()
    barrier()  # all warps' parts of the factors are stored
    b_dk_inside = product(x.ds, v, zeros)
    b_ds = plus_product(now(b_ds), transposed(x.rs), do)
    b_dv = product(transposed(x.ds), transposed(x.ks), zeros)
    b_dk_inside, b_ds, b_dv = warpgroup_mma_wait(0, deps=(b_dk_inside, b_ds, b_dv))
    if HALF:
        b_dk_inside = now(b_dk_inside * (d.late * units.ds)[:, None])
        b_dv = now(b_dv * (units.ds * TO_SCORES))
    b_across += gl.sum(b_km * b_dk_inside, 1)
    b_dw = zeros + b_across[:, None]
    if not HALF:
        b_ds *= gl.exp2(d.early_of_state)[:, None]
    return Gradients(
        b_ds, e_m, e_mw, zeros, zeros, zeros, b_dv, b_dw, b_dk_inside, b_dr_inside
    )  # fmt: skip


@gluon.jit
def two_runs(
    b_ds, b_dr, b_st, d, c, x, sums, runs, units, place, zeros, scale,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """`Gradients` of a chunk of two runs; arguments as of `one_run`."""
    HALF: gl.constexpr = c.r.dtype == gl.float16
    do, v = rows_of(x.do_v, 0, T32), transposed(rows_of(x.do_v, T32, T32))
    before, middle = weights_of(sums.before, runs), weights_of(sums.middle, runs)
    after = transposed(before)
    w, weak = decays_and_weakened(c.w, RAW)
    b_weak, weak = in_float32(weak), as_left(weak)
    store_ds(x, b_ds, units)
    b_ds *= gl.exp2(d.early_of_state + d.late_of_state)[:, None]
    b_across = common_with_state(b_ds, x, units)
    fence_async_shared()
    barrier()  # dS is stored
    m_and_mw = exponents(weak, middle, sums, runs, zeros)
    b_p = product(w, before, zeros)
    b_q = product(w, after, zeros)
    b_ts = product(x.do_v, v, zeros)
    b_dk = product(x.ds, v, zeros)
    going_on: gl.constexpr = products(x.do_v, v) + products(x.ds, v)
    deps = m_and_mw + (b_p, b_q) + w + weak
    if len(m_and_mw) == 1:
        b_m, b_p, b_q = warpgroup_mma_wait(going_on, deps=deps)[:3]
        b_mw = -b_m - b_weak
    else:
        b_m, b_mw, b_p, b_q = warpgroup_mma_wait(going_on, deps=deps)[:4]
    e_m, e_mw, _, _, b_k = store_factors_of_pairs(b_m, b_mw, None, c, x, scale, SCALED)
    e_p = now(gl.exp2(b_p * LOG2E))
    e_q = now(gl.exp2(b_q * LOG2E))
    b_rp = r_by_key(c.r, scale, SCALED) * e_p
    store_split(transposed(x.rp), b_rp)
    mask = mask_of(sums, runs)
    b_ts, b_dk = warpgroup_mma_wait(0, deps=(b_ts, b_dk))
    store_pairs(x.g, gl.where(place.row < T32, b_ts, b_st), mask)
    b_kq = b_k * e_q
    store_split(transposed(x.kq), b_kq)
    fence_async_shared()
    barrier()  # all warps' parts of the factors are stored
    early_decay, late_decay = d.early[:, None], d.late[:, None]
    if HALF:
        b_dr, b_dk = b_dr * units.s[:, None], b_dk * units.ds
    b_dr = now(gl.where(place.is_left, b_dr, b_dr * early_decay))
    b_dk = now(gl.where(place.is_left, b_dk * late_decay, b_dk))
    of_left = b_across + gl.sum(gl.where(place.is_left, 0.0, b_rp * b_dr), 1)
    of_right = b_across + gl.sum(gl.where(place.is_left, b_kq * b_dk, 0.0), 1)
    b_dw = now(gl.where(place.is_left, of_left[:, None], of_right[:, None]))
    g, kq, rp = rows_of(x.g, 0, T32), transposed(x.kq), transposed(x.rp)
    b_from_start = gl.where(place.is_left, b_rp, b_rp * early_decay)
    r_from_start = as_left(split_in_float16(b_from_start) if HALF else split(b_from_start))
    b_ds = plus_product(now(b_ds), r_from_start, do)
    b_dr = plus_product(b_dr, kq, transposed(g if HALF else high_of(g)))
    b_dk = plus_product(b_dk, rp, g)
    b_between = product(x.rp_kq, kq, zeros)
    b_to_end = gl.where(place.is_left, b_kq * late_decay, b_kq)
    k_to_end = Rounded(to_float16(b_to_end)) if HALF else split(b_to_end)
    deps = (b_ds, b_dr, b_dk, b_between) + r_from_start
    b_ds, b_dr, b_dk, b_between = warpgroup_mma_wait(0, deps=deps)[:4]
    if HALF:
        barrier()  # all warps' products have read k 2^q
    k_of_state = transposed(x.ks) if HALF else kq
    store(k_of_state, k_to_end)
    fence_async_shared()
    barrier()  # k decayed to the chunk's end is stored

    # What passes a token on its way between states and runs.
    b_dr = now(b_dr * e_p)
    r_dr = as_left(split(r_by_key(c.r, scale, SCALED) * b_dr))
    b_dk = now(b_dk * e_q)
    k_dk = as_left(split(by_key(c.k) * b_dk))
    b_dw = plus_product(b_dw, r_dr, after)
    b_dw = plus_product(b_dw, k_dk, before)
    b_dv = product(transposed(x.ds), k_of_state, zeros)
    deps = (b_dw, b_dv) + r_dr + k_dk
    b_dw, b_dv = warpgroup_mma_wait(0, deps=deps)[:2]
    if HALF:
        b_dv = now(b_dv * (units.ds * TO_SCORES))
    return Gradients(b_ds, e_m, e_mw, b_dr, b_between, b_dk, b_dv, b_dw, zeros, zeros)


@gluon.jit
def inside_of_runs(b, x, sums, runs, place, zeros, HALF: gl.constexpr):
    """dr, dk, dv, on its way, and what passes each token of what tokens of a run give each other.

    b: `Gradients` so far. Sums of r dr and k dk are of the very same pieces, with all four
    products of two, so that what does not pass cancels.
    """
    b_dr_inside, b_dk_inside = now(b.dr_inside), now(b.dk_inside)
    do = rows_of(x.do_v, 0, T32)
    pairs = rows_of(x.g, T32, T32)  # [s, t]
    g = pairs if HALF else high_of(pairs)
    km, rm = transposed(x.km), transposed(x.rm)
    b_dr_inside = plus_product_of_low(b_dr_inside, km, g)
    b_dk_inside = plus_product_of_low(b_dk_inside, rm, transposed(g))
    b_dr_inside = plus_product(b_dr_inside, km, g)
    b_dk_inside = plus_product(b_dk_inside, rm, transposed(g))
    b_inside = product(x.km_rm if HALF else high_of(x.km_rm), km, zeros)
    b_dr_inside, b_dk_inside, b_inside = warpgroup_mma_wait(
        0, deps=(b_dr_inside, b_dk_inside, b_inside)
    )
    b_k_dk = now(in_float32(load(km, TILES)) * b_dk_inside)
    b_dk = now(b.dk + b.e_mw * b_dk_inside)
    b_r_dr = now(in_float32(load(rm, TILES)) * b_dr_inside)
    b_dr = now(b.dr + b.e_m * b_dr_inside)
    first, b_rest = cut(b_r_dr - b_k_dk)
    first, remainder = as_left(Rounded(first)).high, as_left(split(b_rest))
    after = transposed(weights_of(sums.before, runs)).high
    b_passed = warpgroup_mma(remainder.low, after, zeros, use_acc=False, is_async=True)
    b_passed = warpgroup_mma(remainder.high, after, b_passed, is_async=True)
    b_passed = warpgroup_mma(first, after, b_passed, is_async=True)

    mask = mask_of(sums, runs)
    b_scores = gl.where(place.row < T32, b.b_between, b_inside)
    if HALF:
        scores = Rounded(x.g.high._reinterpret(gl.float16, [2 * T32, T32], PAIRS))
        scores.high.store(below(to_float16(b_scores * TO_SCORES), mask))
    else:
        scores = x.g
        high, low = below_in_two(b_scores, mask)
        scores.high.store(high)
        scores.low.store(low)
    fence_async_shared()
    barrier()  # all warps' scores are stored
    between, inside = rows_of(scores, 0, T32), rows_of(scores, T32, T32)
    b_dv = plus_product(b.dv, transposed(do), between)
    b_dv = plus_product(b_dv, transposed(do), inside)
    deps = (b_passed, first) + remainder
    b_passed = warpgroup_mma_wait(products(do, between) + products(do, inside), deps=deps)[0]
    return b_dr, b_dk, b_dv, b_passed - b_k_dk
