"""The gradients of tiles of a head of 128 whose decays are too strong for products of 64 tokens.

These are the tiles that gradients.py has marked. They are computed in chunks of 16 tokens, for any
decay: each factor is an input times the decays of some tokens, so no factor is larger than its
input. z, what tokens read through a, and its gradient dy are given. So nothing is inverted, and
keys do not depend on each other: a program has 64 of them, and an SM two programs. With c of
../maps.py, S before a chunk, dS after it, and C the sum of a key's log decays over the chunk,

    R̂ = r e^c    Â = a e^(c before the token)    K̂ = k e^(C − c)    B̂ = b e^(C − c)
    dr = e^c (do Sᵀ) + pairs               dk = e^(C − c) (v dSᵀ) + pairs
    da = e^(c before) (dy Sᵀ) + pairs      db = e^(C − c) (z dSᵀ) + pairs
    S after it = e^C S + K̂ᵀ v + B̂ᵀ z       dS before it = e^C dS + R̂ᵀ do + Âᵀ dy

`pairs` is what tokens of a chunk read of each other, in levels as in ../../pairs.py: of two
neighbouring halves of 8, 4, 2 or 1 tokens, the later half reads what the earlier half has written.
What is written decays up to where the halves meet, and what is read decays from there. A token
reads its own k and b without a decay.

An exponent is a sum of log decays with `weights` of 0 and 1. So dw is the sum of the exponents'
gradients with the transposed weights. Nothing is subtracted, and small dw keep their digits.

The loop goes from the last chunk to the first, with dS in registers. S before a chunk is computed
from S before the tile, for each chunk again: 6 updates in all.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mma_v2

from .....runtime.compile_triton import assembled
from .....sequences.spans import bounds_of_span
from ....decays import RAW
from ..layouts import CHUNKS, LOG2E, SMALL, TILE, C, N, barrier, rounded, widened
from ..maps import log_decay
from ..products import flipped, gradient_of_w, times_powers
from .sweep import WIDE

WARPS = 4
# Pairs of programs that share the tiles: two programs an SM, and a prime, so that each pair gets
# some of any head's tiles.
PROGRAMS = 131
MARKS = gl.constexpr(64)  # that a program looks at together
LEAST = gl.constexpr(-200.0)  # of log decays: e^-200 is 0 in float32, and 0 times it is
LEVELS = gl.constexpr(4)  # halves of 8, 4, 2 and 1 tokens

CHUNK = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))  # [keys, …]
LEFT = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2))
PAIRS = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [1, 4], [16, 8]))  # [token, token]
FIRST = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [1, 4], [16, 8]), 2))
SECOND = gl.constexpr(gl.DotOperandLayout(1, gl.NVMMADistributedLayout([2, 0], [1, 4], [16, 8]), 2))
# Of 16 bytes a thread: rows of 64, 128 and 16 elements.
BY_64 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
BY_128 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
BY_16 = gl.constexpr(gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0]))
WEIGHTS = gl.constexpr(gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))
ONCE = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))  # 64 numbers, in each warp


@gluon.jit
def rows_of(
    x, at, step, count, absent, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr
):
    """Rows of x, `step` elements apart, of which `count` are there; the others are `absent`."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
    row += (at >> 62).to(gl.int32)  # 0, which the compiler cannot know: it would keep addresses
    return gl.load(x + at + (row * step + column), row + 0 * column < count, absent)


@gluon.jit
def keys_in(x, at, step, count, absent):
    return rows_of(x, at, step, count, absent, C, N, BY_64)


@gluon.jit
def values_in(x, at, step, count):
    return rows_of(x, at, step, count, 0.0, C, WIDE, BY_128)


@gluon.jit
def read_in(x, at):
    return rows_of(x, at, N, WIDE, 0.0, WIDE, C, BY_16)


@gluon.jit
def state_in(x, at):
    return rows_of(x, at, WIDE, WIDE, 0.0, WIDE, N, BY_64)


@gluon.jit
def store_rows(x, at, s_x, b_x, step, count):
    """The tokens of a chunk: b_x is [keys, tokens]. s_x: where they may be put meanwhile."""
    flipped(s_x).store(rounded(b_x))
    row = gl.arange(0, C, gl.SliceLayout(1, BY_64))[:, None]
    column = gl.arange(0, N, gl.SliceLayout(0, BY_64))[None, :]
    gl.store(x + at + (row * step + column), s_x.load(BY_64), row + 0 * column < count)


@gluon.jit
def keys_of(s_x):
    """A chunk in registers, [keys, tokens], in float32."""
    return widened(flipped(s_x).load(CHUNK))


@gluon.jit
def left(b_x):
    return gl.convert_layout(rounded(b_x), LEFT)


@gluon.jit
def zeros(COLUMNS: gl.constexpr):
    return gl.zeros([N, COLUMNS], gl.float32, CHUNK)


@gluon.jit
def log_decays(s_w, DECAY: gl.constexpr):
    """Of a chunk, not below LEAST."""
    b_w = log_decay(keys_of(s_w), DECAY)
    return gl.where(b_w < LEAST, LEAST, b_w)  # NaN remains


@gluon.jit
def decays(w, s_weights):
    """e^ the sums of log decays, a left factor, with weights."""
    return gl.exp2(mma_v2(w, s_weights.load(RIGHT), zeros(C)) * LOG2E)


@gluon.jit
def gradients_of_sums(b_dw, b_x, s_weights):
    """b_dw plus that of log decays, with the gradient b_x of their sums with weights."""
    return mma_v2(left(b_x), flipped(s_weights).load(RIGHT), b_dw)


@gluon.jit
def store_weights(s_weights):
    """Of states: tokens up to a token, and before it. Of each level: from where halves meet up to a
    token, or after it up to there; the same before the token, of later halves; which pairs meet.
    Last a token with itself.
    """
    t = gl.arange(0, C, gl.SliceLayout(1, WEIGHTS))[:, None]
    to = gl.arange(0, C, gl.SliceLayout(0, WEIGHTS))[None, :]
    s_weights.index(0).store((t <= to).to(gl.bfloat16))
    s_weights.index(1).store((t < to).to(gl.bfloat16))
    for n in gl.static_range(LEVELS):
        half, half_to = t >> LEVELS - 1 - n, to >> LEVELS - 1 - n
        later, same = half_to % 2, half == half_to
        both = same & ((t <= to) == (later == 1))
        s_weights.index(2 + 3 * n).store(both.to(gl.bfloat16))
        s_weights.index(3 + 3 * n).store((same & (t < to) & (later == 1)).to(gl.bfloat16))
        s_weights.index(4 + 3 * n).store(((half ^ half_to) == 1).to(gl.bfloat16))
    s_weights.index(2 + 3 * LEVELS).store((t == to).to(gl.bfloat16))


@gluon.jit
def store_pairs(s_pairs, s_do, s_dy, s_v, s_z):
    """do vᵀ, do zᵀ, dy vᵀ and dy zᵀ, of a token with those before it; of do also with its own."""
    row = gl.arange(0, C, gl.SliceLayout(1, PAIRS))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, PAIRS))[None, :]
    none = gl.zeros([C, C], gl.float32, PAIRS)
    do, dy = s_do.load(FIRST), flipped(s_dy).load(FIRST)
    v, z = flipped(s_v).load(SECOND), s_z.load(SECOND)
    s_pairs.index(0).store(rounded(gl.where(col <= row, mma_v2(do, v, none), 0.0)))
    s_pairs.index(1).store(rounded(gl.where(col <= row, mma_v2(do, z, none), 0.0)))
    s_pairs.index(2).store(rounded(gl.where(col < row, mma_v2(dy, v, none), 0.0)))
    s_pairs.index(3).store(rounded(gl.where(col < row, mma_v2(dy, z, none), 0.0)))


@gluon.jit
def times_pairs(x, y, s_x, s_y, s_level):
    """x times pairs of a level, plus y times others."""
    level = s_level.load(RIGHT)
    b_sum = mma_v2(x, times_powers(s_x.load(RIGHT), level), zeros(C))
    return mma_v2(y, times_powers(s_y.load(RIGHT), level), b_sum)


@gluon.jit
def add_pairs(sums, inputs, w, s_pairs, s_weights):
    """Adds to dr, dk, da, db and dw what is of tokens of a chunk that read each other."""
    b_dr, b_dk, b_da, b_db, b_dw = sums
    b_r, b_k, b_a, b_b = inputs
    s_ov, s_oz, s_yv, s_yz = s_pairs.index(0), s_pairs.index(1), s_pairs.index(2), s_pairs.index(3)
    for n in range(LEVELS):
        s_both, s_before = s_weights.index(2 + 3 * n), s_weights.index(3 + 3 * n)
        s_level = s_weights.index(4 + 3 * n)
        b_both, b_before = decays(w, s_both), decays(w, s_before)
        r, k = left(b_r * b_both), left(b_k * b_both)
        a, b = left(b_a * b_before), left(b_b * b_both)
        b_x = times_pairs(k, b, flipped(s_ov), flipped(s_oz), s_level) * b_both
        b_dr += b_x
        b_own = b_x * b_r
        b_x = times_pairs(r, a, s_ov, s_yv, s_level) * b_both
        b_dk += b_x
        b_own += b_x * b_k
        b_x = times_pairs(r, a, s_oz, s_yz, s_level) * b_both
        b_db += b_x
        b_own += b_x * b_b
        b_dw = gradients_of_sums(b_dw, b_own, s_both)
        b_x = times_pairs(k, b, flipped(s_yv), flipped(s_yz), s_level) * b_before
        b_da += b_x
        b_dw = gradients_of_sums(b_dw, b_x * b_a, s_before)
    r, k, b = left(b_r), left(b_k), left(b_b)
    own = s_weights.index(2 + 3 * LEVELS).load(RIGHT)
    ov, oz = times_powers(s_ov.load(RIGHT), own), times_powers(s_oz.load(RIGHT), own)
    b_dr = mma_v2(b, oz, mma_v2(k, ov, b_dr))
    return b_dr, mma_v2(r, ov, b_dk), b_da, mma_v2(r, oz, b_db), b_dw


@gluon.jit
def state_before(s_s, s_w, s_k, s_b, s_v, s_z, s_after, chunk, DECAY: gl.constexpr):
    """Sᵀ before a chunk, [keys, values], in float32."""
    b_s = widened(flipped(s_s).load(CHUNK))
    for j in range(chunk):
        b_w = log_decays(s_w.index(j), DECAY)
        b_after = decays(left(b_w), s_after)
        b_s *= gl.exp2(gl.sum(b_w, 1) * LOG2E)[:, None]
        k, b = left(keys_of(s_k.index(j)) * b_after), left(keys_of(s_b.index(j)) * b_after)
        b_s = mma_v2(k, s_v.index(j).load(RIGHT), b_s)
        b_s = mma_v2(b, flipped(s_z.index(j)).load(RIGHT), b_s)
    return b_s


@gluon.jit
def gradients_of_chunk(
    b_ds, loaded, shared, s_pairs, s_weights, outputs, chunk, at, step, count, scale,
    DECAY: gl.constexpr,
):  # fmt: skip
    """Of a chunk of which `count` tokens are there, from `at` on. Returns dS before it.

    loaded: its r, a, do and dy, on their way from memory.
    """
    s_r, s_w, s_k, s_a, s_b, s_v, s_do, s_z, s_dy, s_s = shared
    dr, dk, da, db, dw = outputs
    s_up_to, s_before = s_weights.index(0), s_weights.index(1)
    s_now_k, s_now_b, s_now_w = s_k.index(chunk), s_b.index(chunk), s_w.index(chunk)
    s_now_v, s_now_z = s_v.index(chunk), s_z.index(chunk)
    b_s = state_before(s_s, s_w, s_k, s_b, s_v, s_z, flipped(s_before), chunk, DECAY)
    s_r.store(loaded[0])
    s_a.store(loaded[1])
    s_do.store(loaded[2])
    s_dy.store(loaded[3])
    store_pairs(s_pairs, s_do, s_dy, s_now_v, s_now_z)
    barrier()
    b_w = log_decays(s_now_w, DECAY)
    w, b_decay = left(b_w), gl.exp2(gl.sum(b_w, 1) * LOG2E)
    s, b_dw = left(b_s), zeros(C) + (gl.sum(b_s * b_ds, 1) * b_decay)[:, None]
    b_r, b_a = keys_of(s_r) * scale, keys_of(s_a)
    b_up_to, b_before = decays(w, s_up_to), decays(w, s_before)
    b_dr = mma_v2(s, flipped(s_do).load(RIGHT), zeros(C)) * b_up_to
    b_dw = gradients_of_sums(b_dw, b_dr * b_r, s_up_to)
    b_da = mma_v2(s, s_dy.load(RIGHT), zeros(C)) * b_before
    b_dw = gradients_of_sums(b_dw, b_da * b_a, s_before)

    ds, b_after = left(b_ds), decays(w, flipped(s_before))
    b_k, b_b = keys_of(s_now_k), keys_of(s_now_b)
    b_dk = mma_v2(ds, flipped(s_now_v).load(RIGHT), zeros(C)) * b_after
    b_db = mma_v2(ds, s_now_z.load(RIGHT), zeros(C)) * b_after
    b_dw = gradients_of_sums(b_dw, b_dk * b_k + b_db * b_b, flipped(s_before))
    b_ds = b_ds * b_decay[:, None]
    b_ds = mma_v2(left(b_r * b_up_to), s_do.load(RIGHT), b_ds)
    b_ds = mma_v2(left(b_a * b_before), flipped(s_dy).load(RIGHT), b_ds)

    sums, inputs = (b_dr, b_dk, b_da, b_db, b_dw), (b_r, b_k, b_a, b_b)
    b_dr, b_dk, b_da, b_db, b_dw = add_pairs(sums, inputs, w, s_pairs, s_weights)
    b_dw = gradient_of_w(b_dw, log_decays(s_now_w, DECAY), DECAY)
    store_rows(dr, at, s_r, b_dr * scale, step, count)
    store_rows(da, at, s_a, b_da, step, count)
    store_rows(dk, at, s_now_k, b_dk, step, count)
    store_rows(db, at, s_now_b, b_db, step, count)
    store_rows(dw, at, s_now_w, b_dw, step, count)
    return b_ds


@gluon.jit
def written_in(inputs, places, step, count, chunk, DECAY: gl.constexpr):
    """w, k, b, v and z of a chunk."""
    w, k, b, v, z = inputs
    at, at_values, at_read = places
    first, there = chunk * C * step, count - chunk * C
    ABSENT: gl.constexpr = float("-inf") if DECAY == RAW else 0.0  # no decay
    keys = keys_in(w, at + first, step, there, ABSENT), keys_in(k, at + first, step, there, 0.0)
    more = keys_in(b, at + first, step, there, 0.0), values_in(v, at_values + first, step, there)
    return keys + more + (read_in(z, at_read + chunk * C),)


@gluon.jit
def store_written(tiles, loaded, chunk: gl.constexpr):
    for n in gl.static_range(len(tiles)):
        tiles[n].index(chunk).store(loaded[n])


@gluon.jit
def load_tile(inputs, states, tiles, s_s, places, at_state, step, count, DECAY: gl.constexpr):
    """All that chunks share, with all loads in flight together. Returns dSᵀ after the tile."""
    before, d_after = states
    x0 = written_in(inputs, places, step, count, 0, DECAY)
    x1 = written_in(inputs, places, step, count, 1, DECAY)
    x2 = written_in(inputs, places, step, count, 2, DECAY)
    x3 = written_in(inputs, places, step, count, 3, DECAY)
    d_state, state = state_in(d_after, at_state), state_in(before, at_state)
    store_written(tiles, x0, 0)
    store_written(tiles, x1, 1)
    store_written(tiles, x2, 2)
    store_written(tiles, x3, 3)
    s_s.store(d_state)
    b_ds = widened(flipped(s_s).load(CHUNK))
    s_s.store(state)
    return b_ds


@gluon.jit
def gradients_of_tile(
    inputs, of_values, states, outputs, shared, s_pairs, s_weights, places, at_state, step, count,
    scale, DECAY: gl.constexpr,
):  # fmt: skip
    """Of 64 keys of a tile of `count` tokens.

    places: where keys and values of its first token are, and where z and dy.
    """
    r, w, k, a, b = inputs
    v, do, z, dy = of_values
    at, at_values, at_read = places
    s_r, s_w, s_k, s_a, s_b, s_v, s_do, s_z, s_dy, s_s = shared
    written, tiles = (w, k, b, v, z), (s_w, s_k, s_b, s_v, s_z)
    b_ds = load_tile(written, states, tiles, s_s, places, at_state, step, count, DECAY)
    chunks = gl.cdiv(count, C)
    for i in range(chunks):
        j = chunks - 1 - i
        first, there = j * C * step, count - j * C
        of_r = keys_in(r, at + first, step, there, 0.0)
        of_a = keys_in(a, at + first, step, there, 0.0)
        of_do, of_dy = values_in(do, at_values + first, step, there), read_in(dy, at_read + j * C)
        b_ds = gradients_of_chunk(
            b_ds, (of_r, of_a, of_do, of_dy), shared, s_pairs, s_weights, outputs, j, at + first,
            step, there, scale, DECAY,
        )  # fmt: skip


@gluon.jit
def next_marked(strong, i, step, count):
    """The first marked tile of i, i + step, …; `count` if there is none."""
    marked = count
    while (marked == count) & (i < count):
        tile = i + step * gl.arange(0, MARKS, ONCE)
        marks = gl.load(strong + tile, tile < count, 0)
        marked = gl.min(gl.where(marks != 0, tile, count), 0)
        i += step * MARKS
    return marked


@assembled
@gluon.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_wide_strong_kernel(
    r, w, k, v, a, b, do, z, dy, states, d_states, bounds, dr, dk, da, db, dw, strong, T, H, count,
    scale, DECAY: gl.constexpr,
):  # fmt: skip
    """As `wkv7_wide_gradients_kernel`, all of tensors. count: of tiles and heads.

    Two programs next to each other have the two halves of the keys of the same tiles.
    """
    s_r = gl.allocate_shared_memory(gl.bfloat16, [C, N], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, C, N], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, C, N], TILE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [C, N], TILE)
    s_b = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, C, N], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, C, WIDE], TILE)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [C, WIDE], TILE)
    s_z = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, WIDE, C], SMALL)
    s_dy = gl.allocate_shared_memory(gl.bfloat16, [WIDE, C], SMALL)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [WIDE, N], TILE)
    s_pairs = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], SMALL)
    s_weights = gl.allocate_shared_memory(gl.bfloat16, [3 + 3 * LEVELS, C, C], SMALL)
    shared = s_r, s_w, s_k, s_a, s_b, s_v, s_do, s_z, s_dy, s_s
    step, half = gl.num_programs(0) // 2, gl.program_id(0) % 2
    tile = next_marked(strong, gl.program_id(0) // 2, step, count)
    if tile < count:
        store_weights(s_weights)
    while tile < count:
        i = tile.to(gl.int64)
        start, end = bounds_of_span(bounds, i // H, T, N)
        at = start * (H * WIDE) + i % H * WIDE
        gradients_of_tile(
            (r, w, k, a, b), (v, do, z, dy), (states, d_states), (dr, dk, da, db, dw), shared,
            s_pairs, s_weights, (at + half * N, at, i * (WIDE * N)), i * (WIDE * WIDE) + half * N,
            H * WIDE, gl.minimum(end - start, N).to(gl.int32), scale, DECAY,
        )  # fmt: skip
        tile = next_marked(strong, tile + step, step, count)
