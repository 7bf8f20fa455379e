"""Four warps that apply the factors of chunks to the state of 64 values, and write their o.

    oᵀ = Sᵀ rᵀ + vᵀ scoresᵀ          Sᵀ ← Sᵀ decayed + vᵀ k

Left factors, Sᵀ and vᵀ, are in registers; the right ones are what wide_factors.py left in shared
memory. r, k and the state are in halves of 64 keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from ..sizes import CHECKPOINT as TOKENS_A_STATE
from .factors import Rounded, Split, as_left, plus_product, product, rows_of, transposed
from .tiles import C, barrier, product_of, rounded
from .wide_tiles import N, decays_of, is_mild, load_keys, load_values

CHECKPOINT = gl.constexpr(TOKENS_A_STATE)
HALF = gl.constexpr(C.value // 2)  # tokens of a chunk
TILES = gl.constexpr(product_of(64))
LEFT = gl.constexpr(gl.DotOperandLayout(0, product_of(64), 2))


@gluon.jit
def state_offsets(zero, g: gl.constexpr, h: gl.constexpr):
    """Of a state [keys, values], as half of Sᵀ is laid out."""
    value = C * h + gl.arange(0, C, gl.SliceLayout(1, TILES))[:, None]
    return (C * g + gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :] + zero) * N + value


@gluon.jit
def first_state(before, g: gl.constexpr, h: gl.constexpr):
    """Sᵀ before a segment, of 64 keys: s0, and what the pieces before it make of it."""
    s0, has_s0, segment_states, segment_decays, i_n, pieces, i_h, most, H = before
    offsets = state_offsets(0, g, h)
    key = C * g + gl.arange(0, C, gl.SliceLayout(0, TILES))
    b_s = gl.load(s0 + (i_n * H + i_h) * N * N + offsets, (offsets >= 0) & (has_s0 != 0), 0.0)
    b_s = b_s.to(gl.float32)
    if segment_states is not None:
        for i in range(0, pieces):
            part = (i_n * most + i) * H + i_h
            b_decay = gl.exp2(gl.load(segment_decays + part * N + key))
            b_s = b_s * b_decay[None, :] + gl.load(segment_states + part * N * N + offsets)
    return b_s


@gluon.jit
def decayed(b_s, s_decay, i, run, g: gl.constexpr):
    return b_s * decays_of(s_decay, i, run, g).load(gl.SliceLayout(0, TILES))[None, :]


@gluon.jit
def read_state(b_s0, b_s1, tiles, i, zeros, first: gl.constexpr, count: gl.constexpr):
    """Starts Sᵀ rᵀ of a run: oᵀ, and the left factors that it waits for."""
    s_r, s_low = tiles[1], tiles[4]
    r_0 = rows_of(Split(s_r.index(2 * i), s_low.index(2 * i)), first, count)
    r_1 = rows_of(Split(s_r.index(2 * i + 1), s_low.index(2 * i + 1)), first, count)
    s_0, s_1 = as_left(Rounded(rounded(b_s0))), as_left(Rounded(rounded(b_s1)))
    b_o = product(s_0, transposed(r_0), zeros)
    b_o = plus_product(b_o, s_1, transposed(r_1), SMALL_FIRST=False)
    return (b_o,) + s_0 + s_1


@gluon.jit
def add_run(b_s0, b_s1, b_o, v, tiles, i, first: gl.constexpr, count: gl.constexpr):
    """Starts what the values of a run add: to oᵀ first, then to the state."""
    s_w, s_k, s_scores = tiles[0], tiles[2], tiles[5]
    k_0 = rows_of(Split(s_k.index(2 * i), s_w.index(2 * i)), first, count)
    k_1 = rows_of(Split(s_k.index(2 * i + 1), s_w.index(2 * i + 1)), first, count)
    scores = s_scores.index(i).slice(first, count, 0).slice(first, count, 1)
    b_o = plus_product(b_o, v, Rounded(scores.permute((1, 0))))
    b_s0 = plus_product(b_s0, v, k_0, SMALL_FIRST=False)
    b_s1 = plus_product(b_s1, v, k_1, SMALL_FIRST=False)
    return b_s0, b_s1, b_o


@gluon.jit
def store_rows(o_rows, s_o, at, rest, H):
    """o of a chunk that is not whole, as far as there are tokens."""
    zero = rest // 2**30  # which the compiler cannot know: it would keep all addresses
    token = gl.arange(0, C, gl.SliceLayout(1, TILES))[:, None] + zero
    value = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    gl.store(o_rows + at + token * (H * N) + value, s_o.load(TILES), token < rest)


@gluon.jit
def apply_mild(b_s0, b_s1, tiles, i, h: gl.constexpr):
    """A chunk that is one run: what all tokens read is the state to which half of it decayed."""
    s_o, s_decay = tiles[3].index(2 * i + h), tiles[6]
    b_s0, b_s1 = decayed(b_s0, s_decay, i, 4, 0), decayed(b_s1, s_decay, i, 4, 1)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    # Not with the rest in flight: with vᵀ, too, there would not be registers enough.
    b_o = warpgroup_mma_wait(0, deps=read_state(b_s0, b_s1, tiles, i, zeros, 0, C))[0]
    v = Rounded(s_o.permute((1, 0)).load(LEFT))
    b_s0, b_s1, b_o = add_run(b_s0, b_s1, b_o, v, tiles, i, 0, C)
    b_o = warpgroup_mma_wait(4, deps=(b_o,))
    s_o.permute((1, 0)).store(rounded(b_o))
    b_s0, b_s1 = warpgroup_mma_wait(0, deps=(b_s0, b_s1) + v)[:2]
    return b_s0, b_s1


@gluon.jit
def keep(states, b_0, b_1, t, H, i_h, there, h: gl.constexpr):
    """Starts the copies of the state before token t, if that is there, one half after the other.

    b_0, b_1: in bfloat16, [values, keys].
    """
    checkpoints, s_kept, slot = states
    s_x, row = s_kept.index(h), ((slot + t // CHECKPOINT) * H + i_h) * N
    tma.store_wait(0)
    barrier()
    s_x.permute((1, 0)).store(b_0)
    fence_async_shared()
    barrier()
    if there:
        tma.async_copy_shared_to_global(checkpoints, [row, C * h], s_x)
    tma.store_wait(0)
    barrier()
    s_x.permute((1, 0)).store(b_1)
    fence_async_shared()
    barrier()
    if there:
        tma.async_copy_shared_to_global(checkpoints, [row + C, C * h], s_x)


@gluon.jit
def keep_mild(b_s0, b_s1, tiles, i, states, t, rest, H, i_h, h: gl.constexpr):
    """As `apply_mild`, with the state in the middle of the chunk kept."""
    s_w, s_k, s_scores = tiles[0], tiles[2], tiles[5].index(i)
    s_o, s_decay = tiles[3].index(2 * i + h), tiles[6]
    k_0 = Split(s_k.index(2 * i), s_w.index(2 * i))
    k_1 = Split(s_k.index(2 * i + 1), s_w.index(2 * i + 1))
    b_s0, b_s1 = decayed(b_s0, s_decay, i, 4, 0), decayed(b_s1, s_decay, i, 4, 1)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    b_o = warpgroup_mma_wait(0, deps=read_state(b_s0, b_s1, tiles, i, zeros, 0, C))[0]
    early = Rounded(s_o.slice(0, HALF, 0).permute((1, 0)).load(LEFT))
    late = Rounded(s_o.slice(HALF, HALF, 0).permute((1, 0)).load(LEFT))
    b_s0 = plus_product(b_s0, early, rows_of(k_0, 0, HALF), SMALL_FIRST=False)
    b_s1 = plus_product(b_s1, early, rows_of(k_1, 0, HALF), SMALL_FIRST=False)
    b_o = plus_product(b_o, early, Rounded(s_scores.slice(0, HALF, 1).permute((1, 0))))
    b_o = plus_product(b_o, late, Rounded(s_scores.slice(HALF, HALF, 1).permute((1, 0))))
    b_s0, b_s1, b_o = warpgroup_mma_wait(0, deps=(b_s0, b_s1, b_o) + early + late)[:3]
    s_o.permute((1, 0)).store(rounded(b_o))
    b_0 = rounded(decayed(b_s0, s_decay, i, 6, 0))
    b_1 = rounded(decayed(b_s1, s_decay, i, 6, 1))
    b_s0 = plus_product(b_s0, late, rows_of(k_0, HALF, HALF), SMALL_FIRST=False)
    b_s1 = plus_product(b_s1, late, rows_of(k_1, HALF, HALF), SMALL_FIRST=False)
    keep(states, b_0, b_1, t + HALF, H, i_h, HALF < rest, h)
    b_s0, b_s1 = warpgroup_mma_wait(0, deps=(b_s0, b_s1) + late)[:2]
    return b_s0, b_s1


@gluon.jit
def apply_strong(b_s0, b_s1, tiles, i, run: gl.constexpr, h: gl.constexpr):
    """One of four runs of 16 tokens, which read the state before it."""
    s_o, s_decay = tiles[3].index(2 * i + h), tiles[6]
    zeros = gl.full([C, 16], 0.0, gl.float32, product_of(16))
    read = read_state(b_s0, b_s1, tiles, i, zeros, 16 * run, 16)
    v = Rounded(s_o.slice(16 * run, 16, 0).permute((1, 0)).load(LEFT))
    b_s0, b_s1 = decayed(b_s0, s_decay, i, run, 0), decayed(b_s1, s_decay, i, run, 1)
    b_s0, b_s1, b_o = add_run(b_s0, b_s1, read[0], v, tiles, i, 16 * run, 16)
    b_s0, b_s1, b_o = warpgroup_mma_wait(0, deps=(b_s0, b_s1, b_o) + read[1:] + v)[:3]
    s_o.slice(16 * run, 16, 0).permute((1, 0)).store(rounded(b_o))
    return b_s0, b_s1


@gluon.jit
def apply_factors(arguments, h: gl.constexpr):
    """All chunks of a segment, for half h of the values. Loads that half of v, and of the keys."""
    tensors, tiles, keys_loaded, values_loaded, ready, applied, before, states, place = arguments
    KEEP: gl.constexpr = len(states) > 0
    inputs, v, o, o_rows, s1 = tensors
    is_last, n, first, H = place
    i_n, i_h = before[4], before[6]
    column, s_v = i_h * N, tiles[3]
    b_s0, b_s1 = first_state(before, 0, h), first_state(before, 1, h)
    for t in range(0, n, C):
        i, phase, rest = t // C % 2, t // C // 2 % 2, n - t
        tma.store_wait(0)  # o of the chunk before has left the tile of the next v
        load_values(v, s_v, values_loaded[h], 1 - i, first + t + C, column, h, t + C < n)
        mbarrier.wait(values_loaded[h].index(i), phase)
        s_o = s_v.index(2 * i + h)
        if rest < C:  # what follows are other tokens, or zeros
            token = gl.arange(0, C, gl.SliceLayout(1, TILES))[:, None] + rest // 2**30
            s_o.store(gl.where(token < rest, s_o.load(TILES), 0.0).to(gl.bfloat16))
            barrier()
        if KEEP:
            keep(states, rounded(b_s0), rounded(b_s1), t, H, i_h, True, h)
        mbarrier.wait(ready.index(i), phase)
        at = (first + t).to(gl.int64) * H * N + column + C * h
        if is_mild(tiles[6], i):
            if KEEP:
                b_s0, b_s1 = keep_mild(b_s0, b_s1, tiles, i, states, t, rest, H, i_h, h)
            else:
                b_s0, b_s1 = apply_mild(b_s0, b_s1, tiles, i, h)
        else:
            for run in gl.static_range(4):
                if KEEP and run == 2:
                    keep(states, rounded(b_s0), rounded(b_s1), t + HALF, H, i_h, HALF < rest, h)
                b_s0, b_s1 = apply_strong(b_s0, b_s1, tiles, i, run, h)
        if is_mild(tiles[6], i):  # the other half; with what is above, registers would not do
            b_s0, b_s1 = decayed(b_s0, tiles[6], i, 4, 0), decayed(b_s1, tiles[6], i, 4, 1)
        fence_async_shared()
        barrier()  # o is stored, and all warps' products have read the tiles of this stage
        mbarrier.arrive(applied.index(i), count=1)
        if rest >= C:
            tma.async_copy_shared_to_global(o, [first + t, column + C * h], s_o)
        else:
            store_rows(o_rows, s_o, at, rest, H)
        mbarrier.wait(applied.index(i), phase)
        load_keys(inputs, tiles, keys_loaded[h], i, first + t + 2 * C, column, h, t + 2 * C < n)
    tma.store_wait(0)
    zero = n // 2**30  # which the compiler cannot know: it would keep all addresses
    i_s = (i_n * H + i_h) * N * N
    at_0, at_1 = state_offsets(zero, 0, h), state_offsets(zero, 1, h)
    gl.store(s1 + i_s + at_0, b_s0, (at_0 >= 0) & is_last)
    gl.store(s1 + i_s + at_1, b_s1, (at_1 >= 0) & is_last)
