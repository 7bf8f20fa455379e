"""WKV-7's gradient of the state after each 64 tokens, in one launch, in Gluon for Hopper.

The first half of the backward pass: a sweep from the last tile of 64 tokens to the first. It reads
r, w, a, b and do, which is 5 S, and writes dS after each tile, 1 S; with those, all tiles are
independent. A program owns a head of a sequence, and its warps have the two roles that forward.py
has: four make the maps of one tile while four apply those of the tile after it.

The maps are those of maps.py. With dS after a chunk,

    dS̃ = decay dS    dz = B̃ dS̃ + A_rbᵀ do    dy = Tᵀ dz    dS before it = dS̃ + R̃ᵀ do + Ãᵀ dy

All of it transposed: dS is [values, keys], dz and dy are [values, tokens]. Then the left factor of
each product, dS̃, do, dz or dy, is in registers. On the path from a chunk to the next are three
products.

| name                | is                                                     |
|---------------------|--------------------------------------------------------|
| b_ds                | dSᵀ, or dS̃ᵀ, in float32                                |
| b_dz, b_dy          | dzᵀ, dyᵀ in float32                                    |
| ds, do, dz, dy      | the same in bfloat16, as left factors                  |
| s_r, s_a, s_b, s_do | R̃, Ã, B̃ and do of a tile                               |
| s_rb, s_t           | A_rb and T of its four chunks, in the place of w       |
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
from ...decays import FORMS, OF_CLAMP, RAW
from .apply import by_token, first_state, identity_state, in_pieces, solved, store_state
from .cut import add_segments, for_identity, place_of_segment, programs_for, segments_for
from .forward import (
    IDENTITY_REGISTERS,
    MAP_REGISTERS,
    MAP_REGISTERS_CUT,
    REGISTERS,
    REGISTERS_CUT,
    spans_of,
    tiles_of,
)
from .layouts import (
    APART,
    BESIDE,
    CHUNKS,
    FLAT,
    FLAT_BY_CHUNK,
    IN_A_WARP,
    LOG2E,
    PAIRS,
    READ,
    SMALL,
    STAGES,
    STATE,
    TILE,
    C,
    N,
    as_left,
    barrier,
    index_along,
    rounded,
    times_transposed,
)
from .loads import barriers, load_tile, wait_for_tile
from .maps import by_chunk, clear_tail, decayed, log_decay, store_decays, store_inverse


@gluon.jit
def pairs_of(s_w):
    """A_rb and T of the four chunks of a tile, which take the place of w."""
    s_small = s_w._reinterpret(gl.bfloat16, [4, N, C], SMALL)
    return s_small.index(0), s_small.index(1)


@gluon.jit
def next_maps(
    tiles, s_decay, loaded, i, phase, rest, zero, scale, DECAY: gl.constexpr, SCALED: gl.constexpr
):
    """The maps of the tile in stage i, as soon as it is loaded; `rest` tokens are in it or later.

    zero: 0, which the compiler cannot know: it would keep masks in registers.
    """
    wait_for_tile(loaded, i, phase)
    r, w, a, b, do = tiles
    s_r, s_w, s_a = by_chunk(r.index(i)), by_chunk(w.index(i)), by_chunk(a.index(i))
    s_b, s_do = by_chunk(b.index(i)), by_chunk(do.index(i))
    if rest < N:
        PARAMETER: gl.constexpr = DECAY == RAW or DECAY == OF_CLAMP
        clear_tail(s_r, rest, 0.0)
        clear_tail(s_w, rest, float("-inf") if PARAMETER else 0.0)  # no decay
        clear_tail(s_a, rest, 0.0)
        clear_tail(s_b, rest, 0.0)
        clear_tail(s_do, rest, 0.0)
    s_decays = s_decay.index(i)._reinterpret(gl.float32, [CHUNKS, N], FLAT_BY_CHUNK)
    log_w = store_decays(s_w, s_decays, DECAY)
    b_a, b_r, b_b = decayed(s_r, None, s_a, s_b, log_w, scale, zero, SCALED)
    s_rb, s_t = pairs_of(s_w)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    zeros = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    b_rb = gl.where(col <= row, times_transposed(b_r, b_b, zeros), 0.0)
    s_rb.store(gl.reshape(rounded(b_rb), [N, C]))
    store_inverse(s_t, b_a, b_b, row, col)
    fence_async_shared()
    barrier()  # all warps' maps are there


@gluon.jit
def make_maps(tiles, s_decay, loaded, mapped, n, scale, DECAY: gl.constexpr, SCALED: gl.constexpr):
    """The warps that make maps, from the last tile of n tokens to the first."""
    count = gl.cdiv(n, N)
    for turn in range(0, count):
        i, rest = turn % STAGES, n - (count - 1 - turn) * N
        next_maps(
            tiles, s_decay, loaded, i, turn // STAGES % 2, rest, turn // 2**25, scale, DECAY, SCALED
        )
        mbarrier.arrive(mapped.index(i), count=1)


@gluon.jit
def apply_chunk(
    b_ds, s_r, s_a, s_b, s_do, s_rb, s_t, s_decay, first: gl.constexpr, IDENTITY: gl.constexpr
):
    """One chunk, whose first token in the tile is `first`: from dS after it to dS before it."""
    b_ds *= s_decay.load(gl.SliceLayout(0, STATE))[None, :]
    if IDENTITY:
        b_ds = apply_without_do(b_ds, s_a, s_b, s_t, first)
    else:
        b_ds = apply_with_do(b_ds, s_r, s_a, s_b, s_do, s_rb, s_t, first)
    return b_ds


@gluon.jit
def apply_without_do(b_ds, s_a, s_b, s_t, first: gl.constexpr):
    """As `apply_with_do`, with do = 0."""
    zeros = gl.zeros([N, C], gl.float32, READ)
    ds = as_left(b_ds, READ)
    b_dz = warpgroup_mma(ds, by_token(s_b, first), zeros, use_acc=False, is_async=True)
    b_dz = warpgroup_mma_wait(0, deps=(b_dz, ds))[0]
    dz = in_pieces(b_dz)
    b_dy = warpgroup_mma_wait(0, deps=(solved(dz, s_t.slice(first, C, 0), zeros),) + dz)[0]
    return plus_dy(b_ds, b_dy, s_a, first)


@gluon.jit
def apply_with_do(b_ds, s_r, s_a, s_b, s_do, s_rb, s_t, first: gl.constexpr):
    zeros = gl.zeros([N, C], gl.float32, READ)
    do = s_do.slice(first, C, 0).permute((1, 0)).load(gl.DotOperandLayout(0, READ, 2))
    do_wide = gl.convert_layout(do, gl.DotOperandLayout(0, STATE, 2))
    ds = as_left(b_ds, READ)
    b_dz = warpgroup_mma(do, s_rb.slice(first, C, 0), zeros, use_acc=False, is_async=True)
    b_dz = warpgroup_mma(ds, by_token(s_b, first), b_dz, is_async=True)
    b_ds = warpgroup_mma(do_wide, s_r.slice(first, C, 0), b_ds, is_async=True)
    b_dz = warpgroup_mma_wait(1, deps=(b_dz,))
    dz = in_pieces(b_dz)
    b_dy = solved(dz, s_t.slice(first, C, 0), zeros)
    b_dy, b_ds = warpgroup_mma_wait(0, deps=(b_dy, b_ds, ds, do, do_wide) + dz)[:2]
    return plus_dy(b_ds, b_dy, s_a, first)


@gluon.jit
def plus_dy(b_ds, b_dy, s_a, first: gl.constexpr):
    dy_wide = as_left(b_dy, READ)
    dy_wide = gl.convert_layout(dy_wide, gl.DotOperandLayout(0, STATE, 2))
    b_ds = warpgroup_mma(dy_wide, s_a.slice(first, C, 0), b_ds, is_async=True)
    return warpgroup_mma_wait(0, deps=(b_ds, dy_wide))[0]


@gluon.jit
def apply_tokens(b_ds, rows, at, step, count, scale, DECAY: gl.constexpr, IDENTITY: gl.constexpr):
    """The recurrence back over `count` tokens, for any decay: dS before them.

    rows: r, w, a, b, do in global memory. at: of the last token there; step: to the next one.
    """
    r, w, a, b, do = rows
    key = gl.arange(0, N, gl.SliceLayout(0, STATE))
    value = gl.arange(0, N, gl.SliceLayout(1, STATE))
    for _ in range(count):
        b_w = log_decay(gl.load(w + at + key).to(gl.float32), DECAY)
        if not IDENTITY:
            b_do = gl.load(do + at + value).to(gl.float32) * scale
            b_ds += b_do[:, None] * gl.load(r + at + key).to(gl.float32)[None, :]
        b_dz = gl.sum(b_ds * gl.load(b + at + key).to(gl.float32)[None, :], 1)
        b_ds *= gl.exp2(b_w * LOG2E)[None, :]
        b_ds += b_dz[:, None] * gl.load(a + at + key).to(gl.float32)[None, :]
        at -= step
    return b_ds


@gluon.jit
def apply_chunks(b_ds, tiles, s_decay, i, IDENTITY: gl.constexpr):
    """From dS after the tile in stage i to dS before it, by its maps."""
    r, w, a, b, do = tiles
    s_rb, s_t = pairs_of(w.index(i))
    s_decays = s_decay._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    for j in gl.static_range(CHUNKS - 1, -1, -1):
        b_ds = apply_chunk(
            b_ds, r.index(i), a.index(i), b.index(i), do.index(i), s_rb, s_t,
            s_decays.index(CHUNKS * i + j), C * j, IDENTITY,
        )  # fmt: skip
    return b_ds


@gluon.jit
def apply_tile(
    b_ds, rows, tiles, s_decay, i, at, step, count, scale,
    DECAY: gl.constexpr, IDENTITY: gl.constexpr,
):  # fmt: skip
    """The same of `count` tokens, whatever their decays."""
    if DECAY == OF_CLAMP:
        b_ds = apply_chunks(b_ds, tiles, s_decay, i, IDENTITY)
    elif gl.min(s_decay.index(i).load(IN_A_WARP), 0) >= 0.0:
        b_ds = apply_chunks(b_ds, tiles, s_decay, i, IDENTITY)
    else:
        at += (count - 1) * step
        b_ds = apply_tokens(b_ds, rows, at, step, count, scale, DECAY, IDENTITY)
    return b_ds


@gluon.jit
def next_tile(
    b_ds, rows, d_states, tiles, s_ds, s_decay, mapped, place, turn, scale,
    DECAY: gl.constexpr, IDENTITY: gl.constexpr,
):  # fmt: skip
    """The maps of the tile of a turn, as soon as they are there: dS before it. Stores dS after it.

    place: of a sequence and head, its first token, how many it has, the column in a row of `step`
    elements, and the first row of its dS in d_states, which has H · 64 rows for each tile.
    """
    start, n, column, step, state_row = place
    i, first = turn % STAGES, (gl.cdiv(n, N) - 1 - turn) * N
    s_ds.index(i).store(rounded(b_ds))
    mbarrier.wait(mapped.index(i), turn // STAGES % 2)
    at, tokens = (start + first) * step + column, gl.minimum(n - first, N)
    b_ds = apply_tile(b_ds, rows, tiles, s_decay, i, at, step, tokens, scale, DECAY, IDENTITY)
    fence_async_shared()
    tma.store_wait(0)  # dS of the turn before has left
    barrier()  # all warps' parts of dS are stored, and all have read the tiles of this stage
    row = state_row + first // N * step
    tma.async_copy_shared_to_global(d_states, [row, 0], s_ds.index(i))
    return b_ds


@gluon.jit
def apply_maps(arguments, DECAY: gl.constexpr, IDENTITY: gl.constexpr):
    """Applies maps, from the last tile to the first; as the function of this name in apply.py."""
    described, rows, ds1, d_states, ds0, shared, place, numbers = arguments
    tiles, s_ds, s_decay, loaded, mapped, applied = shared
    has_ds1, i_s1, i_s, scale, beside = numbers
    start, n, column = place[:3]
    b_ds = identity_state() if IDENTITY else first_state(ds1, has_ds1, i_s1)
    count = gl.cdiv(n, N)
    for turn in range(0, count):
        b_ds = next_tile(
            b_ds, rows, d_states, tiles, s_ds, s_decay, mapped, place, turn, scale, DECAY, IDENTITY
        )
        i, first = turn % STAGES, (count - 1 - turn) * N
        if IDENTITY and applied is not None:
            mbarrier.arrive(applied.index(i), count=1)
        else:
            if applied is not None:
                mbarrier.wait(applied.index(i), turn // STAGES % 2, pred=beside)
            row = (start + first).to(gl.int32) - STAGES * N
            load_tile(described, tiles, loaded, i, row, column, first >= STAGES * N)
    tma.store_wait(0)
    store_state(ds0, b_ds, i_s, n)


@gluon.jit
def apply_to_state(arguments, DECAY: gl.constexpr):
    apply_maps(arguments, DECAY, False)


@gluon.jit
def apply_to_identity(arguments, runs, DECAY: gl.constexpr):
    """Beside warps that apply the same maps to dS; or does nothing."""
    if runs:
        apply_maps(arguments, DECAY, True)


@gluon.jit
def apply_to_either(of_state, of_identity, is_identity, DECAY: gl.constexpr):
    if is_identity:
        apply_maps(of_identity, DECAY, True)
    else:
        apply_maps(of_state, DECAY, False)


@assembled
@gluon.jit(do_not_specialize=["has_ds1", "T", "H", "scale", "sequences", "segments", "identities"])
def wkv7_reverse_kernel(
    r, w, a, b, do, r_rows, w_rows, a_rows, b_rows, do_rows, ds1, cu_seqlens, d_states, ds0,
    d_states_i, ds0_i, has_ds1, T, H, scale, sequences, segments, identities,
    DECAY: gl.constexpr, SCALED: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """r, w, a, b and do are descriptors of [tokens, H·64]; *_rows are the same tensors, for tiles
    whose decays are too strong. d_states describes [tiles · H · values, keys]. ds1, ds0:
    [sequences, H, 64, 64]. d_states_i, ds0_i: of the identity, if sequences are cut (cut.py); then
    ds0 has the segments of a sequence from its last one to its first.
    """
    i_n, i_h = (gl.program_id(0) // H).to(gl.int64), gl.program_id(0) % H
    i_s1 = (i_n * H + i_h) * N * N
    i_s = i_s1
    if CUT:
        i_n, i_out, of_identity, has_ds1, i_s1 = place_of_segment(
            i_n, i_h, H, has_ds1, sequences, segments, identities, CUT == APART, True
        )
        turned = i_n // segments * segments + segments - 1 - i_n % segments
        i_s = (turned * H + i_h) * N * N
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n, column = (end - start).to(gl.int32), i_h * N
    s_r = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
    s_decay = gl.allocate_shared_memory(gl.float32, [STAGES, CHUNKS * N], FLAT)
    loaded = barriers(), barriers(), barriers(), barriers(), barriers()
    mapped, applied = barriers(), None
    if CUT == BESIDE:
        applied = barriers()
    fence_async_shared()
    barrier()  # the barriers are there
    state_row = ((first_span(cu_seqlens, start, i_n, T, N) * H + i_h) * N).to(gl.int32)
    tiles, place = (s_r, s_w, s_a, s_b, s_do), (start, n, column, H * N, state_row)
    described, rows = (r, w, a, b, do), (r_rows, w_rows, a_rows, b_rows, do_rows)
    first = gl.cdiv(n, N) * N - N
    row = (start + first).to(gl.int32)
    for i in gl.static_range(STAGES):
        load_tile(described, tiles, loaded, i, row - i * N, column, i * N < n)
    shared = tiles, s_ds, s_decay, loaded, mapped, applied
    if CUT:
        row_i = ((first_span(cu_seqlens, start, i_out, T, N) * H + i_h) * N).to(gl.int32)
        place_i = start, n, column, H * N, row_i
        numbers, s_ds_i = (has_ds1, i_s1, i_s, scale, of_identity), s_ds
        if CUT == BESIDE:
            s_ds_i = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, N], TILE)
        shared_i = tiles, s_ds_i, s_decay, loaded, mapped, applied
        to_state = described, rows, ds1, d_states, ds0, shared, place, numbers
        to_identity = described, rows, ds1, d_states_i, ds0_i, shared_i, place_i, numbers
        if CUT == BESIDE:
            gl.warp_specialize(
                [
                    (apply_to_state, (to_state, DECAY)),
                    (apply_to_identity, (to_identity, of_identity, DECAY)),
                    (make_maps, (tiles, s_decay, loaded, mapped, n, scale, DECAY, SCALED)),
                ],
                [4, 4],
                [IDENTITY_REGISTERS, MAP_REGISTERS_CUT],
            )
        else:
            gl.warp_specialize(
                [
                    (apply_to_either, (to_state, to_identity, of_identity, DECAY)),
                    (make_maps, (tiles, s_decay, loaded, mapped, n, scale, DECAY, SCALED)),
                ],
                [4],
                [MAP_REGISTERS_CUT],
            )
    else:
        numbers = has_ds1, i_s1, i_s, scale, 0
        to_state = described, rows, ds1, d_states, ds0, shared, place, numbers
        gl.warp_specialize(
            [
                (apply_to_state, (to_state, DECAY)),
                (make_maps, (tiles, s_decay, loaded, mapped, n, scale, DECAY, SCALED)),
            ],
            [4],
            [MAP_REGISTERS],
        )


def state_gradients(
    r, w, a, b, do, ds1, cu_seqlens, scale, decay, between=None, enters=False
):  # fmt: skip
    """dS after each 64 tokens of a sequence, and the gradient of s0.

    Args:
        r, w, a, b: `[B, T, H, 64]` in bfloat16, as `wkv7` takes them; do: the gradient of o. All
            `aligned`, on torch's current device.
        ds1: that of s1, `[S, H, 64, 64]` in float32; None counts as zeros.
        between, enters: if other GPUs have tokens of the sequences, see `add_segments`; and whether
            they have those after, which add to ds1.

    Returns:
        d_states in bfloat16, `[spans, H, V, K]`, in the order of sequences/spans.py, as forward.py
        has the states before each 64 tokens; ds0 in float32, `[S, H, K, V]`.
    """
    inputs = r, w, a, b, do
    (_, T, H, K), V, S = r.shape, do.shape[3], sequences_in(r, cu_seqlens)
    d_states = r.new_empty((spans_of(r, cu_seqlens), H, V, K))
    G = segments_for(r, cu_seqlens)
    ds0 = r.new_empty((S * G, H, K, V), dtype=torch.float32)
    of_identity = None, None, None
    count = G if enters else G - 1  # segments through which the identity is swept
    if count:
        of_identity = for_identity(G, count, None, ds0, d_states)
    programs, form = programs_for(r, S * G * H, S * count * H)
    launch(
        programs,
        (*map(tiles_of, inputs), *inputs, ds0 if ds1 is None else ds1.contiguous(),
         None if cu_seqlens is None else cu_seqlens.contiguous(),
         tiles_of(d_states.view(-1, 1, K)), ds0,
         tiles_of(of_identity[2].view(-1, 1, K)) if count else None, of_identity[1]),
        (int(ds1 is not None), T // G, H, scale, S * G, G, count),
        (FORMS[decay], scale != 1.0, form),
    )  # fmt: skip
    if G > 1 or between is not None:
        ds0 = add_segments(G, count, ds0, None, d_states, of_identity, True, between)
    return d_states, ds0


def launch(programs, tensors, numbers, constants):
    _, _, cut = constants
    grid, options = (programs, 1, 1), {"maxnreg": REGISTERS_CUT if cut else REGISTERS}
    launch_tiles(wkv7_reverse_kernel, grid, 4, tensors, numbers, constants, **options)
