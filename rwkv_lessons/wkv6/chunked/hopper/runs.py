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
    as_fine_as,
    as_left,
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
    below_in_two,
    cut,
    now,
    product_of,
    widened,
)
from .tiles import in_float32 as tile_in_float32

T32 = gl.constexpr(CHECKPOINT)  # tokens of a chunk
LEAST = gl.constexpr(-7.625)  # a log decay that bfloat16 holds, 2^-11
LEAST_OF_FLOAT16 = gl.constexpr(-8.6875)  # 2^-12.5, and eight of them 2^-100
PAIRS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))  # rows of 32 numbers
TILES = gl.constexpr(product_of(32))  # [keys, tokens]
STATE = gl.constexpr(product_of(64))  # [keys, values]
KEYS = gl.constexpr(gl.SliceLayout(1, product_of(32)))


class Tokens(NamedTuple):
    """Of a chunk's inputs, in the order of their use: descriptors, barriers, or tiles."""

    w: object
    do: object
    s: tuple  # of one, the state before the chunk; of none where it comes in float32, without tiles
    v: object
    r: object
    k: object


class Factors(NamedTuple):
    """A chunk's factors in shared memory, `Rounded` or `Split`."""

    do_v: tuple  # do above v
    s: tuple
    ds: tuple
    rp_kq: tuple  # r 2^p above k 2^q, as a left factor
    rp: tuple
    kq: tuple
    km_rm: tuple  # k 2^(-m-w) above r 2^m, as a left factor
    km: tuple
    rm: tuple
    g: tuple  # G, and then the scores: between the runs above those inside of them


class Sums(NamedTuple):
    """Tiles of the weights of sums over tokens, and of masks, both for one run and for two.

    later, masks: of none where there is no room for them; masks are then loaded from `masks_at`.
    """

    before: object
    middle: object
    later: tuple
    masks: tuple
    masks_at: object


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
def mask_of(sums, runs, at, place):
    """The mask of G and of scores; at: runs, where a tile of it is in memory."""
    if len(sums.masks) == 0:
        return gl.load(sums.masks_at + at * (5 * T32 * T32) + place.row * T32 + place.col)
    else:
        return sums.masks[0].index(runs).load(TILES)


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
def common_with_state(b_ds, b_s, s_s):
    """Of each key the sum of dS times S: in float32 if it is there, else from its tile."""
    if b_s is None:
        return gl.sum(b_ds * widened(s_s.load(b_ds.type.layout)), 1)
    else:
        return gl.sum(b_ds * b_s, 1)


@gluon.jit
def store_factors_of_pairs(b_m, b_mw, c, x, scale, SCALED: gl.constexpr):
    """r 2^m and k 2^(-m-w), into shared memory; 2^m, 2^(-m-w), k 2^(-m-w) and k."""
    e_m = now(gl.exp2(b_m * LOG2E))
    e_mw = now(gl.exp2(b_mw * LOG2E))
    store_split(transposed(x.rm), r_by_key(c.r, scale, SCALED) * e_m)
    b_k = by_key(c.k)
    b_km = b_k * e_mw
    km = split(b_km)
    store(transposed(x.km), km)
    if len(x.do_v) == 2:
        b_km = in_float32(km)
    return e_m, e_mw, b_km, b_k


@gluon.jit
def store_pairs(s_g, b_g, mask):
    """G where tokens see each other, in two pieces."""
    high, low = above_in_two(b_g, mask)
    s_g.high.store(high)
    s_g.low.store(low)


@gluon.jit
def one_run(
    b_ds, b_s, b_dr, b_st, b_m, b_mw, d, c, x, sums, runs, place, zeros, scale,
    SCALED: gl.constexpr,
):  # fmt: skip
    """`Gradients` of a chunk that is one run: dS and S do are decayed to its middle.

    b_dr: S do, by key; b_st: G, [s, t], in its lower half; d: the chunk's `Decays`.
    """
    do, v = rows_of(x.do_v, 0, T32), transposed(rows_of(x.do_v, T32, T32))
    if b_s is not None:
        # A wait ends a warp's own products, not the others': without this barrier a warp
        # ahead would write over S, in its tile, while another warp's product reads it.
        barrier()
    b_ds *= gl.exp2(d.late_of_state)[:, None]
    store_split(x.ds, b_ds)
    b_across = common_with_state(b_ds, b_s, x.s.high)
    b_across = gl.convert_layout(b_across, KEYS) * d.early
    store_pairs(x.g, b_st, mask_of(sums, runs, 0, place))
    e_m, e_mw, b_km, _ = store_factors_of_pairs(b_m, b_mw, c, x, scale, SCALED)
    b_dr_inside = now(b_dr * d.early[:, None])
    fence_async_shared()
    barrier()  # all warps' parts of the factors are stored
    b_dk_inside = product(x.ds, v, zeros)
    b_ds = plus_product(now(b_ds), transposed(x.rm), do)
    b_dv = product(transposed(x.ds), transposed(x.km), zeros)
    b_dk_inside, b_ds, b_dv = warpgroup_mma_wait(0, deps=(b_dk_inside, b_ds, b_dv))
    b_across += gl.sum(b_km * b_dk_inside, 1)
    b_dw = zeros + b_across[:, None]
    b_ds *= gl.exp2(d.early_of_state)[:, None]
    return Gradients(
        b_ds, e_m, e_mw, zeros, zeros, zeros, b_dv, b_dw, b_dk_inside, b_dr_inside
    )  # fmt: skip


@gluon.jit
def two_runs(
    b_ds, b_s, b_dr, b_st, d, c, x, sums, runs, place, zeros, scale,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """`Gradients` of a chunk of two runs; arguments as of `one_run`."""
    do, v = rows_of(x.do_v, 0, T32), transposed(rows_of(x.do_v, T32, T32))
    before, middle = weights_of(sums.before, runs), weights_of(sums.middle, runs)
    after = transposed(before)
    w, weak = decays_and_weakened(c.w, RAW)
    b_weak, weak = in_float32(weak), as_left(weak)
    store_split(x.ds, b_ds)
    b_ds *= gl.exp2(d.early_of_state + d.late_of_state)[:, None]
    b_across = gl.convert_layout(common_with_state(b_ds, b_s, x.s.high), KEYS)
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
    e_m, e_mw, _, b_k = store_factors_of_pairs(b_m, b_mw, c, x, scale, SCALED)
    e_p = now(gl.exp2(b_p * LOG2E))
    e_q = now(gl.exp2(b_q * LOG2E))
    b_rp = r_by_key(c.r, scale, SCALED) * e_p
    store_split(transposed(x.rp), b_rp)
    mask = mask_of(sums, runs, 1, place)
    b_ts, b_dk = warpgroup_mma_wait(0, deps=(b_ts, b_dk))
    store_pairs(x.g, gl.where(place.row < T32, b_ts, b_st), mask)
    b_kq = b_k * e_q
    store_split(transposed(x.kq), b_kq)
    fence_async_shared()
    barrier()  # all warps' parts of the factors are stored
    early_decay, late_decay = d.early[:, None], d.late[:, None]
    b_dr = now(gl.where(place.is_left, b_dr, b_dr * early_decay))
    b_dk = now(gl.where(place.is_left, b_dk * late_decay, b_dk))
    of_left = b_across + gl.sum(gl.where(place.is_left, 0.0, b_rp * b_dr), 1)
    of_right = b_across + gl.sum(gl.where(place.is_left, b_kq * b_dk, 0.0), 1)
    b_dw = now(gl.where(place.is_left, of_left[:, None], of_right[:, None]))
    g, kq, rp = rows_of(x.g, 0, T32), transposed(x.kq), transposed(x.rp)
    r_from_start = as_left(split(gl.where(place.is_left, b_rp, b_rp * early_decay)))
    b_ds = plus_product(now(b_ds), r_from_start, do)
    b_dr = plus_product(b_dr, kq, as_fine_as(transposed(g), do))
    b_dk = plus_product(b_dk, rp, g)
    b_between = product(x.rp_kq, kq, zeros)
    k_to_end = split(gl.where(place.is_left, b_kq * late_decay, b_kq))
    deps = (b_ds, b_dr, b_dk, b_between) + r_from_start
    b_ds, b_dr, b_dk, b_between = warpgroup_mma_wait(0, deps=deps)[:4]
    store(kq, k_to_end)
    fence_async_shared()
    barrier()  # k decayed to the chunk's end is stored

    # What passes a token on its way between states and runs.
    b_dr = now(b_dr * e_p)
    r_dr = as_left(split(r_by_key(c.r, scale, SCALED) * b_dr))
    b_dk = now(b_dk * e_q)
    k_dk = as_left(split(by_key(c.k) * b_dk))
    b_dw = plus_product(b_dw, r_dr, after)
    b_dw = plus_product(b_dw, k_dk, before)
    b_dv = product(transposed(x.ds), kq, zeros)
    deps = (b_dw, b_dv) + r_dr + k_dk
    b_dw, b_dv = warpgroup_mma_wait(0, deps=deps)[:2]
    return Gradients(b_ds, e_m, e_mw, b_dr, b_between, b_dk, b_dv, b_dw, zeros, zeros)


@gluon.jit
def inside_of_runs(b, x, sums, runs, place, zeros):
    """dr, dk, dv, on its way, and what passes each token of what tokens of a run give each other.

    b: `Gradients` so far. Sums of r dr and k dk are of the very same pieces, with all four
    products of two, so that what does not pass cancels.
    """
    b_dr_inside, b_dk_inside = now(b.dr_inside), now(b.dk_inside)
    do = rows_of(x.do_v, 0, T32)
    g = as_fine_as(rows_of(x.g, T32, T32), do)  # [s, t]
    km, rm = transposed(x.km), transposed(x.rm)
    b_dr_inside = plus_product_of_low(b_dr_inside, km, g)
    b_dk_inside = plus_product_of_low(b_dk_inside, rm, transposed(g))
    b_dr_inside = plus_product(b_dr_inside, km, g)
    b_dk_inside = plus_product(b_dk_inside, rm, transposed(g))
    b_inside = product(as_fine_as(x.km_rm, do), km, zeros)
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

    mask = mask_of(sums, runs, runs, place)
    high, low = below_in_two(gl.where(place.row < T32, b.b_between, b_inside), mask)
    x.g.high.store(high)
    x.g.low.store(low)
    fence_async_shared()
    barrier()  # all warps' scores are stored
    between, inside = rows_of(x.g, 0, T32), rows_of(x.g, T32, T32)
    b_dv = plus_product(b.dv, transposed(do), between)
    b_dv = plus_product(b_dv, transposed(do), inside)
    deps = (b_passed, first) + remainder
    b_passed = warpgroup_mma_wait(products(do, between) + products(do, inside), deps=deps)[0]
    return b_dr, b_dk, b_dv, b_passed - b_k_dk
