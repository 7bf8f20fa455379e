"""WKV-7's forward pass in one launch, in Gluon for Hopper: heads of 64 keys and values, bfloat16.

The library's two launches write the map of each chunk to memory and read it again: of the 16.8 S
that they move, S being the size of r, that is 9.8. Here a map stays in shared memory, and 7 S are
moved. A program owns a head of a sequence. Its warps have two roles:

    4 warps   make the maps of a tile of four chunks, one chunk each     maps.py
    4 warps   apply the maps of the tile before to the state             apply.py

Two tiles are in shared memory. A tile's r, w, k, v, a and b arrive at the barriers `loaded`; its
maps, which take the places of these, at `mapped`. Once they are applied, the tile after the next
is copied there.

Where heads are few, SMs have no program: long sequences are cut into segments then (cut.py), and
../segments.py is for the others. docs/designs_wkv7.md has the designs that were weighed.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from ....runtime.compile_triton import assembled
from ....runtime.launch_tiles import launch_tiles
from ....sequences.arguments import empty_results, sequences_in
from ....sequences.hopper_tiles import tiles
from ....sequences.spans import count_spans, first_span, sequence_bounds
from ...decays import FORMS, OF_CLAMP
from .apply import apply_to_either, apply_to_identity, apply_to_state
from .cut import add_segments, for_identity, place_of_segment, programs_for, segments_for
from .layouts import APART, BESIDE, CHUNKS, FLAT, STAGES, TILE, Form, N, barrier
from .loads import barriers, load_tile
from .maps import make_maps

REGISTERS = 128  # a thread: two programs fit an SM
MAP_REGISTERS = gl.constexpr(144)  # a thread that makes maps; those that apply them get 112,
MAP_REGISTERS_OF_CLAMP = gl.constexpr(136)  # or 120: of 112 they would spill
REGISTERS_CUT = 168  # if sequences are cut: a program has an SM, and up to twelve warps
MAP_REGISTERS_CUT = gl.constexpr(152)
IDENTITY_REGISTERS = gl.constexpr(176)


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "scale", "sequences", "segments", "identities"])
def wkv7_hopper_kernel(
    r, w, k, v, a, b, r_rows, w_rows, k_rows, v_rows, a_rows, b_rows, s0, cu_seqlens, o, o_rows, s1,
    states, o_i, o_i_rows, s1_i, states_i, has_s0, T, H, scale, sequences, segments, identities,
    FORM: gl.constexpr,
):  # fmt: skip
    """r, w, k, v, a, b and o are descriptors of [tokens, H·64]; *_rows are the same tensors, for
    tiles that are not whole, or whose decays are too strong. s0, s1: [sequences, H, 64, 64].
    states: those before each tile, [tiles, H, values, keys], or None.

    If sequences are cut (cut.py), each of the `segments` of one counts as a sequence of T tokens,
    `sequences` in all. Through `identities` segments of each sequence the identity is swept, too,
    by these programs or by others: its o, s1 and states are o_i to states_i.
    """
    i_n, i_h = (gl.program_id(0) // H).to(gl.int64), gl.program_id(0) % H
    i_s0 = (i_n * H + i_h) * N * N
    if FORM.CUT:
        i_n, i_out, of_identity, has_s0, i_s0 = place_of_segment(
            i_n, i_h, H, has_s0, sequences, segments, identities, FORM.CUT == APART, False
        )
    i_s = (i_n * H + i_h) * N * N
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n, column = (end - start).to(gl.int32), i_h * N
    s_r = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_o = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
    s_decay = gl.allocate_shared_memory(gl.float32, [STAGES, CHUNKS * N], FLAT)
    loaded = barriers(), barriers(), barriers(), barriers(), barriers(), barriers()
    fence_async_shared()
    barrier()  # the barriers are there
    kept_at = (first_span(cu_seqlens, start, i_n, T, N) * H + i_h) * N * N
    tiles, place = (s_r, s_w, s_k, s_v, s_a, s_b), (start, n, column, H * N, kept_at, None)
    described, rows = (r, w, k, v, a, b), (r_rows, w_rows, k_rows, v_rows, a_rows, b_rows)
    for i in gl.static_range(STAGES):
        load_tile(described, tiles, loaded, i, start.to(gl.int32) + i * N, column, i * N < n)
    mapped, applied = barriers(), None
    if FORM.CUT == BESIDE:
        applied = barriers()
    fence_async_shared()
    if FORM.CUT:
        shift = ((i_out - i_n) * T).to(gl.int32)
        kept_at = (first_span(cu_seqlens, start, i_out, T, N) * H + i_h) * N * N
        place_i = start, n, column, H * N, kept_at, shift
        numbers, s_o_i = (has_s0, i_s0, i_s, scale, of_identity), s_o
        if FORM.CUT == BESIDE:
            s_o_i = gl.allocate_shared_memory(gl.bfloat16, [N, N], TILE)
        shared = tiles, s_o, s_decay, loaded, mapped, applied
        shared_i = tiles, s_o_i, s_decay, loaded, mapped, applied
        to_state = described, rows, s0, o, o_rows, s1, states, shared, place, numbers
        to_identity = (
            described, rows, s0, o_i, o_i_rows, s1_i, states_i, shared_i, place_i, numbers
        )  # fmt: skip
        if FORM.CUT == BESIDE:
            gl.warp_specialize(
                [
                    (apply_to_state, (to_state, FORM)),
                    (apply_to_identity, (to_identity, of_identity, FORM)),
                    (make_maps, (tiles, s_decay, loaded, mapped, n, scale, FORM)),
                ],
                [4, 4],
                [IDENTITY_REGISTERS, MAP_REGISTERS_CUT],
            )
        else:
            gl.warp_specialize(
                [
                    (apply_to_either, (to_state, to_identity, of_identity, FORM)),
                    (make_maps, (tiles, s_decay, loaded, mapped, n, scale, FORM)),
                ],
                [4],
                [MAP_REGISTERS_CUT],
            )
    else:
        MAPS: gl.constexpr = MAP_REGISTERS_OF_CLAMP if FORM.DECAY == OF_CLAMP else MAP_REGISTERS
        shared, numbers = (tiles, s_o, s_decay, loaded, mapped, None), (has_s0, i_s0, i_s, scale, 0)
        to_state = described, rows, s0, o, o_rows, s1, states, shared, place, numbers
        gl.warp_specialize(
            [
                (apply_to_state, (to_state, FORM)),
                (make_maps, (tiles, s_decay, loaded, mapped, n, scale, FORM)),
            ],
            [4],
            [MAPS],
        )


def tiles_of(x):
    """Describes a contiguous x [.., H, 64] as rows of tokens, of which tiles of 64 are moved."""
    return tiles(x, x.shape[-2] * x.shape[-1])


def aligned(x):
    """A contiguous x at an address from which tiles can be moved."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def forward(
    r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep, between=None, enters=False
):  # fmt: skip
    """o, s1, the states before each 64 tokens and an empty tensor.

    states: in bfloat16, `[spans, H, V, K]`, see sequences/spans.py; empty unless `keep`. A
    backward pass starts from them.

    between, enters: if other GPUs have tokens of the sequences, see `add_segments`; and whether
    they have those before, so that s0 is None.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = (r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep)
            return forward(*arguments, between, enters)
    inputs = [aligned(x) for x in (r, w, k, v, a, b)]
    (_, T, H, K), V, S = r.shape, v.shape[3], sequences_in(r, cu_seqlens)
    G = segments_for(r, cu_seqlens)
    o, s1 = torch.empty_like(inputs[3]), r.new_empty((S * G, H, K, V), dtype=torch.float32)
    states = r.new_empty((spans_of(r, cu_seqlens), H, V, K) if keep else 0)
    saved, of_identity = states if keep else None, (None, None, None)
    count = G if enters else G - 1  # segments through which the identity is swept
    if count:
        of_identity = for_identity(G, count, o, s1, saved)
    programs, form = programs_for(r, S * G * H, S * count * H)
    launch(
        programs,
        (*map(tiles_of, inputs), *inputs, s1 if s0 is None else s0.contiguous(),
         None if cu_seqlens is None else cu_seqlens.contiguous(), tiles_of(o), o, s1,
         saved, tiles_of(of_identity[0]) if count else None, *of_identity),
        (int(s0 is not None), T // G, H, scale, S * G, G, count),
        Form(FORMS[decay], scale != 1.0, form),
    )  # fmt: skip
    if G > 1 or between is not None:
        s1 = add_segments(G, count, s1, o, saved, of_identity, False, between)
    return o, s1, states, r.new_empty(0)


def launch(programs, tensors, numbers, form):
    grid, options = (
        (programs, 1, 1),
        {"maxnreg": REGISTERS_CUT if form.CUT else REGISTERS},
    )
    launch_tiles(wkv7_hopper_kernel, grid, 4, tensors, numbers, (form,), **options)


def forward_shapes(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """What `forward` returns, without values."""
    H, K, V = *r.shape[2:], v.shape[3]
    states = r.new_empty((spans_of(r, cu_seqlens), H, V, K) if keep else 0)
    return *empty_results(r, v, cu_seqlens), states, r.new_empty(0)


def spans_of(r, cu_seqlens):
    """How many states are kept for a head."""
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    return count_spans(*r.shape[:2], sequences, N.value)
