"""WKV-7's sweeps for heads of 128 keys and values, bfloat16, on Hopper: forward, and back.

As ../forward.py and ../reverse.py, with three roles instead of two. A program owns a head of a
sequence, and an SM.

    4 warps   make the maps of a tile of four chunks, for all 128 keys    maps.py
    4 warps   apply the maps of the tile before to 64 values of S or dS   apply.py, back.py
    4 warps   the same for the other 64 values

Values do not depend on each other, so the two roles that apply maps share nothing but the maps.
Everything is in tiles of 64 tokens and 64 keys or values. Back, tiles come from the last to the
first, do stands for v, dS for S, dv for o, and dy for z.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .....runtime.compile_triton import assembled
from .....runtime.launch_tiles import launch_tiles
from .....sequences.arguments import empty_results, sequences_in
from .....sequences.spans import first_span, sequence_bounds
from ....decays import FORMS, OF_CLAMP
from ..apply import store_tile
from ..forward import aligned, spans_of, tiles_of
from ..layouts import CHUNKS, FLAT, READ, STAGES, STATE, TILE, C, N, barrier, rounded
from ..loads import barriers, load_tile
from .apply import apply_chunk, apply_tokens
from .back import apply_chunk_back, apply_tokens_back
from .maps import make_maps, mark_of, pairs_of
from .split import STRONG

WIDE = gl.constexpr(128)  # keys, and values
REGISTERS = 168  # a thread, of one program an SM with three roles
MAP_REGISTERS = gl.constexpr(200)  # a thread that makes maps
STATE_REGISTERS = gl.constexpr(152)  # one that applies them


class WideForm(NamedTuple):
    """What the kernel is compiled for."""

    DECAY: int  # what w is, see ../../../decays.py
    SCALED: bool  # whether r is multiplied by a scale
    REVERSE: bool  # whether it goes back


@gluon.jit
def apply_chunks(
    b_s0, b_s1, halves, s_v, s_o, s_decays, i, z_t, REVERSE: gl.constexpr, SPLIT: gl.constexpr
):
    """The four chunks of the tile in stage i: the state after them. o of the tile is in s_o.

    z_t: where zᵀ of the tile is kept, `[values, tokens]`, or None. SPLIT: see split.py.
    """
    r0, w, k0, _, a0, b0 = halves[0]
    r1, _, k1, _, a1, b1 = halves[1]
    s_small = pairs_of(w.index(i))
    keys = r0.index(i), k0.index(i), a0.index(i), b0.index(i)
    keys += r1.index(i), k1.index(i), a1.index(i), b1.index(i)
    s_decay0 = s_decays[0]._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    s_decay1 = s_decays[1]._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    tma.store_wait(0)  # o of the tile before has left
    barrier()
    LAST: gl.constexpr = CHUNKS - 1
    START: gl.constexpr = LAST if REVERSE else 0
    STEP: gl.constexpr = -1 if REVERSE else 1
    for j in gl.static_range(START, LAST - START + STEP, STEP):
        s_now0, s_now1 = s_decay0.index(CHUNKS * i + j), s_decay1.index(CHUNKS * i + j)
        if REVERSE:
            b_s0, b_s1, b_o, b_z = apply_chunk_back(
                b_s0, b_s1, keys, s_v.index(i), s_small, s_now0, s_now1, C * j, SPLIT
            )
        else:
            b_s0, b_s1, b_o, b_z = apply_chunk(
                b_s0, b_s1, keys, s_v.index(i), s_small, s_now0, s_now1, C * j, SPLIT
            )
        s_o.slice(C * j, C, 0).permute((1, 0)).store(rounded(b_o))
        if z_t is not None:
            value = gl.arange(0, N, gl.SliceLayout(1, READ))[:, None]
            token = gl.arange(0, C, gl.SliceLayout(0, READ))[None, :]
            gl.store(z_t + value * N + token + C * j, rounded(b_z))
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
def apply_whole(
    b_s0, b_s1, tensors, shared, i, z_t, tile, FORM: gl.constexpr, HALF: gl.constexpr,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """The maps of the tile in stage i. Stores o."""
    _, o, o_rows = tensors
    halves, s_os, s_decays = shared
    start, column, step, rest = tile
    FIRST: gl.constexpr = HALF * N
    b_s0, b_s1 = apply_chunks(
        b_s0, b_s1, halves, halves[HALF][3], s_os[HALF], s_decays, i, z_t, FORM.REVERSE, SPLIT
    )
    row, at = start.to(gl.int32), start * step + column
    store_tile(o, o_rows, s_os[HALF], row, column + FIRST, at + FIRST, step, rest)
    return b_s0, b_s1


@gluon.jit
def apply_tile(
    b_s0, b_s1, tensors, shared, i, z_t, tile, scale, FORM: gl.constexpr, HALF: gl.constexpr
):
    """The maps of the tile in stage i, or its tokens one by one. Stores o.

    tile: its first token in memory, the column and step of `place`, and how many tokens are left.
    """
    rows, _, o_rows = tensors
    start, column, step, rest = tile
    FIRST: gl.constexpr = HALF * N
    at = start * step + column
    MILD: gl.constexpr = False
    SPLIT: gl.constexpr = True
    mark = 0 if FORM.DECAY == OF_CLAMP else mark_of(shared[2], i)
    if FORM.DECAY == OF_CLAMP:
        b_s0, b_s1 = apply_whole(b_s0, b_s1, tensors, shared, i, z_t, tile, FORM, HALF, MILD)
    elif mark >= 0:
        b_s0, b_s1 = apply_whole(b_s0, b_s1, tensors, shared, i, z_t, tile, FORM, HALF, MILD)
    elif mark.to(gl.float32, bitcast=True) < STRONG:
        b_s0, b_s1 = apply_whole(b_s0, b_s1, tensors, shared, i, z_t, tile, FORM, HALF, SPLIT)
    else:
        count = gl.minimum(rest, N)
        if FORM.REVERSE:
            b_s0, b_s1 = apply_tokens_back(
                b_s0, b_s1, rows, o_rows, at, step, count, scale, z_t, FIRST, FORM.DECAY
            )
        else:
            b_s0, b_s1 = apply_tokens(
                b_s0, b_s1, rows, o_rows, at, step, count, scale, z_t, FIRST, FORM.DECAY
            )
        barrier()
    return b_s0, b_s1


@gluon.jit
def apply_maps(tensors, shared, place, numbers, FORM: gl.constexpr, HALF: gl.constexpr):
    """The warps that apply maps to a half of the values: of one tile after the other.

    place: of a sequence and head, its first token, how many it has, the column in a row of `step`
    elements, and the number of its first tile and head. The warps of the first half load the
    tiles, where those of the second half have read the tile before.
    """
    described, rows, s0, o, o_rows, s1, states, z = tensors
    halves, s_os, s_decays, loaded, mapped, applied = shared
    start, n, column, step, first_number = place
    has_s0, i_s, scale = numbers
    FIRST: gl.constexpr = HALF * N
    b_s0 = load_state(s0, has_s0, i_s, 0, FIRST)
    b_s1 = load_state(s0, has_s0, i_s, N, FIRST)
    count = gl.cdiv(n, N)
    for turn in range(0, count):
        i, phase = turn % STAGES, turn // STAGES % 2
        j = count - 1 - turn if FORM.REVERSE else turn
        if states is not None:
            number = first_number + step // WIDE * j
            keep_half(states, b_s0, number * (WIDE * WIDE), 0, FIRST)
            keep_half(states, b_s1, number * (WIDE * WIDE), N, FIRST)
            z_t = z + (number * WIDE + FIRST) * N
        else:
            z_t = None
        mbarrier.wait(mapped.index(i), phase)
        tile = start + j * N, column, step, n - j * N
        b_s0, b_s1 = apply_tile(
            b_s0, b_s1, (rows, o, o_rows), (halves, s_os, s_decays), i, z_t, tile, scale, FORM, HALF
        )
        if HALF == 1:
            mbarrier.arrive(applied.index(i), count=1)
        else:
            mbarrier.wait(applied.index(i), phase)
            row = (start + (j - STAGES if FORM.REVERSE else j + STAGES) * N).to(gl.int32)
            more = turn + STAGES < count
            load_tile(described, halves[0], loaded[0], i, row, column, more)
            load_tile(described, halves[1], loaded[1], i, row, column + N, more)
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
    """r, w, k, v, a, b and o are descriptors of [tokens, H·128]; *_rows are the same tensors, for
    tiles that are not whole, or whose decays are too strong. s0, s1: [sequences, H, 128, 128].
    states: those before each tile, [tiles, H, values, keys]; z: what tokens read through a,
    [tiles, H, values, 64 tokens]; or both None.

    Back, v is do, o is dv, s0 and s1 are ds1 and ds0, states are dS after each tile, and z is dy.
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
    first_number = first_span(cu_seqlens, start, i_n, T, N) * H + i_h
    halves, loaded = (first_half, second_half), (first_loaded, second_loaded)
    described, rows = (r, w, k, v, a, b), (r_rows, w_rows, k_rows, v_rows, a_rows, b_rows)
    for i in gl.static_range(STAGES):
        j = gl.cdiv(n, N) - 1 - i if FORM.REVERSE else i
        row = (start + j * N).to(gl.int32)
        load_tile(described, first_half, first_loaded, i, row, column, i * N < n)
        load_tile(described, second_half, second_loaded, i, row, column + N, i * N < n)
    tensors = described, rows, s0, o, o_rows, s1, states, z
    s_decays, place = (s_decay0, s_decay1), (start, n, column, step, first_number)
    shared = halves, (s_o0, s_o1), s_decays, loaded, mapped, applied
    numbers = has_s0, (i_n * H + i_h) * WIDE * WIDE, scale
    ZERO: gl.constexpr = 0
    ONE: gl.constexpr = 1
    gl.warp_specialize(
        [
            (apply_maps, (tensors, shared, place, numbers, FORM, ZERO)),
            (apply_maps, (tensors, shared, place, numbers, FORM, ONE)),
            (make_maps, (halves, rows, s_decays, loaded, mapped, place, scale, FORM)),
        ],
        [4, 4],
        [STATE_REGISTERS, MAP_REGISTERS],
    )


def forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """o, s1, and for gradients the states before each 64 tokens and zᵀ: empty unless `keep`.

    states: in bfloat16, `[spans, H, V, K]`, see sequences/spans.py. zᵀ: what tokens read through
    a, in bfloat16, `[spans, H, V, 64]`.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep)
    inputs = [aligned(x) for x in (r, w, k, v, a, b)]
    return swept(inputs, s0, cu_seqlens, scale, decay, keep, False)


def state_gradients(r, w, k, do, a, b, ds1, cu_seqlens, scale, decay):
    """dv, ds0, dS after each 64 tokens, and dyᵀ: laid out as `forward`'s states and zᵀ."""
    return swept((r, w, k, do, a, b), ds1, cu_seqlens, scale, decay, True, True)


def swept(inputs, s0, cu_seqlens, scale, decay, keep, reverse):
    """Either sweep of inputs that are `aligned`, on torch's current device."""
    r = inputs[0]
    (_, T, H, K), S = r.shape, sequences_in(r, cu_seqlens)
    o, s1 = torch.empty_like(inputs[3]), r.new_empty((S, H, K, K), dtype=torch.float32)
    spans = spans_of(r, cu_seqlens)
    states = r.new_empty((spans, H, K, K) if keep else 0)
    z = r.new_empty((spans, H, K, N.value) if keep else 0)
    launch(
        S * H,
        (*map(tiles_of, inputs), *inputs, s1 if s0 is None else s0.contiguous(),
         None if cu_seqlens is None else cu_seqlens.contiguous(), tiles_of(o), o, s1,
         states if keep else None, z if keep else None),
        (int(s0 is not None), T, H, scale),
        WideForm(FORMS[decay], scale != 1.0, reverse),
    )  # fmt: skip
    return o, s1, states, z


def forward_shapes(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """What `forward` returns, without values."""
    (H, K), spans = r.shape[2:], spans_of(r, cu_seqlens)
    states = r.new_empty((spans, H, K, K) if keep else 0)
    z = r.new_empty((spans, H, K, N.value) if keep else 0)
    return *empty_results(r, v, cu_seqlens), states, z


def launch(programs, tensors, numbers, form):
    grid, options = (programs, 1, 1), {"maxnreg": REGISTERS}
    launch_tiles(wkv7_wide_kernel, grid, 4, tensors, numbers, (form,), **options)
