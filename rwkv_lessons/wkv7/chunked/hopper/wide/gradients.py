"""The gradients of 64 tokens of a head of 128, once the sweeps have left z, dy and both states.

A program of eight warps owns a tile of 64 tokens of a head, all tiles at once. It reads r, w, k, v,
a, b and do, z and dy, the state before the tile and the gradient of the one after it: 13 S, and
writes five gradients, 5 S. dv is written by the sweep back. Of the tile as one chunk, with Ã, R̃, B̃
and K̃ of ../maps.py, but decayed from or to where half of a key's decay is past, and both states
decayed to there, S̃ = early ⊙ S and dS̃ = late ⊙ dS, where early ⊙ late is the decay,

    P_ov, P_oz = do vᵀ, do zᵀ       P_yv, P_yz = dy vᵀ, dy zᵀ     of pairs of which the second is
    dR̃ = do S̃ᵀ + P_ov K̃ + P_oz B̃             dÃ = dy S̃ᵀ + P_yv K̃ + P_yz B̃              read by the
    dK̃ = v dS̃ᵀ + P_ovᵀ R̃ + P_yvᵀ Ã           dB̃ = z dS̃ᵀ + P_ozᵀ R̃ + P_yzᵀ Ã                   first

No matrix is inverted. Two groups of eight products each follow one another: all that S, dS̃ and the
values are in, then what the pairs add. dw is as in ../gradients.py.

`early` is a power of two, which S is multiplied by exactly. Products of two of them are only those
with P, where a pair that is not read is 0. So the factors alone have to fit, and these grow or
shrink by half of a tile's decay. A tile that decays by more than e^FITS_TWICE is marked, and
computed chunk by chunk in a second launch (strong.py).
"""

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

from .....runtime.compile_triton import assembled
from .....runtime.launch_tiles import launch_tiles
from .....sequences.hopper_tiles import tiles
from .....sequences.spans import bounds_of_span, span_bounds
from ....decays import FORMS, OF_CLAMP, RAW
from ..layouts import FLAT, LOG2E, TILE, N, barrier, rounded, widened
from ..products import (
    FITS_TWICE,
    fast_log_decay,
    flipped,
    gradient_of_w,
    in_two,
    times,
    times_powers,
    visible,
    zero_of,
)
from . import strong as strong_tiles
from .sweep import WIDE

KEYS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16]))  # [tokens, keys]
PAIRS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16]))  # [tokens, tokens]
LEFT = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16]), 2)
)
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))
WARPS = 8


class WideGradientForm(NamedTuple):
    """What the kernel is compiled for."""

    DECAY: int  # what w is, see ../../../decays.py
    SCALED: bool  # whether r is multiplied by a scale


@gluon.jit
def indices(COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Row and column of each element of a tile of 64 tokens."""
    row = gl.arange(0, N, gl.SliceLayout(1, LAYOUT))[:, None]
    return row, gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def clear_tail(s_x, count, absent):
    """Has what follows the last token be `absent`: it may be other tokens, or NaN."""
    token, key = indices(WIDE, KEYS)
    b_x = gl.where(token + 0 * key < count, s_x.load(KEYS), absent)
    s_x.store(b_x.to(gl.bfloat16))


@gluon.jit
def log_decays(s_w, DECAY: gl.constexpr):
    """What `store_log_decays` has left."""
    if DECAY == RAW or DECAY == OF_CLAMP:
        return s_w._reinterpret(gl.float16, [N, WIDE], TILE).load(KEYS).to(gl.float32)
    else:
        return widened(s_w.load(KEYS))


@gluon.jit
def store_log_decays(s_w, DECAY: gl.constexpr):
    """Where w is a parameter: its log decays in its place, in float16. See ../products.py."""
    if DECAY == RAW or DECAY == OF_CLAMP:
        b_w = fast_log_decay(widened(s_w.load(KEYS)), DECAY)
        barrier()
        s_w._reinterpret(gl.float16, [N, WIDE], TILE).store(b_w.to(gl.float16))
        visible()


@gluon.jit
def sums_of_decays(s_w, b_early, zero, DECAY: gl.constexpr):
    """log2 of the decays before each token of a tile, from where b_early of them are past."""
    row, col = indices(N, LEFT)
    b_sum = gl.zeros([N, WIDE], gl.float32, KEYS)
    if DECAY == RAW or DECAY == OF_CLAMP:
        earlier = (col < row + zero).to(gl.float16)
        b_sum = times(earlier, s_w._reinterpret(gl.float16, [N, WIDE], TILE), b_sum)
    else:
        earlier = (col < row + zero).to(gl.bfloat16)
        b_sum = times(earlier, s_w, b_sum)
    return warpgroup_mma_wait(0, deps=(b_sum, earlier))[0] * LOG2E - b_early[None, :]


@gluon.jit
def lower(b_x, own: gl.constexpr, zero):
    """What a token has with those before it, and with its `own`, in bfloat16."""
    row, col = indices(N, PAIRS)
    row += zero
    return rounded(gl.where(col <= row if own else col < row, b_x, 0.0))


@gluon.jit
def decay_tile(s_r, s_w, s_k, s_a, s_b, b_early, scale, zero, FORM: gl.constexpr):
    """Ã, R̃, B̃ and K̃ take the places of a, r, b and k."""
    b_before = sums_of_decays(s_w, b_early, zero, FORM.DECAY)
    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    s_a.store(rounded(widened(s_a.load(KEYS)) * gl.exp2(b_before)))
    b_shrink = gl.exp2(b_after)
    if FORM.SCALED:
        b_shrink *= scale
    s_r.store(rounded(widened(s_r.load(KEYS)) * b_shrink))
    b_grow = gl.exp2(-b_after)
    s_b.store(rounded(widened(s_b.load(KEYS)) * b_grow))
    s_k.store(rounded(widened(s_k.load(KEYS)) * b_grow))


@gluon.jit
def decay_states(s_s, s_ds, b_early, b_late):
    """S̃ and dS̃ take the places of S and dS. Returns the sum over values of S̃ ⊙ dS̃."""
    b_early, b_late = gl.exp2(b_early), gl.exp2(b_late)[None, :]
    b_across = gl.zeros([WIDE], gl.float32, gl.SliceLayout(0, KEYS))
    for first in gl.static_range(0, WIDE, N):
        s_x, s_y = s_s.slice(first, N, 0), s_ds.slice(first, N, 0)
        s = times_powers(s_x.load(KEYS), rounded(b_early)[None, :])
        ds = rounded(widened(s_y.load(KEYS)) * b_late)
        b_across += gl.sum(widened(s) * widened(ds), 0)
        s_x.store(s)
        s_y.store(ds)
    return b_across


@gluon.jit
def store_tiles(outputs, rows, staged, place):
    """Starts the copies of gradients, if the tile is whole; else stores what there is of it."""
    row, column, at, step, count = place
    if count >= N:
        for n in gl.static_range(len(staged)):
            tma.async_copy_shared_to_global(outputs[n], [row, column], staged[n])
    else:
        token, key = indices(WIDE, ROWS)
        for n in gl.static_range(len(staged)):
            b_x = staged[n].load(ROWS)
            gl.store(rows[n] + at + token * step + key, b_x, token + 0 * key < count)


@gluon.jit
def gradients_of_tile(shared, s_early, s_across, outputs, rows, place, scale, FORM: gl.constexpr):
    """All of a tile whose decays fit. A gradient takes the place of what is not read again."""
    s_r, s_w, s_k, s_a, s_b, s_v, s_do, s_z, s_dy, s_s, s_ds = shared
    row = place[0]
    zeros, no_pairs = gl.zeros([N, WIDE], gl.float32, KEYS), gl.zeros([N, N], gl.float32, PAIRS)
    b_ov, b_oz = times(s_do, flipped(s_v), no_pairs), times(s_do, s_z, no_pairs)
    b_yv = times(flipped(s_dy), flipped(s_v), no_pairs)
    b_yz = times(flipped(s_dy), s_z, no_pairs)
    b_dk, b_db = times(s_v, s_ds, zeros), times(flipped(s_z), s_ds, zeros)
    b_dr, b_da = times(s_do, s_s, zeros), times(flipped(s_dy), s_s, zeros)
    deps = b_ov, b_oz, b_yv, b_yz, b_dk, b_db, b_dr, b_da
    b_ov, b_oz, b_yv, b_yz, b_dk, b_db, b_dr, b_da = warpgroup_mma_wait(0, deps=deps)
    barrier()  # do, v, z and dy are read
    of_o = s_do._reinterpret(gl.bfloat16, [2, N, N], TILE)
    of_y = s_v._reinterpret(gl.bfloat16, [2, N, N], TILE)
    s_earlier = s_z._reinterpret(gl.bfloat16, [N, WIDE], TILE)
    of_o.index(0).store(lower(b_ov, True, zero_of(row, 1)))
    of_o.index(1).store(lower(b_oz, True, zero_of(row, 2)))
    of_y.index(0).store(lower(b_yv, False, zero_of(row, 3)))
    of_y.index(1).store(lower(b_yz, False, zero_of(row, 4)))
    b_own = b_dk * widened(s_k.load(KEYS)) + b_db * widened(s_b.load(KEYS))
    s_earlier.store(rounded(b_own))
    visible()

    b_dr = times(of_o.index(1), s_b, times(of_o.index(0), s_k, b_dr))
    b_da = times(of_y.index(1), s_b, times(of_y.index(0), s_k, b_da))
    b_dk = times(flipped(of_y.index(0)), s_a, times(flipped(of_o.index(0)), s_r, b_dk))
    b_db = times(flipped(of_y.index(1)), s_a, times(flipped(of_o.index(1)), s_r, b_db))
    b_dr, b_da, b_dk, b_db = warpgroup_mma_wait(0, deps=(b_dr, b_da, b_dk, b_db))
    b_early = s_early.load(gl.SliceLayout(0, KEYS))
    b_before = sums_of_decays(s_w, b_early, zero_of(row, 5), FORM.DECAY)
    barrier()  # S, and what the pairs were multiplied with, is read
    b_of_a = b_da * widened(s_a.load(KEYS))
    s_a.store(rounded(b_da * gl.exp2(b_before)))
    b_after = b_before + log_decays(s_w, FORM.DECAY) * LOG2E
    b_own += b_dr * widened(s_r.load(KEYS))
    b_shrink = gl.exp2(b_after)
    if FORM.SCALED:
        b_shrink *= scale
    s_r.store(rounded(b_dr * b_shrink))
    b_grow = gl.exp2(-b_after)
    b_own -= b_dk * widened(s_k.load(KEYS)) + b_db * widened(s_b.load(KEYS))
    s_k.store(rounded(b_dk * b_grow))
    s_b.store(rounded(b_db * b_grow))
    pieces = s_s._reinterpret(gl.bfloat16, [2, N, WIDE], TILE)
    in_two(b_own + b_of_a, pieces.index(0), pieces.index(1))
    visible()
    store_tiles(outputs[:4], rows[:4], (s_r, s_k, s_a, s_b), place)

    b_own += s_across.load(gl.SliceLayout(0, KEYS))[None, :]
    row, col = indices(N, LEFT)
    row += zero_of(place[0], 6)
    later, earlier = (col > row).to(gl.bfloat16), (col < row).to(gl.bfloat16)
    b_dw = times(later, pieces.index(1), times(later, pieces.index(0), b_own))
    b_dw = times(earlier, s_earlier, b_dw)
    b_dw = warpgroup_mma_wait(0, deps=(b_dw, later, earlier))[0]
    b_dw = gradient_of_w(b_dw, log_decays(s_w, FORM.DECAY), FORM.DECAY)
    barrier()
    s_w.store(rounded(b_dw))
    visible()
    store_tiles(outputs[4:], rows[4:], (s_w,), place)
    tma.store_wait(0)


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale"])
def wkv7_wide_gradients_kernel(
    r, w, k, v, a, b, do, z, dy, states, d_states, bounds, dr, dk, da, db, dw,
    dr_rows, dk_rows, da_rows, db_rows, dw_rows, strong, T, H, scale,
    FORM: gl.constexpr,
):  # fmt: skip
    """r to do and dr to dw are descriptors of [tokens, H·128]; *_rows are the latter's tensors.

    z, dy: descriptors of [tiles·H·128 values, 64 tokens]; states, d_states: of [tiles·H·128 values,
    128 keys]. strong: of each tile and head whether its decays are too strong; int8.
    """
    program = gl.program_id(0)
    i, i_h = (program // H).to(gl.int64), program % H
    start, end = bounds_of_span(bounds, i, T, N)
    count = (end - start).to(gl.int32)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [N, WIDE], TILE)
    s_z = gl.allocate_shared_memory(gl.bfloat16, [WIDE, N], TILE)
    s_dy = gl.allocate_shared_memory(gl.bfloat16, [WIDE, N], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [WIDE, WIDE], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [WIDE, WIDE], TILE)
    s_early = gl.allocate_shared_memory(gl.float32, [WIDE], FLAT)
    s_across = gl.allocate_shared_memory(gl.float32, [WIDE], FLAT)
    loaded = gl.allocate_shared_memory(gl.int64, [11, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(11):
        mbarrier.init(loaded.index(n), count=1)
    fence_async_shared()
    barrier()  # the barriers are there
    if count > 0:
        row, column = start.to(gl.int32), i_h * WIDE
        inputs, staged = (w, r, k, a, b, v, do), (s_w, s_r, s_k, s_a, s_b, s_v, s_do)
        swept, of_swept = (d_states, states, z, dy), (s_ds, s_s, s_z, s_dy)
        for n in gl.static_range(11):
            mbarrier.expect(loaded.index(n), 32768 if n == 7 or n == 8 else 16384)
        for n in gl.static_range(7):
            tma.async_copy_global_to_shared(inputs[n], [row, column], loaded.index(n), staged[n])
        for n in gl.static_range(4):
            tma.async_copy_global_to_shared(
                swept[n], [program * WIDE, 0], loaded.index(7 + n), of_swept[n]
            )
        for n in gl.static_range(5):
            mbarrier.wait(loaded.index(n), 0)
        if count < N:
            PARAMETER: gl.constexpr = FORM.DECAY == RAW or FORM.DECAY == OF_CLAMP
            for n in gl.static_range(5):
                absent = float("-inf") if n == 0 and PARAMETER else 0.0  # no decay
                clear_tail(staged[n], count, absent)
            visible()
        store_log_decays(s_w, FORM.DECAY)
        b_total = gl.sum(log_decays(s_w, FORM.DECAY), 0) * LOG2E
        b_early = gl.floor(0.5 * b_total)
        s_early.store(b_early)
        decay_tile(s_r, s_w, s_k, s_a, s_b, b_early, scale, zero_of(row, 0), FORM)
        for n in gl.static_range(5, 11):
            mbarrier.wait(loaded.index(n), 0)
        for n in gl.static_range(11):
            mbarrier.invalidate(loaded.index(n))
        if count < N:
            clear_tail(s_v, count, 0.0)
            clear_tail(s_do, count, 0.0)
        mild = True
        if FORM.DECAY != OF_CLAMP:
            fits = gl.where(b_total >= -FITS_TWICE * LOG2E, 0, 1)  # NaN does not
            mild = gl.max(fits, 0) == 0
            gl.store(strong + program, gl.where(mild, 0, 1).to(gl.int8))
        if mild:
            s_across.store(decay_states(s_s, s_ds, b_early, b_total - b_early))
            visible()
            gradients_of_tile(
                (s_r, s_w, s_k, s_a, s_b, s_v, s_do, s_z, s_dy, s_s, s_ds), s_early, s_across,
                (dr, dk, da, db, dw), (dr_rows, dk_rows, da_rows, db_rows, dw_rows),
                (row, column, start * (H * WIDE) + column, H * WIDE, count), scale, FORM,
            )  # fmt: skip
    elif FORM.DECAY != OF_CLAMP:
        gl.store(strong + program, gl.full([], 0, gl.int8))  # an unused index


def tokens_of(x):
    """Describes a contiguous x [.., H, 128] as rows of tokens, of which 64 are moved."""
    return tiles(x, x.shape[-2] * WIDE.value, N.value, WIDE.value)


def states_of(x):
    """Describes rows of values of a contiguous x [.., 128, columns], of which 128 are moved."""
    return tiles(x, x.shape[-1], WIDE.value, x.shape[-1])


def tile_gradients(
    r, w, k, v, a, b, do, states, d_states, z, dy, cu_seqlens=None, scale=1.0, decay="log"
):
    """The gradients of r, w, k, a and b, from what sweep.py has kept forward and back.

    r, w, k, v, a, b and do are `aligned`, on torch's current device.
    """
    inputs = r, w, k, v, a, b, do
    (_, T, H, _), programs = r.shape, states.shape[0] * r.shape[2]
    bounds = span_bounds(None if cu_seqlens is None else cu_seqlens.contiguous(), T, N.value)
    dr, dw, dk, da, db = (torch.empty_like(x) for x in (*inputs[:3], *inputs[4:6]))
    outputs = dr, dk, da, db, dw
    strong = torch.empty(programs, dtype=torch.int8, device=r.device)
    launch(
        programs,
        (*map(tokens_of, inputs), *map(states_of, (z, dy, states, d_states)), bounds,
         *map(tokens_of, outputs), *outputs, strong),
        (T, H, float(scale)),
        WideGradientForm(FORMS[decay], scale != 1.0),
    )  # fmt: skip
    if decay != "clamp":  # no decay of which is that strong
        launch_strong(
            2 * min(strong_tiles.PROGRAMS, programs),
            (*inputs, z, dy, states, d_states, bounds, *outputs, strong),
            (T, H, programs, float(scale)),
            FORMS[decay],
        )
    return dr, dw, dk, da, db


def launch(programs, tensors, numbers, form):
    grid = (programs, 1, 1)
    launch_tiles(wkv7_wide_gradients_kernel, grid, WARPS, tensors, numbers, (form,))


def launch_strong(programs, tensors, numbers, decay):
    grid = (programs, 1, 1)
    kernel, warps = strong_tiles.wkv7_wide_strong_kernel, strong_tiles.WARPS
    launch_tiles(kernel, grid, warps, tensors, numbers, (decay,))
