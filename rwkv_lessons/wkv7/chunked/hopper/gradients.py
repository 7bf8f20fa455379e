"""The gradients of 64 tokens of WKV-7 in one launch, in Gluon for Hopper: heads of 64, bfloat16.

A program owns a tile of 64 tokens of a head, all tiles at once. It reads r, w, k, v, a, b and do,
the state before the tile and the gradient of the one after it, and writes six gradients: 15 S. Of
the tile as one chunk, with Ã, R̃, B̃, K̃ and the A's of maps.py, but decayed from or to where half of
a key's decay is past, S̃ = early ⊙ S and dS̃ = late ⊙ dS, where early ⊙ late is the decay,

    y = Ã S̃ + A_ak v      z = T y           dz = B̃ dS̃ + A_rbᵀ do      dy = Tᵀ dz
    dv = K̃ dS̃ + A_rkᵀ do + A_akᵀ dy
    P_ov, P_oz = do vᵀ, do zᵀ       P_yv, P_yz = dy vᵀ, dy zᵀ     where the A's are not 0
    dR̃ = do S̃ᵀ + P_ov K̃ + P_oz B̃             dÃ = dy S̃ᵀ + P_yv K̃ + P_yz B̃
    dK̃ = v dS̃ᵀ + P_ovᵀ R̃ + P_yvᵀ Ã           dB̃ = z dS̃ᵀ + P_ozᵀ R̃ + P_yzᵀ Ã

The log decay of token u is in 2^c of it and all later tokens. So dw sums over these what R̃ ⊙ dR̃,
of later ones what Ã ⊙ dÃ, and takes away what the second and third terms of dK̃ and dB̃ give for
tokens from u on. The first terms decay to the tile's end: they count for tokens before u, and so
does S̃ ⊙ dS̃. What cancels was computed from the same bfloat16 factors.

`early` is a power of two, which S is multiplied by exactly. The factors grow or shrink by half of a
tile's decay. A tile that decays by more than e^FITS_TWICE is marked, and computed token by token in
a second launch (strong.py). The A's of pairs that are not read may be infinite: they are replaced
by 0, and never multiplied by it.
"""

from typing import NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from ....runtime.compile_triton import assembled
from ....runtime.launch_tiles import launch_tiles
from ....sequences.spans import bounds_of_span, span_bounds
from ...decays import FORMS, OF_CLAMP, RAW
from .forward import tiles_of
from .layouts import FLAT, LEFT, LOG2E, STATE, TILE, C, N, barrier, rounded, widened
from .loads import BYTES
from .maps import clear_tail
from .products import (
    FITS_TWICE,
    ROWS,
    as_rows,
    chunks_of,
    copy_tile,
    earlier,
    flipped,
    from_halves,
    gradient_of_w,
    halves,
    in_two,
    indices,
    inverse_of_chunks,
    later,
    log_decays,
    lower,
    minus_rows,
    on_diagonal,
    one_barrier,
    plus_in_chunks,
    store_log_decays,
    sums_and_total,
    sums_of_decays,
    times,
    times_powers,
    times_rows,
    upper,
    visible,
    zero_of,
)
from .strong import MARKS, wkv7_strong_gradients_kernel


class GradientForm(NamedTuple):
    """What the kernel is compiled for."""

    DECAY: int  # what w is, see ../../decays.py
    SCALED: bool  # whether r is multiplied by a scale


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale"])
def wkv7_tile_gradients_kernel(
    r, w, k, v, a, b, do, states, d_states, bounds, dr, dw, dk, dv, da, db,
    dr_rows, dw_rows, dk_rows, dv_rows, da_rows, db_rows, strong, T, H, scale,
    FORM: gl.constexpr,
):  # fmt: skip
    """r to do and dr to db are descriptors of [tokens, H·64]; *_rows are the latter's tensors.

    states, d_states: descriptors of [tiles·H·64 values, 64 keys]. strong: of each tile and head
    whether its decays are too strong; int8.
    """
    program = gl.program_id(0)
    start, end = bounds_of_span(bounds, program // H, T, N)
    left, i_h = (end - start).to(gl.int32), program % H
    s_w = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    loaded = (
        one_barrier(), one_barrier(), one_barrier(), one_barrier(), one_barrier(),
        one_barrier(), one_barrier(), one_barrier(), one_barrier(),
    )  # fmt: skip
    fence_async_shared()
    barrier()  # the barriers are there
    if left > 0:
        row, column = start.to(gl.int32), i_h * N
        inputs, tiles = (w, a, b, k, r, v, do), (s_w, s_a, s_b, s_k, s_r, s_v, s_do)
        for n in gl.static_range(9):
            mbarrier.expect(loaded[n], BYTES)
        for n in gl.static_range(7):
            tma.async_copy_global_to_shared(inputs[n], [row, column], loaded[n], tiles[n])
        tma.async_copy_global_to_shared(d_states, [program * N, 0], loaded[7], s_ds)
        tma.async_copy_global_to_shared(states, [program * N, 0], loaded[8], s_s)
        mbarrier.wait(loaded[0], 0)
        if left < N:
            for n in gl.static_range(1, 9):
                mbarrier.wait(loaded[n], 0)
            clear(s_r, s_w, s_k, s_v, s_a, s_b, s_do, left, FORM.DECAY)
        store_log_decays(s_w, FORM.DECAY)
        b_before, b_total = sums_and_total(s_w, zero_of(row, 0), FORM.DECAY)
        mild = True
        if FORM.DECAY != OF_CLAMP:
            fits = gl.where(b_total >= -FITS_TWICE * LOG2E, 0, 1)  # NaN does not
            mild = gl.max(gl.max(gl.max(fits, 2), 1), 0) == 0
            gl.store(strong + program, gl.where(mild, 0, 1).to(gl.int8))
        for n in gl.static_range(1, 9):
            mbarrier.wait(loaded[n], 0)
        for n in gl.static_range(9):
            mbarrier.invalidate(loaded[n])
        if mild:
            place = row, column, start * (H * N) + column, H * N, left
            gradients_of_tile(
                s_r, s_w, s_k, s_v, s_a, s_b, s_do, s_s, s_ds,
                b_before, b_total, dr, dw, dk, dv, da, db,
                dr_rows, dw_rows, dk_rows, dv_rows, da_rows, db_rows, place, scale, FORM,
            )  # fmt: skip
    elif FORM.DECAY != OF_CLAMP:
        gl.store(strong + program, gl.full([], 0, gl.int8))  # an unused index


@gluon.jit
def clear(s_r, s_w, s_k, s_v, s_a, s_b, s_do, left, DECAY: gl.constexpr):
    """Has what follows the last token be zeros: it may be other tokens, or NaN."""
    PARAMETER: gl.constexpr = DECAY == RAW or DECAY == OF_CLAMP
    clear_tail(chunks_of(s_r), left, 0.0)
    clear_tail(chunks_of(s_w), left, float("-inf") if PARAMETER else 0.0)  # no decay
    clear_tail(chunks_of(s_k), left, 0.0)
    clear_tail(chunks_of(s_v), left, 0.0)
    clear_tail(chunks_of(s_a), left, 0.0)
    clear_tail(chunks_of(s_b), left, 0.0)
    clear_tail(chunks_of(s_do), left, 0.0)
    visible()


@gluon.jit
def scaled(b_x, scale, FORM: gl.constexpr):
    if FORM.SCALED:
        b_x *= scale
    return b_x


@gluon.jit
def decay_tile(
    s_r, s_w, s_k, s_a, s_b, s_s, s_ds, b_before, b_total, scale, FORM: gl.constexpr
):  # fmt: skip
    """Ã, R̃, B̃ and K̃ take the places of a, r, b and k, S̃ and dS̃ those of S and dS.

    Returns S̃ ⊙ dS̃, Ã as a left factor, and log2 of `early`, in a half of its rows.
    """
    b_early = gl.floor(0.5 * b_total)
    b_before = minus_rows(b_before, b_early)
    a = rounded(widened(s_a.load(STATE)) * gl.exp2(b_before))
    s_a.store(a)
    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    b_grow = gl.exp2(-b_after)
    s_b.store(rounded(widened(s_b.load(STATE)) * b_grow))
    s_k.store(rounded(widened(s_k.load(STATE)) * b_grow))
    s_r.store(rounded(widened(s_r.load(STATE)) * scaled(gl.exp2(b_after), scale, FORM)))
    ds = rounded(times_rows(widened(s_ds.load(STATE)), gl.exp2(b_total - b_early)))
    s_ds.store(ds)
    first, second = halves(s_s.load(STATE))
    powers = rounded(gl.exp2(b_early))
    s = from_halves(times_powers(first, powers), times_powers(second, powers))
    s_s.store(s)
    b_across = widened(s) * widened(ds)
    visible()
    return b_across, as_rows(a), rounded(b_early)


@gluon.jit
def first_products(a, b_across, s_k, s_a, s_b, s_s):
    """Ã B̃ᵀ, Ã K̃ᵀ, Ã S̃; T - I of each chunk; sums over values of S̃ ⊙ dS̃."""
    zeros = gl.zeros([N, N], gl.float32, STATE)
    b_ab, b_ak = times(a, flipped(s_b), zeros), times(a, flipped(s_k), zeros)
    b_y = times(a, flipped(s_s), zeros)
    b_t = inverse_of_chunks(s_a, s_b)  # while these are computed
    b_across = gl.sum(b_across, 0)
    b_ab, b_ak, b_y = warpgroup_mma_wait(0, deps=(b_ab, b_ak, b_y, a))[:3]
    return b_ab, b_ak, b_y, b_t, b_across


@gluon.jit
def solve(b_ab, b_ak, b_y, b_t, s_r, s_k, s_v, s_b, s_do, s_ds, s_z, s_dy, s_t, s_x, s_ak, row):
    """z and dy, to shared memory, and of dv what is known by then. dy and dv's A_rkᵀ are also
    returned as left factors.

    a: Ã as a left factor. s_t, s_x: to work in. s_ak: for A_ak.
    """
    zeros = gl.zeros([N, N], gl.float32, STATE)
    ak = lower(b_ak, False, zero_of(row, 1))
    s_ak.store(ak)
    ak = as_rows(ak)
    b_y = times(ak, s_v, b_y)

    n_row, n_col = indices(STATE)
    n_row += zero_of(row, 2)
    b_n = gl.where(n_row // C > n_col // C, b_ab, 0.0)
    b_n = plus_in_chunks(gl.convert_layout(rounded(b_t), LEFT), b_n, s_x)
    n, b_t = rounded(b_n), on_diagonal(b_t)
    s_t.store(n)
    s_dy.store(rounded(b_t))
    visible()
    n = as_rows(n)
    b_square = times(n, s_t, zeros)
    b_t = times(n, s_dy, b_t + b_n)
    b_square, b_t, b_y = warpgroup_mma_wait(0, deps=(b_square, b_t, b_y, n, ak))[:3]
    s_z.store(rounded(b_t))
    y = rounded(b_y)
    s_x.store(y)
    visible()
    b_t += b_square
    square = as_rows(rounded(b_square))
    b_t = times(square, s_z, b_t)
    b = s_b.load(ROWS)
    b_rb, b_dz = times(b, flipped(s_r), zeros), times(b, flipped(s_ds), zeros)
    b_t = warpgroup_mma_wait(2, deps=(b_t,))
    t = rounded(b_t)
    s_t.store(t)
    b_rb, b_dz = warpgroup_mma_wait(0, deps=(b_rb, b_dz, b, square))[:2]
    rb = as_rows(upper(b_rb, zero_of(row, 3)))
    b_dz = times(rb, s_do, b_dz)
    barrier()  # what is in s_z is read
    s_z.store(rounded(b_y - widened(y)))
    b_dz = warpgroup_mma_wait(0, deps=(b_dz, rb))[0]
    s_dy.store(rounded(b_dz))
    visible()

    t = as_rows(t)
    b_z = times(t, s_z, times(t, s_x, b_y))
    b_dy = times(flipped(s_t), s_dy, b_dz)
    k = s_k.load(ROWS)
    b_rk, b_dv = times(k, flipped(s_r), zeros), times(k, flipped(s_ds), zeros)
    b_z, b_dy = warpgroup_mma_wait(2, deps=(b_z, b_dy))
    barrier()  # y and dz are read
    s_z.store(rounded(b_z))
    dy = rounded(b_dy)
    s_dy.store(dy)
    b_rk, b_dv = warpgroup_mma_wait(0, deps=(b_rk, b_dv, k, t))[:2]
    rk = upper(b_rk, zero_of(row, 4))
    visible()
    return as_rows(dy), as_rows(rk), b_dv


@gluon.jit
def pairs_with(x, s_v, s_z):
    """Starts what tokens have with v and z: x vᵀ and x zᵀ."""
    zeros = gl.zeros([N, N], gl.float32, STATE)
    return times(x, flipped(s_v), zeros), times(x, flipped(s_z), zeros)


@gluon.jit
def gradients_of_tile(
    s_r, s_w, s_k, s_v, s_a, s_b, s_do, s_s, s_ds, b_before, b_total,
    dr, dw, dk, dv, da, db, dr_rows, dw_rows, dk_rows, dv_rows, da_rows, db_rows, place, scale,
    FORM: gl.constexpr,
):  # fmt: skip
    """All of a tile whose decays fit. A gradient takes the place of what is not read again."""
    row = place[0]
    zeros = gl.zeros([N, N], gl.float32, STATE)
    b_across, a, early = decay_tile(
        s_r, s_w, s_k, s_a, s_b, s_s, s_ds, b_before, b_total, scale, FORM
    )
    b_ab, b_ak, b_y, b_t, b_across = first_products(a, b_across, s_k, s_a, s_b, s_s)
    s_z = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_dy = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_t = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_x = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_ak = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_across = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    s_across.store(b_across)
    dy, rk, b_dv = solve(
        b_ab, b_ak, b_y, b_t, s_r, s_k, s_v, s_b, s_do, s_ds, s_z, s_dy, s_t, s_x, s_ak, row
    )
    b_yv, b_yz = pairs_with(dy, s_v, s_z)
    b_dv = times(flipped(s_ak), s_dy, times(rk, s_do, b_dv))
    b_da = times(dy, s_s, zeros)
    b_yv, b_yz = warpgroup_mma_wait(3, deps=(b_yv, b_yz))
    yv, yz = lower(b_yv, False, zero_of(row, 5)), lower(b_yz, False, zero_of(row, 6))
    s_t.store(yv)
    s_x.store(yz)
    yv, yz = as_rows(yv), as_rows(yz)
    b_da = times(yz, s_b, times(yv, s_k, b_da))
    b_dv = warpgroup_mma_wait(3, deps=(b_dv, rk))[0]
    barrier()  # A_ak is read
    s_ak.store(rounded(b_dv))
    visible()
    do = s_do.load(ROWS)
    b_ov, b_oz = pairs_with(do, s_v, s_z)
    copy_tile(dv, dv_rows, s_ak, place)

    b_da = warpgroup_mma_wait(2, deps=(b_da, dy, yv, yz))[0]
    b_before = minus_rows(sums_of_decays(s_w, zero_of(row, 7), FORM.DECAY), widened(early))
    b_of_a = b_da * widened(s_a.load(STATE))
    s_dy.store(rounded(b_da * gl.exp2(b_before)))
    b_ov, b_oz = warpgroup_mma_wait(0, deps=(b_ov, b_oz))
    ov, oz = lower(b_ov, True, zero_of(row, 8)), lower(b_oz, True, zero_of(row, 9))
    left_v, left_z = as_rows(ov), as_rows(oz)
    b_dr = times(left_z, s_b, times(left_v, s_k, times(do, s_s, zeros)))
    tma.store_wait(0)  # dv has left
    visible()
    copy_tile(da, da_rows, s_dy, place)
    s_ak.store(ov)
    s_do.store(oz)
    b_db = times(s_z, s_ds, zeros)

    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    b_dr = warpgroup_mma_wait(1, deps=(b_dr, do, left_v, left_z))[0]
    b_own = b_dr * widened(s_r.load(STATE))
    b_db = warpgroup_mma_wait(0, deps=(b_db,))
    barrier()  # S and z are read
    s_s.store(rounded(b_dr * scaled(gl.exp2(b_after), scale, FORM)))
    b_earlier = b_db * widened(s_b.load(STATE))
    b_own += b_earlier
    s_z.store(rounded(b_earlier))
    visible()
    b_db = times(flipped(s_x), s_a, times(flipped(s_do), s_r, b_db))
    copy_tile(dr, dr_rows, s_s, place)

    b_grow = gl.exp2(-b_after)
    b_db = warpgroup_mma_wait(0, deps=(b_db,))
    b_dk = times(s_v, s_ds, zeros)
    b_own -= b_db * widened(s_b.load(STATE))
    s_b.store(rounded(b_db * b_grow))
    b_dk = warpgroup_mma_wait(0, deps=(b_dk,))
    barrier()  # v is read
    b_k = widened(s_k.load(STATE))
    b_earlier = b_dk * b_k
    b_own += b_earlier
    s_v.store(rounded(b_earlier))
    visible()
    b_dk = times(flipped(s_t), s_a, times(flipped(s_ak), s_r, b_dk))
    copy_tile(db, db_rows, s_b, place)

    b_dk = warpgroup_mma_wait(0, deps=(b_dk,))
    b_own -= b_dk * b_k
    s_k.store(rounded(b_dk * b_grow))
    in_two(b_own + b_of_a, s_do, s_x)
    visible()
    b_own += s_across.load(gl.SliceLayout(0, STATE))[None, :]
    after, before = later(zero_of(row, 10)), earlier(zero_of(row, 10))
    b_dw = times(after, s_x, times(after, s_do, b_own))
    b_dw = times(before, s_v, times(before, s_z, b_dw))
    copy_tile(dk, dk_rows, s_k, place)
    b_dw = warpgroup_mma_wait(0, deps=(b_dw, after, before))[0]
    b_dw = gradient_of_w(b_dw, log_decays(s_w, FORM.DECAY), FORM.DECAY)
    barrier()
    s_w.store(rounded(b_dw))
    visible()
    copy_tile(dw, dw_rows, s_w, place)
    tma.store_wait(0)


def tile_gradients(r, w, k, v, a, b, do, states, d_states, cu_seqlens=None, scale=1.0, decay="log"):
    """The gradients of r, w, k, v, a and b, from the states that a forward pass has kept.

    Args:
        r, w, k, v, a, b, cu_seqlens, scale, decay: as `wkv7` takes them; all in bfloat16, and
            `aligned`, on torch's current device.
        do: the gradient of o.
        states: those before each 64 tokens of a sequence, `[tiles, H, V, K]`, bfloat16, as
            `wkv7_fused` keeps them.
        d_states: the gradients of the states after these tokens, the same way.
    """
    inputs = r, w, k, v, a, b, do
    (_, T, H, _), programs = r.shape, states.shape[0] * r.shape[2]
    bounds = span_bounds(None if cu_seqlens is None else cu_seqlens.contiguous(), T, N.value)
    outputs = [torch.empty_like(x) for x in inputs[:6]]
    strong = torch.empty(programs, dtype=torch.int8, device=r.device)
    of_states = [tiles_of(x.view(-1, 1, N.value)) for x in (states, d_states)]
    launch(
        programs,
        (*map(tiles_of, inputs), *of_states, bounds, *map(tiles_of, outputs), *outputs, strong),
        (T, H, float(scale)),
        GradientForm(FORMS[decay], scale != 1.0),
    )
    if decay != "clamp":  # no decay of which is that strong
        launch_strong(
            triton.cdiv(programs, MARKS.value),
            (*inputs, states, d_states, bounds, *outputs, strong),
            (T, H, programs, float(scale)),
            FORMS[decay],
        )
    return outputs


def launch(programs, tensors, numbers, form):
    grid = (programs, 1, 1)
    launch_tiles(wkv7_tile_gradients_kernel, grid, 4, tensors, numbers, (form,))


def launch_strong(programs, tensors, numbers, decay):
    grid = (programs, 1, 1)
    launch_tiles(wkv7_strong_gradients_kernel, grid, 4, tensors, numbers, (decay,))
