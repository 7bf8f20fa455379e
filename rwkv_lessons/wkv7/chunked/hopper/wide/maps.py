"""The maps of chunks of heads of 128 keys: those of ../maps.py, 64 keys at a time.

Each half of the keys lies in shared memory as a tile of its own. Its Ã, R̃, B̃ and K̃ replace a, r,
b and k there; the products of pairs of tokens are sums over both halves, in registers. They
replace w of the first half.

Where a key of a half decays by less than e^-60 in a chunk, 2^-c is no float32. There decays are
split at their middle: c counts from where half of the chunk's decay is past, for all keys of the
half. With d, the other half of the decay, that is

    Ã = a 2^(c before) / d    R̃ = r 2^c / d    B̃ = b d 2^-c    K̃ = k d 2^-c

so products with pairs of tokens stay as they are, and the state is multiplied by d before and
after the chunk. As d >= e^-60, this fits chunks that decay by e^-120. Their d is stored as -d.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ....decays import OF_CLAMP, RAW
from ..layouts import (
    CHUNKS,
    FLAT_BY_CHUNK,
    LEFT,
    LOG2E,
    PAIRS,
    SMALL,
    STAGES,
    C,
    N,
    barrier,
    index_along,
    rounded,
    times_transposed,
    widened,
)
from ..maps import FITS, by_chunk, clear_tail, inverse, log_decays, sums

W, V, R_K_A_B = gl.constexpr((1,)), gl.constexpr((3,)), gl.constexpr((0, 2, 4, 5))  # of a half
STRONG = gl.constexpr(-2.0)  # instead of the decay of a key in a chunk, where no half of it fits


@gluon.jit
def pairs_of(s_w):
    """The small matrices of the four chunks of a tile, which take the place of w."""
    return s_w._reinterpret(gl.bfloat16, [4, N, C], SMALL)


@gluon.jit
def wait_for(loaded, h: gl.constexpr, inputs: gl.constexpr, i, phase):
    """Until some inputs of a half are there."""
    for n in gl.static_range(len(inputs)):
        mbarrier.wait(loaded[h][inputs[n]].index(i), phase)


@gluon.jit
def clear_tails(halves, h: gl.constexpr, inputs: gl.constexpr, i, rest, absent: gl.constexpr):
    """Has what follows the last of `rest` tokens be `absent` in some inputs of a half."""
    for n in gl.static_range(len(inputs)):
        clear_tail(by_chunk(halves[h][inputs[n]].index(i)), rest, absent)


@gluon.jit
def store_decays(s_w, s_decay, DECAY: gl.constexpr):
    """The decay of each chunk of a half, or -d. Returns log decays, and their part before a split.

    That is 0.5 in chunks that are split, else 0.
    """
    w, b_total = log_decays(s_w, DECAY)
    split = gl.min(b_total, 1) < -FITS
    part = gl.convert_layout(gl.where(split, 0.5, 0.0), gl.SliceLayout(1, gl.SliceLayout(2, LEFT)))
    if DECAY == OF_CLAMP:  # of which all fit
        s_decay.store(gl.exp2(b_total * LOG2E))
    else:
        split = gl.expand_dims(split, 1)
        b_decay = gl.exp2(b_total * gl.where(split, LOG2E / 2, LOG2E))
        b_decay = gl.where(split, -b_decay, b_decay)
        b_decay = gl.where(b_total >= -2 * FITS, b_decay, STRONG)  # NaN does not fit
        s_decay.store(b_decay)
    return w, gl.expand_dims(gl.expand_dims(part, 1), 2)


@gluon.jit
def sums_from_split(counted, w, part, DECAY: gl.constexpr):
    """log2 of decays from the split to before or after each token: `counted` tokens precede it."""
    if DECAY != OF_CLAMP:
        counted = gl.where(counted, 1 - part, -part)
    return sums(counted.to(gl.bfloat16), w, gl.zeros([CHUNKS, C, N], gl.float32, PAIRS))


@gluon.jit
def decayed(tile, i, w, part, scale, zero, DECAY: gl.constexpr, SCALED: gl.constexpr):
    """Ã, R̃, B̃ and K̃ of a half, in bfloat16. They replace a, r, b and k."""
    s_r, s_k = by_chunk(tile[0].index(i)), by_chunk(tile[2].index(i))
    s_a, s_b = by_chunk(tile[4].index(i)), by_chunk(tile[5].index(i))
    token, other = index_along(1, C, LEFT), index_along(2, C, LEFT)
    token += zero + 0 * index_along(0, CHUNKS, LEFT)
    b_before = sums_from_split(other < token, w, part, DECAY)
    b_a = rounded(widened(s_a.load(PAIRS)) * gl.exp2(b_before))
    s_a.store(b_a)
    b_after = sums_from_split(other <= token, w, part, DECAY)
    b_grow = gl.exp2(-b_after)
    b_b = rounded(widened(s_b.load(PAIRS)) * b_grow)
    b_k = rounded(widened(s_k.load(PAIRS)) * b_grow)
    b_shrink = gl.exp2(b_after)
    if SCALED:
        b_shrink *= scale
    b_r = rounded(widened(s_r.load(PAIRS)) * b_shrink)
    s_b.store(b_b)
    s_k.store(b_k)
    s_r.store(b_r)
    return b_a, b_r, b_b, b_k


@gluon.jit
def store_pair(s_x, b_x, keep):
    """A small matrix where `keep`, else 0, of each chunk."""
    s_x.store(gl.reshape(rounded(gl.where(keep, b_x, 0.0)), [N, C]))


@gluon.jit
def map_tile(
    halves, loaded, s_decays, i, phase, rest, scale, zero, DECAY: gl.constexpr,
    SCALED: gl.constexpr,
):  # fmt: skip
    """Makes the maps of the tile in stage i. halves: r, w, k, v, a, b of 64 keys, twice.

    All that only w is needed for comes first: the other inputs may arrive meanwhile.
    """
    NO_DECAY: gl.constexpr = float("-inf") if DECAY == RAW or DECAY == OF_CLAMP else 0.0
    log_w, parts = (), ()
    for h in gl.static_range(2):
        wait_for(loaded, h, W, i, phase)
    if rest < N:
        for h in gl.static_range(2):
            clear_tails(halves, h, W, i, rest, NO_DECAY)
    for h in gl.static_range(2):
        s_decay = s_decays[h].index(i)._reinterpret(gl.float32, [CHUNKS, N], FLAT_BY_CHUNK)
        w, part = store_decays(by_chunk(halves[h][1].index(i)), s_decay, DECAY)
        log_w, parts = log_w + (w,), parts + (part,)
    b_ab = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    b_ba, b_ak, b_rb, b_rk = b_ab, b_ab, b_ab, b_ab
    for h in gl.static_range(2):
        wait_for(loaded, h, R_K_A_B, i, phase)
        if rest < N:
            clear_tails(halves, h, R_K_A_B, i, rest, 0.0)
        b_a, b_r, b_b, b_k = decayed(halves[h], i, log_w[h], parts[h], scale, zero, DECAY, SCALED)
        b_ab, b_ba = times_transposed(b_a, b_b, b_ab), times_transposed(b_b, b_a, b_ba)
        b_ak, b_rb = times_transposed(b_a, b_k, b_ak), times_transposed(b_r, b_b, b_rb)
        b_rk = times_transposed(b_r, b_k, b_rk)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    s_small = pairs_of(halves[0][1].index(i))
    store_pair(s_small.index(0), b_ak, col < row)
    store_pair(s_small.index(1), b_rb, col <= row)
    store_pair(s_small.index(2), b_rk, col <= row)
    b_ab, b_ba = gl.where(col < row, b_ab, 0.0), gl.where(row < col, b_ba, 0.0)
    s_small.index(3).store(gl.reshape(rounded(inverse(b_ab, b_ba, row, col)), [N, C]))
    for h in gl.static_range(2):
        wait_for(loaded, h, V, i, phase)
    if rest < N:
        for h in gl.static_range(2):
            clear_tails(halves, h, V, i, rest, 0.0)


@gluon.jit
def make_maps(halves, s_decays, loaded, mapped, n, scale, FORM: gl.constexpr):
    """The warps that make maps, of one tile after the other, as soon as it is loaded."""
    count = gl.cdiv(n, N)
    for turn in range(0, count):
        i, phase = turn % STAGES, turn // STAGES % 2
        rest = n - (count - 1 - turn if FORM.REVERSE else turn) * N
        zero = turn // 2**25  # which the compiler cannot know: it would keep masks in registers
        map_tile(halves, loaded, s_decays, i, phase, rest, scale, zero, FORM.DECAY, FORM.SCALED)
        fence_async_shared()
        barrier()  # all warps' maps are there
        mbarrier.arrive(mapped.index(i), count=1)
