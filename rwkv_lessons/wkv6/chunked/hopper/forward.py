"""The kernel of ../forward.py once more, in Gluon, for bfloat16 and float16 on Hopper.

Triton waits for each of the eleven products of a chunk before it starts the next. Here they start
as soon as their operands are there, and a chunk waits three times:

    sums of decays         →  r and k decayed from and to where half of the chunk's decays are
                              past, in two bfloat16 pieces each
    r kᵀ, r S, S + kᵀ v    →  the scores, in one; the bonus on their diagonal
    scores v               →  o

Where states are kept, the bonus is computed while the products for the sums run, and float16's
state before the chunk is stored then. Both stand in a branch that is always taken, because ptxas
would move them behind the wait. In float16, kᵀ v of a chunk's second half starts with that of the
first, and is added to S later.

A left factor stays in registers, if it can. What else a product reads goes through shared memory,
into tiles whose tokens are in registers by then. The tensor memory accelerator brings the next
chunk meanwhile, and stores o and the states; Triton adds barriers where threads share a tile.

A program takes a block of 64 keys and 64 values of a head. o of a head with several blocks of keys
is a sum over those, of parts in float32.

The formulas, and how the code calls what they name; s_ is in shared memory, b_ in registers, and a
product's factor, of one piece or two (factors.py), has neither:

    half               b_total           half of Σ log decays of the chunk, [key]
    after              b_after           Σ log decays after a token, less half, [token, key]
    r                  b_r, r_left       r 2^(-after-w)
    k                  b_k, k_split      k 2^after; for S, k_of_state
    v                  v_tile            as it comes
    S                  b_s, state        S 2^half
    scores             b_a, scores       r kᵀ of earlier tokens, the bonus on the diagonal
    o = r S + scores v b_o
    S ← 2^half (S + kᵀ v)  b_s           half by half of the chunk, if checkpoints are kept;
                                         of float16 the second half's kᵀ v is b_more

All factors are at most 2^100 then if the chunk's decays are at least 2^-200. Of float16 r and k are
decayed from and to the chunk's end: `after` is the sum, and `half` is all of it.

v of float16 is multiplied as it is, and so are, in float16, the scores, rounded, and k in
S ← S + kᵀ v, in two pieces. The latter is 2^8 times k, so that small numbers keep their digits, and
S is 2^8 times the state; if checkpoints are kept, k of the first half decays to the middle, not to
the end. r decayed to the end reaches 2^100, too much for float16: r kᵀ and r S are products of two
pieces of bfloat16 each. A chunk in which a score could exceed 65,504 is taken as one of strong
decays. Log decays are at least -1e4, and their weights 0 and 1. States are kept in float16, the
16 keys of a warp in a unit of their own, a power of two, which keeps any size, and 11 bits of
elements that are at least 2^-28 of the largest.

A chunk whose decays are too strong for this, and those after it, up to one that is not, are
computed by strong.py, from the same tiles.
"""

from typing import NamedTuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from ....runtime.compile_triton import assembled
from ....sequences.gluon_tiles import raw_decay
from ....sequences.spans import first_span, last_segment, program_place, sequence_bounds
from ..tiles import FITS_TO_END, LOG2E, MIN_LOG_DECAY
from .factors import (
    Rounded,
    Split,
    as_left,
    plus_product,
    product,
    products,
    rows_of,
    split,
    store,
    transposed,
)
from .strong import strong_chunks
from .tiles import (
    TILE,
    C,
    as_left_operand,
    at_least,
    barrier,
    below_and_on_diagonal,
    copy_chunk,
    difference,
    expect_chunk,
    in_float32,
    now,
    power_of_two,
    product_of,
    rounded,
    save_half,
    to_float16,
    two_barriers,
    wait_for_chunk,
    widened,
)

TILES = gl.constexpr(product_of(64))
SUMS = gl.constexpr(product_of(8))
ROWS = gl.constexpr(gl.SliceLayout(1, product_of(64)))
BY_KEY = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
FIRST_HALF = gl.constexpr(C.value // 2)  # tokens
LARGEST = gl.constexpr(65_504.0)  # float16
KEYS_EXPONENT = gl.constexpr(8)
KEYS_LOG2, TO_KEYS, FROM_KEYS = gl.constexpr(8.0), gl.constexpr(2.0**8), gl.constexpr(2.0**-8)


class Once(NamedTuple):
    """Tiles of which there is one, not one for each of two chunks."""

    log: object  # decays, and then float16's low pieces of the state
    low: object  # low pieces of decays, and then of k
    state: object
    more: object  # the state in the middle of a chunk, or float16's low pieces of k in it
    mask: object
    after: object  # weights of sums of decays after a token; after the last of all of them


@gluon.jit
def tiles_of(ones, i, dtype: gl.constexpr):
    """`Once` of tiles of one, of which decays are in this dtype.

    i: 0, which the compiler cannot know: it would keep all tiles' addresses in registers.
    """
    one_log, one_low, one_state, one_more, one_weights, one_mask = ones
    log = one_log.index(i)._reinterpret(dtype, [C, C], TILE)
    low, state, more, mask = (
        one_low.index(i),
        one_state.index(i),
        one_more.index(i),
        one_mask.index(i),
    )
    return Once(log, low, state, more, mask, one_weights.index(i)._reinterpret(dtype, [C, C], TILE))


@gluon.jit
def store_weights(s, row, col, HALF: gl.constexpr):
    """Weights of the sums of decays after a token, and the mask of scores.

    Of bfloat16 the sums are less half of all decays, the last one too; of float16 the last token
    has the sum of all instead of 0.

    Returns:
        what makes exponents of the sums.
    """
    mask = gl.where(row > col, -256, gl.where(row == col, 255, 0))
    s.mask.store(mask.to(gl.int16))
    if HALF:
        s.after.store(((col > row) | (row == C - 1)).to(s.after.dtype))
        return gl.where(row < C - 1, LOG2E, 0.0)
    else:
        s.after.store(gl.where(col > row, 0.5, -0.5).to(s.after.dtype))
        return LOG2E


@gluon.jit
def decays(b_w, s, RAW: gl.constexpr, KEEP: gl.constexpr):
    """Stores w in as many pieces as it takes.

    Returns:
        w in float32, and its tiles as a factor.
    """
    if RAW:
        b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
        store(Split(s.log, s.low), split(b_w))
        return b_w, Split(s.log, s.low)
    elif s.log.dtype == gl.float16 and KEEP:
        b_w = at_least(b_w.to(gl.float16), MIN_LOG_DECAY)
        s.log.store(b_w)
        return b_w.to(gl.float32), Rounded(s.log)
    elif s.log.dtype == gl.float16:
        b_w = b_w.to(gl.float32)
        b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
        s.log.store(b_w.to(gl.float16))
        return b_w, Rounded(s.log)
    else:
        b_w = at_least(b_w.to(gl.bfloat16), MIN_LOG_DECAY)
        s.log.store(b_w)
        return widened(b_w), Rounded(s.log)


@gluon.jit
def sums_of_decays(w, s_after, zeros, no_sums, KEEP: gl.constexpr):
    """Starts total, after and, if states are kept, the total of the first half."""
    w_by_key = transposed(w)
    for_total = s_after.slice(C - 8, 8, 0).permute((1, 0))
    for_second = s_after.slice(C // 2 - 8, 8, 0).permute((1, 0))
    b_total = warpgroup_mma(w_by_key.high, for_total, no_sums, use_acc=False, is_async=True)
    b_after = warpgroup_mma(s_after, w.high, zeros, use_acc=False, is_async=True)
    b_second = b_total
    if KEEP:
        b_second = warpgroup_mma(w_by_key.high, for_second, no_sums, use_acc=False, is_async=True)
    if len(w) == 2:
        b_total = warpgroup_mma(w_by_key.low, for_total, b_total, is_async=True)
        b_after = warpgroup_mma(s_after, w.low, b_after, is_async=True)
        if KEEP:
            b_second = warpgroup_mma(w_by_key.low, for_second, b_second, is_async=True)
    if KEEP:
        return b_total, b_after, b_second
    else:
        return b_total, b_after


@gluon.jit
def by_key(b_sums, is_sum):
    """Of eight columns of sums the one that is meant, as log2, in the layout of a state's rows."""
    return gl.convert_layout(gl.sum(gl.where(is_sum, b_sums, 0.0), 1) * LOG2E, ROWS)


@gluon.jit
def total_of(b_sums, is_sum, HALF: gl.constexpr):
    """log2 of a chunk's decays, by key; of bfloat16 half of it."""
    return by_key(b_sums, is_sum) if HALF else -by_key(b_sums, is_sum)


@gluon.jit
def power_of_middle(b_second, s_up, ROUND: gl.constexpr):
    """About the decays of the second half, as a power of two: it keeps pieces of k as they are.

    s_up gets its inverse, by which k of the first half is multiplied.
    """
    if ROUND:
        exponent = b_second.to(gl.int32)
        s_up.store(power_of_two(-exponent))
        return exponent.to(gl.float32)
    else:
        return b_second


@gluon.jit
def store_keys(b_k, s, k_tiles, s_up, HALF: gl.constexpr, KEEP: gl.constexpr):
    """k as factors of scores and of S: the same two pieces of bfloat16, or for S of float16.

    The latter decay to the middle of the chunk, if in its first half, where states are kept.
    """
    s_k, s_more = k_tiles
    k_split = Split(s_k._reinterpret(gl.bfloat16, [C, C], TILE), s.low)
    pieces = split(b_k)
    store(k_split, pieces)
    if HALF:
        b_high = widened(pieces.high)
        b_low = difference(b_k, b_high)
        if KEEP:
            is_first = gl.arange(0, C, ROWS)[:, None] // (C // 2) == 0  # one number for a thread
            b_up = gl.where(is_first, s_up.load(gl.SliceLayout(0, TILES))[None, :], 1.0)
            b_high, b_low = b_high * b_up, b_low * b_up
        k_of_state = Split(s_more, s.more._reinterpret(gl.float16, [C, C], TILE))
        store(k_of_state, Split(to_float16(b_high), to_float16(b_low)))
        return k_split, k_of_state
    else:
        return k_split, k_split


@gluon.jit
def store_state(b_s, b_total, b_power, s, HALF: gl.constexpr, KEEP: gl.constexpr):
    """S decayed to the chunk's end, or to the middle, and as a factor, to the end.

    The latter is of one piece, or, of float16, of two of bfloat16.
    """
    if HALF:
        state = Split(s.state, s.log._reinterpret(gl.bfloat16, [C, C], TILE))
        if KEEP:
            store(state, split(b_s * gl.exp2(b_total)[:, None]))
            b_s = now(b_s * gl.exp2(b_total - b_power)[:, None])
        else:
            b_s = now(b_s * gl.exp2(b_total)[:, None])
            store(state, split(b_s))
        return b_s, state
    else:
        b_s *= gl.exp2(b_total)[:, None]
        s.state.store(rounded(b_s))
        return b_s, Rounded(s.state)


@gluon.jit
def masked(b_a, b_bonus, s_mask, DTYPE: gl.constexpr):
    """Scores before a token and its bonus, as a left factor."""
    bonus, mask = b_bonus.to(DTYPE), s_mask.load(TILES)
    return Rounded(as_left_operand(below_and_on_diagonal(b_a, bonus, mask)))


@gluon.jit
def scores_fit(b_r, b_k, b_bonus):
    """Whether r and k of a token are so short that no score can exceed float16."""
    squares = gl.sum(b_r * b_r + b_k * b_k, 1)
    return (squares <= LARGEST) & (b_bonus <= LARGEST) & (b_bonus >= -LARGEST)


@gluon.jit
def bonus_and_state(
    b_r, b_k, b_u, scale, b_s, saved, i_state, always, K: gl.constexpr, V: gl.constexpr,
    HALF: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    """Each token's bonus, and 1 where its scores do not fit, if states of float16 are kept.

    Then the state is stored, too.
    """
    if KEEP:
        b_bonus = gl.full([C], 0.0, gl.float32, ROWS)
        long = gl.full([C], 0, gl.int32, ROWS)
        if always:
            b_bonus = gl.sum(b_r * b_k * b_u, 1) * (1.0 if HALF else scale)
            if HALF:
                long = gl.where(scores_fit(b_r, b_k, b_bonus), 0, 1)
                save_half(b_s, saved, i_state, True, KEYS_EXPONENT, K, V, TURNED=False)
        return b_bonus, long
    else:
        return gl.sum(b_r * b_k * b_u, 1) * (1.0 if HALF else scale), 0


@gluon.jit
def too_strong(b_total, b_r, b_k, b_bonus, long, MEASURE: gl.constexpr):
    """Whether a chunk's decays are, or a score might exceed float16: long is 1, or, to MEASURE."""
    fits = b_total >= -FITS_TO_END  # NaN does not
    if MEASURE:
        fits &= scores_fit(b_r, b_k, b_bonus)
    return gl.max(gl.where(fits, long, 1), 0) != 0


@gluon.jit
def finished(b_o, b_bonus, s_v, whole, scale, SCALED: gl.constexpr):
    """o of float16, scaled, with what rounding took from the tokens' own scores if not `whole`.

    A single token has no other score: there it shows.
    """
    if not whole:
        b_rest = b_bonus - b_bonus.to(gl.float16).to(gl.float32)
        b_o += b_rest[:, None] * s_v.load(TILES).to(gl.float32)
    if SCALED:
        b_o *= scale
    return b_o


@gluon.jit
def update_state(b_s, k, v, first: gl.constexpr, count: gl.constexpr):
    """Starts S + kᵀ v of some tokens."""
    k, v = transposed(rows_of(k, first, count)), rows_of(v, first, count)
    return plus_product(b_s, k, v, SMALL_FIRST=False)


@gluon.jit
def start_updates(b_s, k, v, zeros, HALF: gl.constexpr, KEEP: gl.constexpr):
    """Starts S + kᵀ v of a chunk, or of its first half and, of float16, kᵀ v of the second."""
    if not KEEP:
        b_s = update_state(b_s, k, v, 0, C)
        return b_s, b_s
    b_s = update_state(b_s, k, v, 0, FIRST_HALF)
    if HALF:
        later = rows_of(v, FIRST_HALF, FIRST_HALF)
        return b_s, product(transposed(rows_of(k, FIRST_HALF, FIRST_HALF)), later, zeros)
    else:
        return b_s, b_s


@gluon.jit
def second_half(
    b_s, b_more, k, v, b_second, b_power, s, saved, i_state, H, t, n,
    K: gl.constexpr, V: gl.constexpr, HALF: gl.constexpr, LATER: gl.constexpr,
):  # fmt: skip
    """The state in the middle of a chunk, to its checkpoint or into a tile; S at the end of it.

    Waits for what `start_updates` started, with LATER products since. Of bfloat16 S is only begun.
    """
    if HALF:
        b_s, b_more = warpgroup_mma_wait(LATER, deps=(b_s, b_more))
        i_state, there = i_state + H, t + C // 2 < n
        b_middle = b_s * gl.exp2(b_power - b_second)[:, None]
        save_half(b_middle, saved, i_state, there, KEYS_EXPONENT, K, V, TURNED=False)
        b_s = now(b_s * gl.exp2(b_power)[:, None])
        return now(b_s + b_more)
    else:
        b_s = warpgroup_mma_wait(LATER, deps=(b_s,))
        s.more.store(rounded(b_s * gl.exp2(-b_second)[:, None]))
        return update_state(b_s, k, v, FIRST_HALF, FIRST_HALF)


@gluon.jit
def first_state(
    s0, has_s0, segment_states, segment_decays, i_s, o_s, i_n, pieces, i_h, i_k, H, most, row,
    K: gl.constexpr, V: gl.constexpr,
):  # fmt: skip
    """S before a segment: s0, and what the pieces of the sequence before it make of it."""
    b_s = gl.load(s0 + i_s + o_s, (row >= 0) & (has_s0 != 0), 0.0).to(gl.float32)
    if segment_states is not None:
        for g in range(0, pieces):
            part = (i_n * most + g) * H + i_h
            o_k = i_k * C + gl.arange(0, C, ROWS)
            b_decay = gl.exp2(gl.load(segment_decays + part * K + o_k))
            b_s = b_s * b_decay[:, None] + gl.load(segment_states + part * K * V + o_s)
    return b_s


@gluon.jit
def store_chunk(o, o_rows, s_o, b_o, whole, left, at, row, col, part, place, H, V: gl.constexpr):
    """Stores o of a chunk, of which `left` tokens are there: starts its copy, if it is whole.

    at: the address of its first token in o_rows; part: between blocks of keys; place: in o.
    """
    if o is not None:
        s_o.store(rounded(b_o) if s_o.dtype == gl.bfloat16 else b_o.to(gl.float16))
    fence_async_shared()
    barrier()  # o, and the state in the middle, are stored
    if o is None:
        gl.store(o_rows + (at + part) + row * (H * V) + col, b_o, row < left)
    elif whole:
        tma.async_copy_shared_to_global(o, place, s_o)
    else:
        gl.store(o_rows + at + row * (H * V) + col, b_o.to(s_o.dtype), row < left)


@assembled
@gluon.jit(
    do_not_specialize=[
        "has_s0", "T", "H", "skip", "segments", "span", "pieces", "scale", "tokens"
    ]
)  # fmt: skip
def wkv6_hopper_kernel(
    r, k, v, w, u, s0, cu_seqlens, segment_states, segment_decays, o, o_rows, s1, checkpoints,
    has_s0, T, H, skip, segments, span, pieces, scale, tokens,
    K: gl.constexpr, V: gl.constexpr,
    CHECKPOINT: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, o are descriptors of [tokens, H·K or H·V], checkpoints of [states·K, V].

    checkpoints of float16, HALF, are a tensor, and such a state has K / 64 rows more: the exponents
    of its units, of each block of values those of all keys.

    o_rows is o again, for a last chunk that is not whole. Where a head has several blocks of 64
    keys, o is None, and o_rows gets the part of each, in float32, `[K / 64, tokens, H·V]`.
    tokens: of all sequences together. The rest is as in ../forward.py.
    """
    NV: gl.constexpr = V // 64
    gdc_launch_dependents()
    i_n, i_g, i_h, i_block = program_place(gl.program_id(0), segments, H, K // 64 * V, 64)
    i_k, i_v = i_block // NV, i_block % NV
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = skip + i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first = (start + skipped).to(gl.int32)
    slot = (first_span(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT).to(gl.int32)

    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    SUMMED: gl.constexpr = gl.bfloat16 if RAW else DTYPE  # decays
    KEEP: gl.constexpr = checkpoints is not None
    s_r = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    one_log = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_state = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_more = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    one_weights = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
    one_mask = gl.allocate_shared_memory(gl.int16, [1, C, C], TILE)
    s_up = gl.allocate_shared_memory(gl.float32, [C], BY_KEY) if HALF and KEEP else None
    inputs, staged = (w, r, k, v), (s_w, s_r, s_k, s_v)
    ready = two_barriers(), two_barriers(), two_barriers(), two_barriers()
    fence_async_shared()
    barrier()  # the barriers are there
    expect_chunk(ready, 0, 0 < n)
    expect_chunk(ready, 1, C < n)
    copy_chunk(inputs, first, key_column, value_column, ready, staged, 0, 0 < n)

    row = gl.arange(0, C, ROWS)[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    b_u = gl.load(u + key_column + col).to(gl.float32)
    o_s = (i_k * C + row) * V + i_v * C + col  # of a state
    i_s = (i_n * H + i_h) * K * V
    b_s = first_state(
        s0, has_s0, segment_states, segment_decays, i_s, o_s, i_n, i_g * pieces, i_h, i_k, H,
        (segments - 1) * pieces, row, K, V,
    )  # fmt: skip
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    zeros = gl.full([C, C], 0.0, gl.float32, TILES)
    ones = one_log, one_low, one_state, one_more, one_weights, one_mask

    barrier()
    t = 0
    while t < n:
        zero = t // 2**30  # which the compiler cannot know: it would keep all of this in registers
        row = gl.arange(0, C, ROWS)[:, None] + zero
        to_log2 = store_weights(tiles_of(ones, zero, SUMMED), row, col, HALF)
        is_sum = gl.arange(0, 8, gl.SliceLayout(0, SUMS))[None, :] + zero == 7
        if HALF:
            b_s *= TO_KEYS
        stop = n
        while t < stop:
            s = tiles_of(ones, t // 2**30, SUMMED)
            i = t // C % 2
            phase = t // C // 2 % 2
            wait_for_chunk(ready, i, phase)
            whole = t + C <= n
            b_w = s_w.index(i).load(TILES)
            b_r = s_r.index(i).load(TILES)
            b_k = s_k.index(i).load(TILES)
            if RAW:
                b_w = raw_decay(b_w)
            if not whole:  # what follows are other tokens, or zeros
                b_w = gl.where(row < n - t, b_w, 0.0)
                b_v = s_v.index(i).load(TILES)
                s_v.index(i).store(gl.where(row < n - t, b_v, 0.0).to(DTYPE))
            b_w, w_pieces = decays(b_w, s, RAW, KEEP)
            fence_async_shared()
            tma.store_wait(0)
            copy_chunk(
                inputs, first + t + C, key_column, value_column, ready, staged, 1 - i, t + C < n
            )
            sums = sums_of_decays(w_pieces, s.after, zeros, no_sums, KEEP)
            i_state = (slot + t // CHECKPOINT) * H + i_h
            at_checkpoint, saved = i_state * K + i_k * C, (checkpoints, i_k, i_v, row, col)
            b_r, b_k = in_float32(b_r), in_float32(b_k)
            if not whole:
                b_k = gl.where(row < n - t, b_k, 0.0)
            always = i_h + t // CHECKPOINT >= 0
            b_bonus, long = bonus_and_state(
                b_r, b_k, b_u, scale, b_s, saved, i_state, always, K, V, HALF, KEEP
            )
            sums = warpgroup_mma_wait(0, deps=sums)
            b_total, b_after = total_of(sums[0], is_sum, HALF), sums[1]
            b_second = by_key(sums[2], is_sum) if KEEP else b_total
            b_power = power_of_middle(b_second, s_up, HALF and KEEP)
            if too_strong(b_total, b_r, b_k, b_bonus, long, HALF and not KEEP):
                stop = t
            else:
                b_after = b_after * to_log2 + KEYS_LOG2 if HALF else b_after * to_log2
                b_k *= gl.exp2(b_after)
                b_r *= gl.exp2(-b_after - b_w * LOG2E)
                if SCALED and not HALF:
                    b_r *= scale
                v_tile, k_tiles = Rounded(s_v.index(i)), (s_k.index(i), s_w.index(i))
                k_split, k_of_state = store_keys(b_k, s, k_tiles, s_up, HALF, KEEP)
                r_left = as_left(split(b_r))
                if KEEP and not HALF:
                    s_w.index(i).store(rounded(b_s))
                b_s, state = store_state(b_s, b_total, b_power, s, HALF, KEEP)
                fence_async_shared()
                barrier()  # all warps' parts of the factors are stored
                expect_chunk(ready, i, t + 2 * C < n)
                b_a = product(r_left, transposed(k_split), zeros)
                b_o = product(r_left, state, zeros)
                if KEEP and not HALF:
                    state_at = [at_checkpoint, i_v * C]
                    tma.async_copy_shared_to_global(checkpoints, state_at, s_w.index(i))
                b_s, b_more = start_updates(b_s, k_of_state, v_tile, zeros, HALF, KEEP)
                UPDATES: gl.constexpr = 2 if KEEP and HALF else 1
                b_a = warpgroup_mma_wait(
                    UPDATES * products(k_of_state, v_tile), deps=(b_a,) + r_left
                )[0]
                scores = masked(b_a, b_bonus[:, None], s.mask, DTYPE)
                b_o = plus_product(b_o, scores, v_tile, SMALL_FIRST=False)
                if KEEP:  # one more checkpoint, in the middle of the chunk
                    b_s = second_half(
                        b_s, b_more, k_of_state, v_tile, b_second, b_power, s, saved, i_state, H,
                        t, n, K, V, HALF, products(scores, v_tile),
                    )  # fmt: skip
                if KEEP and HALF:
                    b_o = warpgroup_mma_wait(0, deps=(b_o,) + scores)[0]
                else:
                    b_o, b_s = warpgroup_mma_wait(0, deps=(b_o, b_s) + scores)[:2]
                if HALF:
                    b_o = finished(b_o, b_bonus, s_v.index(i), whole, scale, SCALED)
                else:
                    b_s *= gl.exp2(b_total)[:, None]
                store_chunk(
                    o, o_rows, s_r.index(i), b_o, whole, n - t,
                    (start + skipped + t) * H * V + value_column, row, col,
                    i_k.to(gl.int64) * tokens * H * V, [first + t, value_column], H, V,
                )  # fmt: skip
                if KEEP and not HALF:
                    if t + C // 2 < n:
                        middle_at = [at_checkpoint + H * K, i_v * C]
                        tma.async_copy_shared_to_global(checkpoints, middle_at, s.more)
                t += C
        if HALF:
            b_s *= FROM_KEYS
        if t < n:
            t, b_s = strong_chunks(
                t, b_s, b_u, n, first, i_h, i_k, i_v, H, slot, scale, tokens,
                inputs, (o, o_rows, checkpoints), staged, ready, ones,
                K, V, CHECKPOINT, RAW, SCALED, HALF,
            )  # fmt: skip

    tma.store_wait(0)
    is_last = i_g == last_segment(end - start - skip, span, segments)
    gl.store(s1 + i_s + o_s, b_s, (row >= 0) & is_last)
