"""WKV-7's forward pass in one launch for heads of 128 keys and values, bfloat16, on Hopper.

As forward.py, with three roles instead of two. A program owns a head of a sequence, and an SM.

    4 warps   make the maps of a tile of four chunks, for all 128 keys    wide_maps.py
    4 warps   apply the maps of the tile before to 64 values of the state
    4 warps   the same for the other 64 values

Values do not depend on each other, so the two roles that apply maps share nothing but the maps.
Everything is in tiles of 64 tokens and 64 keys or values, as in apply.py: a sum over 128 keys is
two products. What changes names there is of 64 keys here, twice.
"""

import torch
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
from ....runtime.launch_tiles import launch_tiles
from ....sequences.arguments import sequences_in
from ....sequences.spans import first_span, sequence_bounds
from ...decays import FORMS, OF_CLAMP
from .apply import by_token, in_pieces, solved, store_tile
from .forward import aligned, spans_of, tiles_of
from .layouts import (
    CHUNKS,
    FLAT,
    IN_A_WARP,
    LOG2E,
    READ,
    STAGES,
    STATE,
    TILE,
    C,
    Form,
    N,
    as_left,
    barrier,
    rounded,
)
from .loads import barriers, load_tile
from .maps import log_decay
from .wide_maps import make_maps, pairs_of

WIDE = gl.constexpr(128)  # keys, and values
REGISTERS = 168  # a thread, of one program an SM with three roles
MAP_REGISTERS = gl.constexpr(200)  # a thread that makes maps
STATE_REGISTERS = gl.constexpr(152)  # one that applies them


@gluon.jit
def apply_chunk(b_s0, b_s1, keys, s_v, s_small, s_decay0, s_decay1, first: gl.constexpr):
    """One chunk, whose first token in the tile is `first`: the state after it, and oᵀ.

    b_s0, b_s1: Sᵀ of 64 values, for each half of the keys. keys: R̃, K̃, Ã and B̃ of each half.
    """
    s_r0, s_k0, s_a0, s_b0, s_r1, s_k1, s_a1, s_b1 = keys
    zeros = gl.zeros([N, C], gl.float32, READ)
    v = s_v.slice(first, C, 0).permute((1, 0)).load(gl.DotOperandLayout(0, READ, 2))
    v_wide = gl.convert_layout(v, gl.DotOperandLayout(0, STATE, 2))
    s0, s1 = as_left(b_s0, READ), as_left(b_s1, READ)
    s_ak, s_rb = by_token(s_small.index(0), first), by_token(s_small.index(1), first)
    s_rk, s_t = by_token(s_small.index(2), first), by_token(s_small.index(3), first)
    b_y = warpgroup_mma(v, s_ak, zeros, use_acc=False, is_async=True)
    b_y = warpgroup_mma(s0, by_token(s_a0, first), b_y, is_async=True)
    b_y = warpgroup_mma(s1, by_token(s_a1, first), b_y, is_async=True)
    b_o = warpgroup_mma(v, s_rk, zeros, use_acc=False, is_async=True)
    b_o = warpgroup_mma(s0, by_token(s_r0, first), b_o, is_async=True)
    b_o = warpgroup_mma(s1, by_token(s_r1, first), b_o, is_async=True)
    b_s0 = warpgroup_mma(v_wide, s_k0.slice(first, C, 0), b_s0, is_async=True)
    b_s1 = warpgroup_mma(v_wide, s_k1.slice(first, C, 0), b_s1, is_async=True)
    b_y = warpgroup_mma_wait(5, deps=(b_y,))
    y = in_pieces(b_y)
    b_z = solved(y, s_t, zeros)
    deps = (b_z, b_o, b_s0, b_s1, s0, s1, v, v_wide) + y
    b_z, b_o, b_s0, b_s1 = warpgroup_mma_wait(0, deps=deps)[:4]
    z = as_left(b_z, READ)
    z_wide = gl.convert_layout(z, gl.DotOperandLayout(0, STATE, 2))
    b_s0 = warpgroup_mma(z_wide, s_b0.slice(first, C, 0), b_s0, is_async=True)
    b_s1 = warpgroup_mma(z_wide, s_b1.slice(first, C, 0), b_s1, is_async=True)
    b_o = warpgroup_mma(z, s_rb, b_o, is_async=True)
    b_decay0 = s_decay0.load(gl.SliceLayout(0, STATE))
    b_decay1 = s_decay1.load(gl.SliceLayout(0, STATE))
    b_s0, b_s1, b_o = warpgroup_mma_wait(0, deps=(b_s0, b_s1, b_o, z, z_wide))[:3]
    return b_s0 * b_decay0[None, :], b_s1 * b_decay1[None, :], b_o, b_z


@gluon.jit
def apply_chunks(b_s0, b_s1, halves, s_v, s_o, s_decays, i, z_t):
    """The four chunks of the tile in stage i: the state after them. o of the tile is in s_o.

    z_t: where zᵀ of the tile is kept, `[values, tokens]`, or None.
    """
    r0, w, k0, _, a0, b0 = halves[0]
    r1, _, k1, _, a1, b1 = halves[1]
    s_small = pairs_of(w.index(i), 4)
    keys = r0.index(i), k0.index(i), a0.index(i), b0.index(i)
    keys += r1.index(i), k1.index(i), a1.index(i), b1.index(i)
    s_decay0 = s_decays[0]._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    s_decay1 = s_decays[1]._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    tma.store_wait(0)  # o of the tile before has left
    barrier()
    for j in gl.static_range(CHUNKS):
        b_s0, b_s1, b_o, b_z = apply_chunk(
            b_s0, b_s1, keys, s_v.index(i), s_small, s_decay0.index(CHUNKS * i + j),
            s_decay1.index(CHUNKS * i + j), C * j,
        )  # fmt: skip
        s_o.slice(C * j, C, 0).permute((1, 0)).store(rounded(b_o))
        if z_t is not None:
            value = gl.arange(0, N, gl.SliceLayout(1, READ))[:, None]
            token = gl.arange(0, C, gl.SliceLayout(0, READ))[None, :]
            gl.store(z_t + value * N + token + C * j, rounded(b_z))
    return b_s0, b_s1


@gluon.jit
def row_of(x, at):
    """The keys of a token, in float32, of each half."""
    key = gl.arange(0, N, gl.SliceLayout(0, STATE))
    return gl.load(x + at + key).to(gl.float32), gl.load(x + at + N + key).to(gl.float32)


@gluon.jit
def apply_tokens(
    b_s0, b_s1, rows, o_rows, at, step, count, scale, z_t, FIRST: gl.constexpr, DECAY: gl.constexpr
):
    """The recurrence for `count` tokens, for any decay: the state after them. Stores their o.

    at: of the first token in global memory; step: to the next one. FIRST: of the 64 values. z_t:
    as in `apply_chunks`; it gets zeros after the tokens.
    """
    r, w, k, v, a, b = rows
    value = FIRST + gl.arange(0, N, gl.SliceLayout(1, STATE))
    for t in range(count):
        a0, a1 = row_of(a, at)
        b_z = gl.sum(b_s0 * a0[None, :], 1) + gl.sum(b_s1 * a1[None, :], 1)
        if z_t is not None:
            gl.store(z_t + (value - FIRST) * N + t, b_z.to(gl.bfloat16))
        w0, w1 = row_of(w, at)
        b_s0 *= gl.exp2(log_decay(w0, DECAY) * LOG2E)[None, :]
        b_s1 *= gl.exp2(log_decay(w1, DECAY) * LOG2E)[None, :]
        b0, b1 = row_of(b, at)
        b_s0 += b_z[:, None] * b0[None, :]
        b_s1 += b_z[:, None] * b1[None, :]
        b_v = gl.load(v + at + value).to(gl.float32)
        k0, k1 = row_of(k, at)
        b_s0 += b_v[:, None] * k0[None, :]
        b_s1 += b_v[:, None] * k1[None, :]
        r0, r1 = row_of(r, at)
        b_o = gl.sum(b_s0 * r0[None, :], 1) + gl.sum(b_s1 * r1[None, :], 1)
        gl.store(o_rows + at + value, (b_o * scale).to(gl.bfloat16))
        at += step
    if z_t is not None:
        for t in range(count, N):
            gl.store(z_t + (value - FIRST) * N + t, (value * 0).to(gl.bfloat16))
    return b_s0, b_s1


@gluon.jit
def offsets_of(zero, first_key: gl.constexpr, first_value: gl.constexpr):
    """Of 64 keys and 64 values in a state [keys, values], as Sᵀ is laid out."""
    value = first_value + gl.arange(0, N, gl.SliceLayout(1, STATE))[:, None]
    key = first_key + gl.arange(0, N, gl.SliceLayout(0, STATE))[None, :]
    return (key + zero) * WIDE + value


@gluon.jit
def load_state(s0, has_s0, at, first_key: gl.constexpr, first_value: gl.constexpr):
    offsets = offsets_of(0, first_key, first_value)
    return gl.load(s0 + at + offsets, (offsets >= 0) & (has_s0 != 0), 0.0).to(gl.float32)


@gluon.jit
def keep_half(states, b_s, at, first_key: gl.constexpr, first_value: gl.constexpr):
    """Of the state before a tile, as it is in registers: [values, keys], in bfloat16."""
    value = first_value + gl.arange(0, N, gl.SliceLayout(1, STATE))[:, None]
    key = first_key + gl.arange(0, N, gl.SliceLayout(0, STATE))[None, :]
    gl.store(states + at + value * WIDE + key, rounded(b_s))


@gluon.jit
def fit(s_decays, i):
    """Whether the maps of the tile in stage i are right: see STRONG of maps.py."""
    least = gl.min(s_decays[0].index(i).load(IN_A_WARP), 0)
    return gl.minimum(least, gl.min(s_decays[1].index(i).load(IN_A_WARP), 0)) >= 0.0


@gluon.jit
def apply_maps(tensors, shared, place, numbers, FORM: gl.constexpr, HALF: gl.constexpr):
    """The warps that apply maps to a half of the values: of one tile after the other.

    place: of a sequence and head, its first token, how many it has, the column in a row of `step`
    elements, and the number of its first tile and head. The warps of the first half load the
    tiles, where those of the second half have read the tile before.
    """
    described, rows, s0, o, o_rows, s1, states, z = tensors
    halves, s_os, s_decays, loaded, mapped, applied = shared
    start, n, column, step, kept_at = place
    H = step // WIDE
    has_s0, i_s, scale = numbers
    FIRST: gl.constexpr = HALF * N
    s_v, s_o = halves[HALF][3], s_os[HALF]
    b_s0 = load_state(s0, has_s0, i_s, 0, FIRST)
    b_s1 = load_state(s0, has_s0, i_s, N, FIRST)
    for first in range(0, n, N):
        i, phase = first // N % STAGES, first // N // STAGES % 2
        kept = kept_at + H * (first // N)
        if states is not None:
            keep_half(states, b_s0, kept * (WIDE * WIDE), 0, FIRST)
            keep_half(states, b_s1, kept * (WIDE * WIDE), N, FIRST)
            z_t = z + (kept * WIDE + FIRST) * N
        else:
            z_t = None
        mbarrier.wait(mapped.index(i), phase)
        row, left, at = (start + first).to(gl.int32), n - first, (start + first) * step + column
        if FORM.DECAY == OF_CLAMP:
            b_s0, b_s1 = apply_chunks(b_s0, b_s1, halves, s_v, s_o, s_decays, i, z_t)
            store_tile(o, o_rows, s_o, row, column + FIRST, at + FIRST, step, left)
        elif fit(s_decays, i):
            b_s0, b_s1 = apply_chunks(b_s0, b_s1, halves, s_v, s_o, s_decays, i, z_t)
            store_tile(o, o_rows, s_o, row, column + FIRST, at + FIRST, step, left)
        else:
            b_s0, b_s1 = apply_tokens(
                b_s0, b_s1, rows, o_rows, at, step, gl.minimum(left, N), scale, z_t, FIRST,
                FORM.DECAY,
            )  # fmt: skip
            barrier()
        if HALF == 1:
            mbarrier.arrive(applied.index(i), count=1)
        else:
            mbarrier.wait(applied.index(i), phase)
            again, more = row + STAGES * N, left > STAGES * N
            load_tile(described, halves[0], loaded[0], i, again, column, more)
            load_tile(described, halves[1], loaded[1], i, again, column + N, more)
    tma.store_wait(0)
    zero = n // 2**30  # which the compiler cannot know: it would keep all addresses
    gl.store(s1 + i_s + offsets_of(zero, 0, FIRST), b_s0)
    gl.store(s1 + i_s + offsets_of(zero, N, FIRST), b_s1)


@gluon.jit
def half_of_tiles():
    """r, w, k, v, a and b of 64 keys or values, in all stages; their barriers."""
    s_r = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    loaded = barriers(), barriers(), barriers(), barriers(), barriers(), barriers()
    return (s_r, s_w, s_k, s_v, s_a, s_b), loaded


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "scale"])
def wkv7_wide_kernel(
    r, w, k, v, a, b, r_rows, w_rows, k_rows, v_rows, a_rows, b_rows, s0, cu_seqlens, o, o_rows, s1,
    states, z, has_s0, T, H, scale,
    FORM: gl.constexpr,
):  # fmt: skip
    """As `wkv7_hopper_kernel`; the tensors have heads of 128 keys and 128 values.

    z: what tokens read through a, [tiles, H, values, 64 tokens], or None as states.
    """
    i_n, i_h = (gl.program_id(0) // H).to(gl.int64), gl.program_id(0) % H
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n, column, step = (end - start).to(gl.int32), i_h * WIDE, H * WIDE
    first_half, first_loaded = half_of_tiles()
    second_half, second_loaded = half_of_tiles()
    s_o0 = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_o1 = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_decay0 = gl.allocate_shared_memory(gl.float32, [STAGES, CHUNKS * N], FLAT)
    s_decay1 = gl.allocate_shared_memory(gl.float32, [STAGES, CHUNKS * N], FLAT)
    mapped, applied = barriers(), barriers()
    fence_async_shared()
    barrier()  # the barriers are there
    kept_at = first_span(cu_seqlens, start, i_n, T, N) * H + i_h
    halves, loaded = (first_half, second_half), (first_loaded, second_loaded)
    described, rows = (r, w, k, v, a, b), (r_rows, w_rows, k_rows, v_rows, a_rows, b_rows)
    row = start.to(gl.int32)
    for i in gl.static_range(STAGES):
        load_tile(described, first_half, first_loaded, i, row + i * N, column, i * N < n)
        load_tile(described, second_half, second_loaded, i, row + i * N, column + N, i * N < n)
    tensors = described, rows, s0, o, o_rows, s1, states, z
    s_decays, place = (s_decay0, s_decay1), (start, n, column, step, kept_at)
    shared = halves, (s_o0, s_o1), s_decays, loaded, mapped, applied
    numbers = has_s0, (i_n * H + i_h) * WIDE * WIDE, scale
    ONE: gl.constexpr = 1
    ZERO: gl.constexpr = 0
    gl.warp_specialize(
        [
            (apply_maps, (tensors, shared, place, numbers, FORM, ZERO)),
            (apply_maps, (tensors, shared, place, numbers, FORM, ONE)),
            (make_maps, (halves, s_decays, loaded, mapped, n, scale, FORM)),
        ],
        [4, 4],
        [STATE_REGISTERS, MAP_REGISTERS],
    )


def forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """As `forward` of forward.py, for heads of 128, but with z instead of an empty tensor.

    z: what tokens read through a, zᵀ of each 64 tokens, `[spans, H, V, 64]`; empty unless `keep`.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep)
    inputs = [aligned(x) for x in (r, w, k, v, a, b)]
    (_, T, H, K), V, S = r.shape, v.shape[3], sequences_in(r, cu_seqlens)
    o, s1 = torch.empty_like(inputs[3]), r.new_empty((S, H, K, V), dtype=torch.float32)
    spans = spans_of(r, cu_seqlens)
    states = r.new_empty((spans, H, V, K) if keep else 0)
    z = r.new_empty((spans, H, V, N.value) if keep else 0)
    launch(
        S * H,
        (*map(tiles_of, inputs), *inputs, s1 if s0 is None else s0.contiguous(),
         None if cu_seqlens is None else cu_seqlens.contiguous(), tiles_of(o), o, s1,
         states if keep else None, z if keep else None),
        (int(s0 is not None), T, H, scale),
        Form(FORMS[decay], scale != 1.0),
    )  # fmt: skip
    return o, s1, states, z


def launch(programs, tensors, numbers, form):
    grid, options = (programs, 1, 1), {"maxnreg": REGISTERS}
    launch_tiles(wkv7_wide_kernel, grid, 4, tensors, numbers, (form,), **options)
