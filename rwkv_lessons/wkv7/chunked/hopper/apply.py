"""Four warps that apply the maps of chunks, one after the other, to the state in their registers.

    y = Ã S + A_ak v    z = T y    o = R̃ S + A_rk v + A_rb z    S ← decay (S + K̃ᵀ v + B̃ᵀ z)

All of it transposed: the state is [values, keys], and what is read of it [values, tokens]. Then the
left factor of each product, S, v, y or z, is in registers; the right ones are what maps.py left in
shared memory. On the path from a chunk to the next are three products.

A tile whose decays are too strong for a map is computed token by token, in float32.

Where sequences are cut (cut.py), the maps are also applied to the identity, with v = 0: by four
more warps, or in another program.

| name               | is                                              |
|--------------------|-------------------------------------------------|
| b_s, b_y, b_z, b_o | Sᵀ, yᵀ, zᵀ, oᵀ in float32                       |
| s, v, y, z         | the same in bfloat16, as left factors           |
| s_a, s_r, s_k, s_b | Ã, R̃, K̃, B̃ of a tile                            |
| s_small            | A_ak, A_rb, A_rk, T of its four chunks          |
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...decays import OF_CLAMP
from .layouts import (
    CHUNKS,
    FLAT,
    IN_A_WARP,
    LOG2E,
    READ,
    SMALL,
    STAGES,
    STATE,
    C,
    N,
    as_left,
    barrier,
    rounded,
    widened,
)
from .loads import load_tile
from .maps import log_decay


@gluon.jit
def by_token(s_x, first: gl.constexpr):
    """Rows of a chunk in a tile, on their side: [keys, tokens], or [tokens before, tokens]."""
    return s_x.slice(first, C, 0).permute((1, 0))


@gluon.jit
def solved(y, s_t, zeros):
    """Starts z = T y, transposed."""
    b_z = warpgroup_mma(y[0], s_t, zeros, use_acc=False, is_async=True)
    return warpgroup_mma(y[1], s_t, b_z, is_async=True)


@gluon.jit
def in_pieces(b_y):
    """A float32 tile as two left factors whose sum it is."""
    high = rounded(b_y)
    left = gl.convert_layout(high, gl.DotOperandLayout(0, READ, 2))
    return left, as_left(b_y - widened(high), READ)


@gluon.jit
def apply_chunk(
    b_s, s_r, s_k, s_v, s_a, s_b, s_small, s_decay, first: gl.constexpr, IDENTITY: gl.constexpr
):
    """One chunk, whose first token in the tile is `first`: the state after it, and oᵀ."""
    if IDENTITY:
        b_s, b_o = apply_without_values(b_s, s_r, s_a, s_b, s_small, s_decay, first)
    else:
        b_s, b_o = apply_with_values(b_s, s_r, s_k, s_v, s_a, s_b, s_small, s_decay, first)
    return b_s, b_o


@gluon.jit
def apply_without_values(b_s, s_r, s_a, s_b, s_small, s_decay, first: gl.constexpr):
    """As `apply_with_values`, with v = 0."""
    zeros = gl.zeros([N, C], gl.float32, READ)
    s = as_left(b_s, READ)
    s_rb, s_t = by_token(s_small.index(1), first), by_token(s_small.index(3), first)
    b_y = warpgroup_mma(s, by_token(s_a, first), zeros, use_acc=False, is_async=True)
    b_o = warpgroup_mma(s, by_token(s_r, first), zeros, use_acc=False, is_async=True)
    b_y = warpgroup_mma_wait(1, deps=(b_y,))
    y = in_pieces(b_y)
    b_z = solved(y, s_t, zeros)
    b_z, b_o = warpgroup_mma_wait(0, deps=(b_z, b_o, s) + y)[:2]
    return plus_z(b_s, b_o, b_z, s_b, s_rb, s_decay, first)


@gluon.jit
def apply_with_values(b_s, s_r, s_k, s_v, s_a, s_b, s_small, s_decay, first: gl.constexpr):
    zeros = gl.zeros([N, C], gl.float32, READ)
    v = s_v.slice(first, C, 0).permute((1, 0)).load(gl.DotOperandLayout(0, READ, 2))
    v_wide = gl.convert_layout(v, gl.DotOperandLayout(0, STATE, 2))
    s = as_left(b_s, READ)
    s_ak, s_rb = by_token(s_small.index(0), first), by_token(s_small.index(1), first)
    s_rk, s_t = by_token(s_small.index(2), first), by_token(s_small.index(3), first)
    b_y = warpgroup_mma(v, s_ak, zeros, use_acc=False, is_async=True)
    b_y = warpgroup_mma(s, by_token(s_a, first), b_y, is_async=True)
    b_o = warpgroup_mma(v, s_rk, zeros, use_acc=False, is_async=True)
    b_o = warpgroup_mma(s, by_token(s_r, first), b_o, is_async=True)
    b_s = warpgroup_mma(v_wide, s_k.slice(first, C, 0), b_s, is_async=True)
    b_y = warpgroup_mma_wait(3, deps=(b_y,))
    y = in_pieces(b_y)
    b_z = solved(y, s_t, zeros)
    b_z, b_o, b_s = warpgroup_mma_wait(0, deps=(b_z, b_o, b_s, s, v, v_wide) + y)[:3]
    return plus_z(b_s, b_o, b_z, s_b, s_rb, s_decay, first)


@gluon.jit
def plus_z(b_s, b_o, b_z, s_b, s_rb, s_decay, first: gl.constexpr):
    """What z adds to the state and to o of a chunk; then the state's decay."""
    z = as_left(b_z, READ)
    z_wide = gl.convert_layout(z, gl.DotOperandLayout(0, STATE, 2))
    b_s = warpgroup_mma(z_wide, s_b.slice(first, C, 0), b_s, is_async=True)
    b_o = warpgroup_mma(z, s_rb, b_o, is_async=True)
    b_decay = s_decay.load(gl.SliceLayout(0, STATE))
    b_s, b_o = warpgroup_mma_wait(0, deps=(b_s, b_o, z, z_wide))[:2]
    return b_s * b_decay[None, :], b_o


@gluon.jit
def apply_chunks(b_s, tiles, s_o, s_decay, i, IDENTITY: gl.constexpr):
    """The four chunks of the tile in stage i: the state after them. o of the tile is in s_o."""
    s_r, s_w, s_k, s_v, s_a, s_b = tiles
    s_small = s_w.index(i)._reinterpret(gl.bfloat16, [4, N, C], SMALL)
    s_decays = s_decay._reinterpret(gl.float32, [STAGES * CHUNKS, N], FLAT)
    tma.store_wait(0)  # o of the tile before has left
    barrier()
    for j in gl.static_range(CHUNKS):
        b_s, b_o = apply_chunk(
            b_s, s_r.index(i), s_k.index(i), s_v.index(i), s_a.index(i), s_b.index(i),
            s_small, s_decays.index(CHUNKS * i + j), C * j, IDENTITY,
        )  # fmt: skip
        s_o.slice(C * j, C, 0).permute((1, 0)).store(rounded(b_o))
    return b_s


@gluon.jit
def apply_tokens(
    b_s, rows, o_rows, at, step, count, scale, DECAY: gl.constexpr, IDENTITY: gl.constexpr
):
    """The recurrence for `count` tokens, for any decay: the state after them. Stores their o.

    rows: r, w, k, v, a, b in global memory. at: of the first token there; step: to the next one.
    """
    r, w, k, v, a, b = rows
    key = gl.arange(0, N, gl.SliceLayout(0, STATE))
    value = gl.arange(0, N, gl.SliceLayout(1, STATE))
    for _ in range(count):
        b_w = log_decay(gl.load(w + at + key).to(gl.float32), DECAY)
        b_z = gl.sum(b_s * gl.load(a + at + key).to(gl.float32)[None, :], 1)
        b_s *= gl.exp2(b_w * LOG2E)[None, :]
        b_s += b_z[:, None] * gl.load(b + at + key).to(gl.float32)[None, :]
        if not IDENTITY:
            b_v = gl.load(v + at + value).to(gl.float32)
            b_s += b_v[:, None] * gl.load(k + at + key).to(gl.float32)[None, :]
        b_r = gl.load(r + at + key).to(gl.float32) * scale
        gl.store(o_rows + at + value, gl.sum(b_s * b_r[None, :], 1).to(gl.bfloat16))
        at += step
    return b_s


@gluon.jit
def store_tile(o, o_rows, s_o, row, column, at, step, left):
    """Starts the copy of o of a tile, if it is whole; else stores what there is of it."""
    fence_async_shared()
    barrier()  # all warps' parts of o are stored, and all have read the tiles of this stage
    if left >= N:
        tma.async_copy_shared_to_global(o, [row, column], s_o)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        token = gl.arange(0, N, gl.SliceLayout(1, LAYOUT))[:, None]
        value = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))[None, :]
        gl.store(o_rows + at + token * step + value, s_o.load(LAYOUT), token + 0 * value < left)


@gluon.jit
def state_offsets(zero):
    """Of a state [keys, values], as Sᵀ is laid out."""
    value = gl.arange(0, N, gl.SliceLayout(1, STATE))[:, None]
    return (gl.arange(0, N, gl.SliceLayout(0, STATE))[None, :] + zero) * N + value


@gluon.jit
def first_state(s0, has_s0, i_s):
    offsets = state_offsets(0)
    return gl.load(s0 + i_s + offsets, (offsets >= 0) & (has_s0 != 0), 0.0).to(gl.float32)


@gluon.jit
def identity_state():
    row = gl.arange(0, N, gl.SliceLayout(1, STATE))[:, None]
    col = gl.arange(0, N, gl.SliceLayout(0, STATE))[None, :]
    return gl.where(row == col, 1.0, 0.0)


@gluon.jit
def store_state(s1, b_s, i_s, n):
    """After the loop. The compiler cannot know that it adds 0: it would keep all addresses."""
    gl.store(s1 + i_s + state_offsets(n // 2**30), b_s)


@gluon.jit
def keep_state(states, b_s, at):
    """The state before a tile, as it is in registers: [values, keys], in bfloat16."""
    value = gl.arange(0, N, gl.SliceLayout(1, STATE))[:, None]
    key = gl.arange(0, N, gl.SliceLayout(0, STATE))[None, :]
    gl.store(states + at + value * N + key, rounded(b_s))


@gluon.jit
def apply_tile(
    b_s, rows, o, o_rows, states, tiles, s_o, s_decay, place, first, scale,
    FORM: gl.constexpr, IDENTITY: gl.constexpr,
):  # fmt: skip
    """The maps of a tile whose first token is `first`: the state after it.

    place: of a sequence and head, its first token, how many it has, the column in a row of `step`
    elements, the first of its states that are kept, and by how many rows its o is elsewhere.
    """
    start, n, column, step, kept_at, shift = place
    if states is not None:
        keep_state(states, b_s, kept_at + step.to(gl.int64) * first)
    i = first // N % STAGES
    row, left, at = (start + first).to(gl.int32), n - first, (start + first) * step + column
    if IDENTITY:
        row += shift
    if FORM.DECAY == OF_CLAMP:
        b_s = apply_chunks(b_s, tiles, s_o, s_decay, i, IDENTITY)
        store_tile(o, o_rows, s_o, row, column, at, step, left)
    elif gl.min(s_decay.index(i).load(IN_A_WARP), 0) >= 0.0:
        b_s = apply_chunks(b_s, tiles, s_o, s_decay, i, IDENTITY)
        store_tile(o, o_rows, s_o, row, column, at, step, left)
    else:
        count = gl.minimum(left, N)
        b_s = apply_tokens(b_s, rows, o_rows, at, step, count, scale, FORM.DECAY, IDENTITY)
        barrier()
    return b_s


@gluon.jit
def apply_maps(arguments, FORM: gl.constexpr, IDENTITY: gl.constexpr):
    """Applies one tile after the other, as soon as its maps are there, and has the next one loaded.

    IDENTITY: to the identity, with v = 0, instead of to a state.
    applied: of two groups of warps that apply the same maps, the barriers at which the identity's
        has read a tile; or None. beside: whether that group runs.
    """
    described, rows, s0, o, o_rows, s1, states, shared, place, numbers = arguments
    tiles, s_o, s_decay, loaded, mapped, applied = shared
    has_s0, i_s0, i_s, scale, beside = numbers
    start, n, column, step = place[:4]
    if IDENTITY:
        b_s = identity_state()
        o_rows += place[5].to(gl.int64) * step
    else:
        b_s = first_state(s0, has_s0, i_s0)
    for first in range(0, n, N):
        i, phase = first // N % STAGES, first // N // STAGES % 2
        mbarrier.wait(mapped.index(i), phase)
        b_s = apply_tile(
            b_s, rows, o, o_rows, states, tiles, s_o, s_decay, place, first, scale, FORM, IDENTITY
        )
        if IDENTITY and applied is not None:
            mbarrier.arrive(applied.index(i), count=1)
        else:
            if applied is not None:
                mbarrier.wait(applied.index(i), phase, pred=beside)
            row = (start + first).to(gl.int32) + STAGES * N
            load_tile(described, tiles, loaded, i, row, column, n - first > STAGES * N)
    tma.store_wait(0)
    store_state(s1, b_s, i_s, n)


@gluon.jit
def apply_to_state(arguments, FORM: gl.constexpr):
    apply_maps(arguments, FORM, False)


@gluon.jit
def apply_to_identity(arguments, runs, FORM: gl.constexpr):
    """Beside warps that apply the same maps to a state; or does nothing."""
    if runs:
        apply_maps(arguments, FORM, True)


@gluon.jit
def apply_to_either(of_state, of_identity, is_identity, FORM: gl.constexpr):
    if is_identity:
        apply_maps(of_identity, FORM, True)
    else:
        apply_maps(of_state, FORM, False)
