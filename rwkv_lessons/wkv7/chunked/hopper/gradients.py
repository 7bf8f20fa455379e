"""The gradients of 64 tokens of WKV-7 in one launch, in Gluon for Hopper: heads of 64, bfloat16.

A program owns a tile of 64 tokens of a head, all tiles at once. It reads r, w, k, v, a, b and do,
the state before the tile and the gradient of the one after it, and writes six gradients: 15 S. Of
the tile as one chunk, with Ã, R̃, B̃, K̃ and the A's of maps.py, d S̃ = decay ⊙ dS and

    y = Ã S + A_ak v       z = T y           dz = B̃ dS̃ + A_rbᵀ do      dy = Tᵀ dz
    dv = K̃ dS̃ + A_rkᵀ do + A_akᵀ dy
    P_ov, P_oz = do vᵀ, do zᵀ       P_yv, P_yz = dy vᵀ, dy zᵀ     where the A's are not 0
    dR̃ = do Sᵀ + P_ov K̃ + P_oz B̃             dÃ = dy Sᵀ + P_yv K̃ + P_yz B̃
    dK̃ = v dS̃ᵀ + P_ovᵀ R̃ + P_yvᵀ Ã           dB̃ = z dS̃ᵀ + P_ozᵀ R̃ + P_yzᵀ Ã

The log decay of token u is in 2^c of it and all later tokens. So dw sums over these what R̃ ⊙ dR̃,
of later ones what Ã ⊙ dÃ, and takes away what the second and third terms of dK̃ and dB̃ give for
tokens from u on. The first terms decay to the tile's end: they count for tokens before u, and so
does S ⊙ dS̃. What cancels was computed from the same bfloat16 factors.

A tile that decays by more than e^FITS is marked, and computed token by token in a second launch
(strong.py).
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
from .forward import aligned, tiles_of
from .layouts import FLAT, LOG2E, STATE, TILE, N, barrier, rounded, widened
from .loads import BYTES
from .maps import FITS, clear_tail
from .products import (
    ROWS,
    as_rows,
    between_chunks,
    chunks_of,
    flipped,
    gradient_of_w,
    in_two,
    indices,
    inverses,
    log_decays,
    lower,
    plus_in_chunks,
    store_log_decays,
    store_tile,
    sums_of_decays,
    times,
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
    i, i_h = (program // H).to(gl.int64), program % H
    start, end = bounds_of_span(bounds, i, T, N)
    left = (end - start).to(gl.int32)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    loaded = gl.allocate_shared_memory(gl.int64, [9, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(9):
        mbarrier.init(loaded.index(n), count=1)
    fence_async_shared()
    barrier()  # the barriers are there
    if left > 0:
        row, column = start.to(gl.int32), i_h * N
        inputs, tiles = (w, r, k, a, b, v, do), (s_w, s_r, s_k, s_a, s_b, s_v, s_do)
        for n in gl.static_range(9):
            mbarrier.expect(loaded.index(n), BYTES)
        for n in gl.static_range(7):
            tma.async_copy_global_to_shared(inputs[n], [row, column], loaded.index(n), tiles[n])
        tma.async_copy_global_to_shared(d_states, [program * N, 0], loaded.index(7), s_ds)
        tma.async_copy_global_to_shared(states, [program * N, 0], loaded.index(8), s_s)
        for n in gl.static_range(9):
            mbarrier.wait(loaded.index(n), 0)
        for n in gl.static_range(9):
            mbarrier.invalidate(loaded.index(n))
        if left < N:
            clear(s_r, s_w, s_k, s_v, s_a, s_b, s_do, left, FORM.DECAY)
        store_log_decays(s_w, FORM.DECAY)
        b_w = log_decays(s_w, FORM.DECAY)
        b_total = gl.sum(b_w, 0) * LOG2E
        mild = True
        if FORM.DECAY != OF_CLAMP:
            fits = gl.where(b_total >= -FITS * LOG2E, 0, 1)  # NaN does not
            mild = gl.max(fits, 0) == 0
            gl.store(strong + program, gl.where(mild, 0, 1).to(gl.int8))
        if mild:
            place = row, column, start * (H * N) + column, H * N, left
            gradients_of_tile(
                s_r, s_w, s_k, s_v, s_a, s_b, s_do, s_s, s_ds,
                b_total, dr, dw, dk, dv, da, db,
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
def decay_tile(s_r, s_w, s_k, s_a, s_b, s_s, s_ds, b_total, scale, zero, FORM: gl.constexpr):
    """Ã, R̃, B̃ and K̃ take the places of a, r, b and k, and dS̃ that of dS.

    Returns the sum over values of S ⊙ dS̃, and Ã as a left factor.
    """
    ds = rounded(widened(s_ds.load(STATE)) * gl.exp2(b_total)[None, :])
    b_across = gl.sum(widened(s_s.load(STATE)) * widened(ds), 0)
    s_ds.store(ds)
    b_before = sums_of_decays(s_w, zero, FORM.DECAY)
    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    a = rounded(widened(s_a.load(STATE)) * gl.exp2(b_before))
    s_a.store(a)
    s_r.store(rounded(widened(s_r.load(STATE)) * scaled(gl.exp2(b_after), scale, FORM)))
    b_grow = gl.exp2(-b_after)
    s_b.store(rounded(widened(s_b.load(STATE)) * b_grow))
    s_k.store(rounded(widened(s_k.load(STATE)) * b_grow))
    visible()
    return b_across, as_rows(a)


@gluon.jit
def written(s_x, s_r, s_do, s_ds, zero):
    """What o and the next state say to what is written with b or k: B̃ dS̃ + A_rbᵀ do."""
    x, zeros = s_x.load(ROWS), gl.zeros([N, N], gl.float32, STATE)
    b_m, b_sum = times(x, flipped(s_r), zeros), times(x, flipped(s_ds), zeros)
    b_m, b_sum = warpgroup_mma_wait(0, deps=(b_m, b_sum, x))[:2]
    m = as_rows(upper(b_m, zero))
    b_sum = times(m, s_do, b_sum)
    return warpgroup_mma_wait(0, deps=(b_sum, m))[0]


@gluon.jit
def solve(a, s_r, s_k, s_v, s_a, s_b, s_do, s_s, s_ds, s_z, s_dy, s_t, s_x, s_ak, row):
    """z and dy, to shared memory, and dv. a: Ã as a left factor. s_t, s_x, s_ak: to work in."""
    zeros = gl.zeros([N, N], gl.float32, STATE)
    b_ab, b_ak = times(a, flipped(s_b), zeros), times(a, flipped(s_k), zeros)
    b_y = times(a, flipped(s_s), zeros)
    b_ab, b_ak, b_y = warpgroup_mma_wait(0, deps=(b_ab, b_ak, b_y, a))[:3]
    ak = lower(b_ak, False, zero_of(row, 1))
    s_ak.store(ak)
    left = as_rows(ak)
    b_y = times(left, s_v, b_y)
    b_y = warpgroup_mma_wait(0, deps=(b_y, left))[0]
    t, u = inverses(s_a, s_b)
    m = between_chunks(t, b_ab, s_t, s_x, zero_of(row, 2))
    b_u = plus_in_chunks(t, b_y, s_x)
    barrier()
    s_x.store(rounded(b_u))
    visible()
    b_z = times(m, s_x, b_u)
    s_z.store(rounded(warpgroup_mma_wait(0, deps=(b_z, m))[0]))

    b_dz = written(s_b, s_r, s_do, s_ds, zero_of(row, 3))
    b_dv = written(s_k, s_r, s_do, s_ds, zero_of(row, 4))
    barrier()  # what z is made of is read
    s_x.store(rounded(b_dz))
    visible()
    b_dz = times(flipped(s_t), s_x, b_dz)
    b_dz = warpgroup_mma_wait(0, deps=(b_dz,))
    s_dy.store(rounded(plus_in_chunks(u, b_dz, s_x)))
    visible()
    b_dv = times(flipped(s_ak), s_dy, b_dv)
    return warpgroup_mma_wait(0, deps=(b_dv,))


@gluon.jit
def read_gradients(s_dx, s_s, s_v, s_z, s_k, s_b, s_pv, s_pz, own: gl.constexpr, zero):
    """dR̃ of do, or dÃ of dy, and what its tokens have with v and z, to s_pv and s_pz."""
    zeros = gl.zeros([N, N], gl.float32, STATE)
    dx = s_dx.load(ROWS)
    b_v, b_z = times(dx, flipped(s_v), zeros), times(dx, flipped(s_z), zeros)
    b_v, b_z = warpgroup_mma_wait(0, deps=(b_v, b_z, dx))[:2]
    pv, pz = lower(b_v, own, zero), lower(b_z, own, zero)
    s_pv.store(pv)
    s_pz.store(pz)
    pv, pz = as_rows(pv), as_rows(pz)
    b_dx = times(pz, s_b, times(pv, s_k, times(dx, s_s, zeros)))
    return warpgroup_mma_wait(0, deps=(b_dx, dx, pv, pz))[0]


@gluon.jit
def sums_over_tokens(b_own, b_later, s_later, s_low, s_earlier, s_of_k, zero):
    """b_own + the sums of b_later over later tokens and of two stored tiles over earlier ones."""
    in_two(b_later, s_later, s_low)
    visible()
    row, col = indices(ROWS)
    row += zero
    later, earlier = (col > row).to(gl.bfloat16), (col < row).to(gl.bfloat16)
    b_sum = times(later, s_low, times(later, s_later, b_own))
    b_sum = times(earlier, s_of_k, times(earlier, s_earlier, b_sum))
    return warpgroup_mma_wait(0, deps=(b_sum, later, earlier))[0]


@gluon.jit
def store_written(
    dy, dy_rows, s_y, s_x, s_ds, s_po, s_py, s_r, s_a, b_own, b_grow, place
):  # fmt: skip
    """db of z, or dk of v, which s_x has. Instead it has what dw of later tokens has of it then.

    Returns b_own less what dw has of it through the tokens of this tile.
    """
    x = s_x.load(ROWS)
    b_dy = times(x, s_ds, gl.zeros([N, N], gl.float32, STATE))
    b_dy = warpgroup_mma_wait(0, deps=(b_dy, x))[0]
    b_y = widened(s_y.load(STATE))
    b_earlier = b_dy * b_y
    s_x.store(rounded(b_earlier))
    b_dy = times(flipped(s_py), s_a, times(flipped(s_po), s_r, b_dy))
    b_own += b_earlier
    b_dy = warpgroup_mma_wait(0, deps=(b_dy,))
    s_y.store(rounded(b_dy * b_grow))
    store_tile(dy, dy_rows, s_y, place)
    return b_own - b_dy * b_y


@gluon.jit
def gradients_of_tile(
    s_r, s_w, s_k, s_v, s_a, s_b, s_do, s_s, s_ds, b_total,
    dr, dw, dk, dv, da, db, dr_rows, dw_rows, dk_rows, dv_rows, da_rows, db_rows, place, scale,
    FORM: gl.constexpr,
):  # fmt: skip
    """All of a tile whose decays fit. A gradient takes the place of what is not read again."""
    row = place[0]
    b_across, a = decay_tile(
        s_r, s_w, s_k, s_a, s_b, s_s, s_ds, b_total, scale, zero_of(row, 0), FORM
    )
    s_z = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_dy = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_t = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_x = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_ak = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_across = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    s_across.store(b_across)
    b_dv = solve(a, s_r, s_k, s_v, s_a, s_b, s_do, s_s, s_ds, s_z, s_dy, s_t, s_x, s_ak, row)
    barrier()
    s_ak.store(rounded(b_dv))
    store_tile(dv, dv_rows, s_ak, place)

    b_before = sums_of_decays(s_w, zero_of(row, 5), FORM.DECAY)
    b_da = read_gradients(s_dy, s_s, s_v, s_z, s_k, s_b, s_t, s_x, False, zero_of(row, 6))
    b_of_a = b_da * widened(s_a.load(STATE))
    s_dy.store(rounded(b_da * gl.exp2(b_before)))
    store_tile(da, da_rows, s_dy, place)

    tma.store_wait(1)  # dv has left
    barrier()
    b_dr = read_gradients(s_do, s_s, s_v, s_z, s_k, s_b, s_ak, s_do, True, zero_of(row, 7))
    b_own = b_dr * widened(s_r.load(STATE))
    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    barrier()  # S is read
    s_s.store(rounded(b_dr * scaled(gl.exp2(b_after), scale, FORM)))
    store_tile(dr, dr_rows, s_s, place)

    b_grow = gl.exp2(-b_after)
    b_own = store_written(db, db_rows, s_b, s_z, s_ds, s_do, s_x, s_r, s_a, b_own, b_grow, place)
    b_own = store_written(dk, dk_rows, s_k, s_v, s_ds, s_ak, s_t, s_r, s_a, b_own, b_grow, place)
    b_later = b_own + b_of_a
    b_own += s_across.load(gl.SliceLayout(0, STATE))[None, :]
    b_dw = sums_over_tokens(b_own, b_later, s_do, s_x, s_z, s_v, zero_of(row, 8))
    b_dw = gradient_of_w(b_dw, log_decays(s_w, FORM.DECAY), FORM.DECAY)
    barrier()
    s_w.store(rounded(b_dw))
    store_tile(dw, dw_rows, s_w, place)
    tma.store_wait(0)


def tile_gradients(r, w, k, v, a, b, do, states, d_states, cu_seqlens=None, scale=1.0, decay="log"):
    """The gradients of r, w, k, v, a and b, from the states that a forward pass has kept.

    Args:
        r, w, k, v, a, b, cu_seqlens, scale, decay: as `wkv7` takes them; all in bfloat16.
        do: the gradient of o.
        states: those before each 64 tokens of a sequence, `[tiles, H, V, K]`, bfloat16, as
            `wkv7_fused` keeps them.
        d_states: the gradients of the states after these tokens, the same way.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = r, w, k, v, a, b, do, states, d_states, cu_seqlens, scale, decay
            return tile_gradients(*arguments)
    inputs = [aligned(x) for x in (r, w, k, v, a, b, do)]
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
