"""All gradients of WKV-6 in one reverse sweep, in Gluon, for bfloat16 and float16 on Hopper.

A program takes the chunks of a block of 64 keys and 64 values of one head, from the last to the
first, 32 tokens each, with the gradient dS of the state in registers; it gives dr, dk, dv, dw, du
and ds0, for any decays. What larger heads get is a sum over blocks of values, or in dv, of keys.
All tiles are transposed, 64 keys × 32 tokens: sums over tokens then take their left factor from the
registers in which it was computed, numbers of a key are two a thread, and half of a chunk is half
of a thread's columns. With m the sums of log decays from the middle of a run of tokens to just
before one, p those from the run's start, q those to its end, S the state before the chunk and dS
that after it:

    G = do vᵀ, S do, dS v                            what tokens ask of each other and of states
    k 2^(-m-w), r 2^m through G inside of a run      split at its middle
    k 2^q, r 2^p through G between two runs          factors of at most 1
    dS ← (the chunk's decay) dS + (r x)ᵀ do          x from the chunk's start

The formulas are in runs.py, and here what moves tiles. How the code calls what these name; s_ is in
shared memory, b_ in registers, and a product's factor, of one piece or two (factors.py), has
neither:

    w, do, v, r, k, S     Tokens w, do, v, r, k, s    as they come, tokens × keys or values
    m, -m-w, p, q         b_m, b_mw, b_p, b_q         [key, token]
    2 to the power of it  e_m, e_mw, e_p, e_q         [key, token]
    r 2^m, k 2^(-m-w)     rm, km                      tokens × keys, or transposed
    r 2^p, k 2^q          rp, kq                      likewise
    G                     b_st, b_ts, g               [s, t] inside of a run, [t, s] between two
    scores                b_inside, b_between, g      likewise: r 2^m with k 2^(-m-w), 2^p with 2^q
    S do, dS v            b_dr, b_dk                  [key, token], until r and k are decayed
    Σ dS S                b_across                    [key]: what passes the chunk, state to state
    r dr, k dk            b_r_dr, b_k_dk              [key, token], inside of runs
    their running sums    b_passed                    [key, token]
    log2 of decays        early, late                 [key], of the chunk's halves
    do · v, r · u k       s_diagonal, s_self          [token]: what a token asks of itself

A chunk whose halves fit is one run. Any other is two of 16 tokens, in which a log decay of less
than LEAST counts as LEAST: 2^-11, and eight of them in a row fit float32. What should have passed
such a token is less than 2^-11 of what need not pass it, and dw of the token, of which all has
passed it, gets the factor that was left out. S and dS take no such decays, but the given ones.

What passes a token inside of a run is a difference of running sums of r dr and k dk, made of the
very same pieces, so that what does not pass cancels; in a strong chunk, what passes between states
and runs is a sum, in which nothing has to cancel.

It reads r, k, v, w, do and the states before chunks, as much as two of those, and writes four: 11
tensors of the size of r. The next chunk comes while one is computed. Two programs share an SM.

In float16 do and v are multiplied as they are, and so must be what they meet, or its unit is given:
S comes in float16, each key in a unit, a power of two, and dS has one unit, by its
largest element. Where a chunk is one run, dS meets k 2^q, not k 2^(-m-w), and do meets r 2^p from
the chunk's start, in two pieces: both only shrink. Scores are 2^-6 of what they are, up to 2^22.
Inside of a run and between two, factors stay in pieces of bfloat16, two each, as r 2^m reaches
2^80. LEAST is 2^-12.5. Weights of one kind are missing, so that two programs still share an SM.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from ....runtime.compile_triton import assembled
from ....sequences.spans import first_span, sequence_bounds
from ..tiles import FITS, LOG2E
from .factors import (
    Rounded,
    Split,
    as_left,
    factor,
    product,
    products,
    rows_of,
    tile_of,
    transposed,
)
from .factors import in_float32 as factor_in_float32
from .runs import (
    FROM_SCORES,
    KEYS,
    LEAST,
    LEAST_OF_FLOAT16,
    PAIRS,
    STATE,
    T32,
    TILES,
    Decays,
    Factors,
    Places,
    Sums,
    Tokens,
    Units,
    by_key,
    decays,
    exponents,
    inside_of_runs,
    log_decays,
    one_run,
    two_runs,
    weights_of,
)
from .tiles import (
    TILE,
    C,
    barrier,
    exponent_of,
    in_float32,
    power_of_two,
    rounded,
    two_barriers,
)

OF_PARTS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
TOKENS = gl.constexpr(gl.SliceLayout(0, TILES.value))
ROWS = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))  # [tokens, keys]
SMALL = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@functools.cache
def weights_and_masks(device):
    """`make_weights_and_masks`, once for a device, in memory of no CUDA graph.

    What a thread takes while it prepares or captures a graph is the graph's, which writes to it at
    every replay: so another thread takes this.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make_weights_and_masks, device).result()


def make_weights_and_masks(device):
    """What sums and masks take: int16, for chunks that fit and then for those in two runs.

    Each has three times 32 · 32 and once 64 · 32 on end. In bfloat16, weights [i, t] of token i in
    sums for token t of its run: the tokens before t; from the run's middle to just before t; and
    from just after t to the middle. Then the mask of pairs between the runs, [t, s], and inside of
    them, [s, t] for G and [t, s] for the scores: in the lower byte the sign bit for G, in the upper
    for the scores. A chunk that fits is one run.
    """
    i, t = torch.arange(32)[:, None], torch.arange(32)[None, :]
    both = []
    for run in (32, 16):
        same, late = (i ^ t) < run, i % run >= run // 2
        from_middle = (same & late & (i < t)).int() - (same & ~late & (i >= t)).int()
        weights = [same & (i < t), from_middle, -from_middle - (i == t).int()]
        between = (~same & (t < i)).int() * -0x7F80
        inside = (same & (i < t)).int() * 0x80 + (same & (t < i)).int() * -0x8000
        both += [torch.stack(weights).bfloat16().view(torch.int16), between.short()]
        both.append(inside.short())
    return torch.cat([x.flatten() for x in both]).to(device)


class Scratch(NamedTuple):
    """Tiles for what is made of a chunk, of one chunk after the other.

    Of none are pieces that only float16 has, or only bfloat16.
    """

    ds: object
    rp_kq: tuple
    kq_low: tuple
    km_rm: object
    g: tuple
    diagonal: object  # do · v
    itself: object  # r · u k


class Results(NamedTuple):
    """Of gradients of the inputs: descriptors, addresses, or a chunk's tiles."""

    dr: object
    dk: object
    dw: object
    dv: object


@gluon.jit
def barriers():
    """Of the tiles of two chunks."""
    w_ready, r_ready, k_ready = two_barriers(), two_barriers(), two_barriers()
    do_ready, v_ready, s_ready = two_barriers(), two_barriers(), two_barriers()
    return Tokens(w_ready, do_ready, s_ready, v_ready, r_ready, k_ready)


@gluon.jit
def load_sums(at, HALF: gl.constexpr):
    """`Sums`, of `weights_and_masks` at an address."""
    s_before = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
    s_middle = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
    later = ()
    if not HALF:
        s_later = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
        later = (s_later,)
    s_masks = gl.allocate_shared_memory(gl.int16, [2, C, T32], PAIRS)
    o_i = gl.arange(0, T32, gl.SliceLayout(1, SMALL))[:, None]
    o_t = gl.arange(0, T32, gl.SliceLayout(0, SMALL))[None, :]
    o_mask = gl.arange(0, C, gl.SliceLayout(1, SMALL))[:, None]
    for two in gl.static_range(2):
        at_half = at + two * 5 * T32 * T32
        s_before.index(two).store(gl.load(at_half + o_i * T32 + o_t))
        s_middle.index(two).store(gl.load(at_half + T32 * T32 + o_i * T32 + o_t))
        if not HALF:
            s_later.index(two).store(gl.load(at_half + 2 * T32 * T32 + o_i * T32 + o_t))
        s_masks.index(two).store(gl.load(at_half + 3 * T32 * T32 + o_mask * T32 + o_t))
    return Sums(s_before, s_middle, later, s_masks)


@gluon.jit
def scratch_tiles(HALF: gl.constexpr):
    s_rp_kq = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    if HALF:
        s_rp_kq_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    else:
        s_kq_low = gl.allocate_shared_memory(gl.bfloat16, [1, T32, C], TILE)
    s_km_rm = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    s_ds = gl.allocate_shared_memory(gl.float16 if HALF else gl.bfloat16, [1, C, C], TILE)
    s_g_high = gl.allocate_shared_memory(gl.bfloat16, [1, C, T32], PAIRS)
    s_g_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, T32], PAIRS)
    s_diagonal = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    s_self = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    g = Split(s_g_high, s_g_low)
    if HALF:
        rp_kq = Split(s_rp_kq, s_rp_kq_low)
        return Scratch(s_ds, rp_kq, (), s_km_rm, g, s_diagonal, s_self)
    else:
        return Scratch(s_ds, Rounded(s_rp_kq), (s_kq_low,), s_km_rm, g, s_diagonal, s_self)


@gluon.jit
def tiles_of(staged, stage):
    """The tiles of one stage."""
    w, r, k = staged.w.index(stage), staged.r.index(stage), staged.k.index(stage)
    do_v, s = staged.do.index(stage), staged.s.index(stage)
    return Tokens(w, do_v.slice(0, T32, 0), s, do_v.slice(T32, T32, 0), r, k)


@gluon.jit
def factors_of(scratch, staged, stage, i):
    """`Factors` of the chunk of a stage.

    i: 0, which the compiler cannot know: it would keep all tiles' addresses in registers.
    """
    s_s = staged.s.index(stage)
    HALF: gl.constexpr = s_s.dtype == gl.float16
    do_v, s, ds = Rounded(staged.do.index(stage)), Rounded(s_s), Rounded(scratch.ds.index(i))
    rp_kq = tile_of(scratch.rp_kq, i)
    rp, kq = rows_of(rp_kq, 0, T32), rows_of(rp_kq, T32, T32)
    if len(kq) == 1:
        kq = kq + (scratch.kq_low[0].index(i),)
    s_low = s_s._reinterpret(gl.bfloat16, [C, C], TILE) if HALF else s_s
    km_rm = Split(scratch.km_rm.index(i), s_low)  # S is not needed any more by then
    km, rm = rows_of(km_rm, 0, T32), rows_of(km_rm, T32, T32)
    g = tile_of(scratch.g, i)
    rs, ks = rm, km
    if HALF:
        high = rp_kq.high._reinterpret(gl.float16, [C, C], TILE)
        low = rp_kq.low._reinterpret(gl.float16, [C, C], TILE)
        rs, ks = rows_of(Split(high, low), 0, T32), rows_of(Rounded(high), T32, T32)
    return Factors(do_v, s, ds, rp_kq, rp, factor(kq), km_rm, km, rm, rs, ks, g)


@gluon.jit
def results_of(c, x, PARTS: gl.constexpr):
    """`Results` of a chunk, where all that is multiplied has been, when they are there."""
    if PARTS:
        return Results(
            x.s.high._reinterpret(gl.float32, [T32, C], OF_PARTS),
            x.ds.high._reinterpret(gl.float32, [T32, C], OF_PARTS),
            x.km_rm.high._reinterpret(gl.float32, [T32, C], OF_PARTS),
            x.rp_kq.high._reinterpret(gl.float32, [T32, C], OF_PARTS),
        )
    else:
        return Results(c.r, c.k, c.w, c.v)


@gluon.jit
def load_chunk(
    inputs, staged, ready, stage, there, row, key_column, value_column, state_row, state_column,
    FIRST: gl.constexpr,
):  # fmt: skip
    """Starts the copies of a chunk's tiles, if it is there, from `row` on; S from `state_row`.

    FIRST: no results are on their way from where these tiles come.
    """
    do_v = staged.do.index(stage)
    s_do, s_v = do_v.slice(0, T32, 0), do_v.slice(T32, T32, 0)
    expect_rows(ready.w, stage, T32, there)
    expect_rows(ready.do, stage, T32, there)
    expect_rows(ready.s, stage, C, there)
    expect_rows(ready.v, stage, T32, there)
    expect_rows(ready.r, stage, T32, there)
    expect_rows(ready.k, stage, T32, there)
    if not FIRST:
        tma.store_wait(0)
    fetch(inputs.w, staged.w.index(stage), ready.w, stage, there, row, key_column)
    fetch(inputs.do, s_do, ready.do, stage, there, row, value_column)
    fetch(inputs.s, staged.s.index(stage), ready.s, stage, there, state_row, state_column)
    fetch(inputs.v, s_v, ready.v, stage, there, row, value_column)
    fetch(inputs.r, staged.r.index(stage), ready.r, stage, there, row, key_column)
    fetch(inputs.k, staged.k.index(stage), ready.k, stage, there, row, key_column)


@gluon.jit
def expect_rows(ready, stage, rows: gl.constexpr, there):
    mbarrier.expect(ready.index(stage), rows * C * 2, pred=there)


@gluon.jit
def fetch(x, s_x, ready, stage, there, row, column):
    tma.async_copy_global_to_shared(x, [row, column], ready.index(stage), s_x, pred=there)


@gluon.jit
def wait_for_chunk(ready, stage, phase):
    """Until the tiles of a chunk are there."""
    mbarrier.wait(ready.w.index(stage), phase)
    mbarrier.wait(ready.do.index(stage), phase)
    mbarrier.wait(ready.s.index(stage), phase)
    mbarrier.wait(ready.v.index(stage), phase)
    mbarrier.wait(ready.r.index(stage), phase)
    mbarrier.wait(ready.k.index(stage), phase)


@gluon.jit
def clear_after(s_x, n, value):
    """Sets the rows from n on, which are other sequences' tokens."""
    row = gl.arange(0, T32, gl.SliceLayout(1, ROWS))[:, None]
    b_x = s_x.load(ROWS)
    s_x.store(gl.where(row < n, b_x, value).to(b_x.dtype))


@gluon.jit
def clear_chunk_after(c, n, RAW: gl.constexpr):
    """`clear_after` in all tiles of a chunk."""
    clear_after(c.w, n, float("-inf") if RAW else 0.0)
    clear_after(c.do, n, 0.0)
    clear_after(c.v, n, 0.0)
    clear_after(c.r, n, 0.0)
    clear_after(c.k, n, 0.0)


@gluon.jit
def store_own(c, u, o_u, scratch, scale, SCALED: gl.constexpr):
    """What each token asks of itself, a row in four threads: do · v, and r · u k."""
    scratch.diagonal.store(gl.sum(in_float32(c.do.load(ROWS)) * in_float32(c.v.load(ROWS)), 1))
    u_of_rows = gl.load(u + o_u).to(gl.float32)
    b_rk = in_float32(c.r.load(ROWS)) * in_float32(c.k.load(ROWS))
    itself = gl.sum(b_rk * u_of_rows[None, :], 1)
    if SCALED:
        itself *= scale
    scratch.itself.store(itself)


@gluon.jit
def of_halves(b_m, b_mw, b_most, place):
    """log2 of the decays of a chunk's halves, by what these do to the first and last token.

    Returns:
        those of each key; whether all fit float32; and then, of float16, the largest of b_most, the
        largest elements of dS by key.
    """
    early = gl.sum(gl.where(place.col == 0, b_m, 0.0), 1) * -LOG2E
    late = gl.sum(gl.where(place.col == T32 - 1, b_mw, 0.0), 1) * -LOG2E
    b_fits = (early >= -FITS) & (late >= -FITS)  # NaN does not
    if b_most is None:
        return early, late, gl.max(gl.where(b_fits, 0, 1), 0) == 0, 0.0
    else:
        most = gl.max(gl.where(b_fits, b_most, float("inf")), 0)
        return early, late, most < float("inf"), most


@gluon.jit
def units_of(b_exponent, most):
    """`Units`; most: the largest element of dS. Of bfloat16, which has none, without meaning."""
    if b_exponent is None:
        return Units(0.0, 0.0, 0.0)
    else:
        exponent = exponent_of(most)
        return Units(
            power_of_two(b_exponent.to(gl.int32)), power_of_two(exponent), power_of_two(-exponent)
        )


@gluon.jit
def decays_of_halves(early, late):
    """`Decays`, of log2 of them."""
    early_decay, late_decay = gl.exp2(early), gl.exp2(late)
    early_of_state = gl.convert_layout(early, gl.SliceLayout(1, STATE))
    late_of_state = gl.convert_layout(late, gl.SliceLayout(1, STATE))
    return Decays(early_decay, late_decay, early_of_state, late_of_state)


@gluon.jit
def store_result(s_x, b_x):
    """A float32 tile of keys × tokens in the dtype of a tile of tokens × keys."""
    if s_x.dtype == gl.bfloat16:
        s_x.permute((1, 0)).store(rounded(b_x))
    else:
        s_x.permute((1, 0)).store(b_x.to(s_x.dtype))


@gluon.jit
def store_gradients(
    b_dr, b_dk, b_dv, b_du, b_u, c, x, scratch, results, scale, SCALED: gl.constexpr
):  # fmt: skip
    """dr, dk and dv with what u gives them, into tiles; du so far."""
    b_diagonal = scratch.diagonal.load(TOKENS)[None, :]
    b_r = by_key(c.r)
    b_k = by_key(c.k)
    if SCALED:
        b_r *= scale
    b_du += gl.sum(b_r * b_k * b_diagonal, 1)
    b_bonus = b_u[:, None] * b_diagonal
    b_dr += b_bonus * b_k
    if SCALED:
        b_dr *= scale
    store_result(results.dr, b_dr)
    b_dk += b_bonus * b_r
    store_result(results.dk, b_dk)
    b_dv = warpgroup_mma_wait(0, deps=(b_dv,))
    if c.do.dtype == gl.float16:
        b_dv *= FROM_SCORES
    b_dv += by_key(c.do) * scratch.itself.load(TOKENS)[None, :]
    store_result(results.dv, b_dv)
    return b_du


@gluon.jit
def chunk_gradients(
    b_ds, b_exponent, w_left, b_w, c, x, u, o_u, sums, scratch, place, zeros, whole, same, scale,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """dS before a chunk, and dr, dk, dv and dw without what u gives them; dv is on its way.

    b_ds: dS after it; b_exponent: of the unit of S by key, of float16 only; same: 0, as of
    `factors_of`.
    """
    HALF: gl.constexpr = c.r.dtype == gl.float16
    do_by_v = transposed(rows_of(x.do_v, 0, T32))  # values × tokens
    m_and_mw = exponents(w_left, weights_of(sums.middle, same), sums, same, zeros)
    b_st = product(x.do_v, do_by_v, zeros)
    b_most = None
    if HALF:
        b_most = gl.convert_layout(gl.max(gl.abs(b_ds), 1), KEYS)
    b_dr = product(x.s, do_by_v, zeros)
    store_own(c, u, o_u, scratch, scale, SCALED)  # meanwhile
    going_on: gl.constexpr = products(x.do_v, do_by_v) + products(x.s, do_by_v)
    if HALF:
        b_m = warpgroup_mma_wait(going_on, deps=m_and_mw + w_left)[0]
        b_mw = -b_m - b_w
    else:
        b_m, b_mw = warpgroup_mma_wait(going_on, deps=m_and_mw + w_left)[:2]
    early, late, fit, most = of_halves(b_m, b_mw, b_most, place)
    fits = whole & fit
    runs = same + gl.where(fits, 0, 1)
    d = decays_of_halves(early, late)
    b_st, b_dr = warpgroup_mma_wait(0, deps=(b_st, b_dr))
    if fits:
        units = units_of(b_exponent, most)
        b = one_run(
            b_ds, b_dr, b_st, b_m, b_mw, d, c, x, sums, same, units, place, zeros, scale,
            SCALED,
        )  # fmt: skip
    else:
        if HALF:
            most = gl.max(b_most, 0)
        units = units_of(b_exponent, most)
        b = two_runs(
            b_ds, b_dr, b_st, d, c, x, sums, runs, units, place, zeros, scale, RAW, SCALED
        )  # fmt: skip
    b_dr, b_dk, b_dv, b_passed = inside_of_runs(b, x, sums, runs, place, zeros, HALF)
    if not fits:
        WEAK: gl.constexpr = LEAST_OF_FLOAT16 if HALF else LEAST
        b_passed *= gl.exp2(gl.minimum((log_decays(c.w, RAW) - WEAK) * LOG2E, 0.0))
    b_dw = b.dw + b_passed
    if RAW:
        b_dw *= log_decays(c.w, RAW)
    return b.ds, b_dr, b_dk, b_dv, b_dw


@gluon.jit
def store_chunk(
    tiles, results, in_rows, whole, n, t, to_keys, to_values, key_column, value_column, H,
    K: gl.constexpr, V: gl.constexpr,
):  # fmt: skip
    """Stores a chunk's results, of n tokens: starts their copies, if it is whole."""
    if whole:
        keys, values = [to_keys + t, key_column], [to_values + t, value_column]
        tma.async_copy_shared_to_global(results.dr, keys, tiles.dr)
        tma.async_copy_shared_to_global(results.dk, keys, tiles.dk)
        tma.async_copy_shared_to_global(results.dw, keys, tiles.dw)
        tma.async_copy_shared_to_global(results.dv, values, tiles.dv)
    else:
        row_t = gl.arange(0, T32, gl.SliceLayout(1, ROWS))[:, None]
        o_c = gl.arange(0, C, gl.SliceLayout(0, ROWS))[None, :]
        o_keys = ((to_keys + t).to(gl.int64) + row_t) * (H * K) + key_column + o_c
        o_values = ((to_values + t).to(gl.int64) + row_t) * (H * V) + value_column + o_c
        gl.store(in_rows.dr + o_keys, tiles.dr.load(ROWS), row_t < n)
        gl.store(in_rows.dk + o_keys, tiles.dk.load(ROWS), row_t < n)
        gl.store(in_rows.dw + o_keys, tiles.dw.load(ROWS), row_t < n)
        gl.store(in_rows.dv + o_values, tiles.dv.load(ROWS), row_t < n)
        barrier()  # the copies of the chunk after the next one overwrite these tiles


@gluon.jit
def last_ds(
    ds1, local_ds, local_decay, i_state, i_segment, segment, segments, pieces, chunks, o_state,
    o_key, SIZE: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    """dS after a segment: that after all, and what the later pieces make of it, from the last."""
    b_ds = gl.full([C, C], 0.0, gl.float32, STATE)
    if ds1 is not None:
        b_ds += gl.load(ds1 + i_state * SIZE + o_state).to(gl.float32)
    if local_ds is not None:
        i_later = gl.cdiv(chunks, segment // pieces) - 1
        while i_later >= (i_segment + 1) * pieces:
            part = i_state * (segments * pieces) + i_later
            b_ds *= gl.exp2(gl.load(local_decay + part * K + o_key))[:, None]
            b_ds += gl.load(local_ds + part * SIZE + o_state)
            i_later -= 1
    return b_ds


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale", "segment", "segments", "pieces", "tokens"])
def sweep_hopper_kernel(
    r, k, v, w, u, checkpoints, checkpoint_rows, weights, do, ds1, local_ds, local_decay,
    cu_seqlens,
    dr, dk, dv, dw, dr_rows, dk_rows, dv_rows, dw_rows, du, ds0,
    T, H, scale, segment, segments, pieces, tokens,
    K: gl.constexpr, V: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, do, dr, dk, dv, dw are descriptors of [tokens, H·K] or [tokens, H·V], and so are
    checkpoints, of [states·K, V]. Of the results there are as many, one after another, as there are
    blocks of values, or for dv of keys: each gets its part, in float32 where there are several
    blocks.

    HALF: in float16. A state has K / 64 more rows then, the exponents of its units, of each block
    of values those of all keys; checkpoint_rows is checkpoints again, for these.
    weights: `weights_and_masks`. ds1, local_ds, local_decay, cu_seqlens, segment, segments: as in
    ../states.py; a segment is of several `pieces` in local_ds and local_decay. dr_rows, … are the
    results again, for a chunk that is not whole. du: of each program, `[64]`. tokens: of all
    sequences together.
    """
    NK: gl.constexpr = K // 64
    NV: gl.constexpr = V // 64
    STATE_ROWS: gl.constexpr = K + K // 64 if HALF else K
    i = gl.program_id(0)
    i_v, i_k, i_segment = i % NV, i // NV % NK, i // (NV * NK) % segments
    i_h, i_n = i // (NV * NK * segments) % H, i // (NV * NK * segments) // H
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    start, after_last = sequence_bounds(cu_seqlens, i_n, T)
    length = (after_last - start).to(gl.int32)
    slot = first_span(cu_seqlens, start, i_n, T, T32).to(gl.int32)
    chunks = gl.cdiv(length, T32)
    end = gl.minimum(i_segment * segment + segment, chunks)
    count = gl.maximum(end - i_segment * segment, 0)
    start = start.to(gl.int32)
    to_keys, to_values = start + i_v * tokens, start + i_k * tokens

    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    s_w = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_r = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_do_v = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)  # one above the other
    s_s = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    staged = Tokens(s_w, s_do_v, s_s, s_do_v, s_r, s_k)
    ready, inputs = barriers(), Tokens(w, do, checkpoints, v, r, k)
    results, in_rows = Results(dr, dk, dw, dv), Results(dr_rows, dk_rows, dw_rows, dv_rows)
    fence_async_shared()
    barrier()  # the barriers are there
    t = (end - 1) * T32  # of the chunk at hand
    load_chunk(
        inputs, staged, ready, 0, count > 0, start + t, key_column, value_column,
        ((slot + end - 1) * H + i_h) * STATE_ROWS + i_k * C, i_v * C, FIRST=True,
    )  # fmt: skip

    sums, scratch = load_sums(weights, HALF), scratch_tiles(HALF)
    row, col = gl.arange(0, C, KEYS)[:, None], gl.arange(0, T32, TOKENS)[None, :]
    place = Places(row, col, col < T32 // 2)
    zeros = gl.full([C, T32], 0.0, gl.float32, TILES)
    o_u = key_column + gl.arange(0, C, gl.SliceLayout(0, ROWS))
    b_u = gl.load(u + key_column + gl.arange(0, C, KEYS)).to(gl.float32)
    b_du = gl.full([C], 0.0, gl.float32, KEYS)
    o_key = i_k * C + gl.arange(0, C, gl.SliceLayout(1, STATE))
    o_state = o_key[:, None] * V + i_v * C + gl.arange(0, C, gl.SliceLayout(0, STATE))[None, :]
    i_state = (i_n * H + i_h).to(gl.int64)
    b_ds = last_ds(
        ds1, local_ds, local_decay, i_state, i_segment, segment, segments, pieces, chunks, o_state,
        o_key, K * V, K,
    )  # fmt: skip

    j = 0
    while j < count:
        stage, phase = j % 2, j // 2 % 2
        same = j // 2**30  # 0, which the compiler cannot know
        more, next_stage = j + 1 < count, 1 - stage
        load_chunk(
            inputs, staged, ready, next_stage, more, start + t - T32, key_column,
            value_column, ((slot + t // T32 - 1) * H + i_h) * STATE_ROWS + i_k * C, i_v * C,
            FIRST=False,
        )  # fmt: skip
        c, x = tiles_of(staged, stage), factors_of(scratch, staged, stage, same)
        n = length - t
        whole = n >= T32
        b_exponent = None
        if HALF:
            i_s = (slot + t // T32).to(gl.int64) * H + i_h
            o_exponent = i_v * K + i_k * C + gl.arange(0, C, KEYS)
            b_exponent = gl.load(checkpoint_rows + (i_s * STATE_ROWS + K) * V + o_exponent)
        wait_for_chunk(ready, stage, phase)
        if not whole:
            clear_chunk_after(c, n, RAW)
        w_pieces = decays(c.w, RAW)
        w_left, b_w = as_left(w_pieces), factor_in_float32(w_pieces)
        fence_async_shared()
        barrier()  # all warps' tokens are cleared

        b_ds, b_dr, b_dk, b_dv, b_dw = chunk_gradients(
            b_ds, b_exponent, w_left, b_w, c, x, u, o_u, sums, scratch, place, zeros, whole, same,
            scale, RAW, SCALED,
        )  # fmt: skip
        tiles = results_of(c, x, NK * NV > 1)
        store_result(tiles.dw, b_dw)
        b_du = store_gradients(
            b_dr, b_dk, b_dv, b_du, b_u, c, x, scratch, tiles, scale, SCALED
        )  # fmt: skip
        fence_async_shared()
        barrier()  # all warps' results are stored
        store_chunk(
            tiles, results, in_rows, whole, n, t, to_keys, to_values, key_column, value_column, H,
            K, V,
        )  # fmt: skip
        t -= T32
        j += 1

    gl.store(du + gl.program_id(0).to(gl.int64) * C + gl.arange(0, C, KEYS), b_du)
    first_segment = (gl.full([C, C], 0, gl.int32, STATE) + i_segment) == 0
    gl.store(ds0 + i_state * (K * V) + o_state, b_ds, first_segment)
    tma.store_wait(0)
