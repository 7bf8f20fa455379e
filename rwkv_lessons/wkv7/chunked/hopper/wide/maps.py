"""The maps of chunks of heads of 128 keys: those of ../maps.py, 64 keys at a time.

Each half of the keys lies in shared memory as a tile of its own. Its Ã, R̃, B̃ and K̃ replace a, r,
b and k there; the products of pairs of tokens are sums over both halves, in registers. They
replace w of the first half.

Where a decay does not fit, inputs are loaded again, and the tile's maps are made anew with decays
that are split (split.py), until a tile comes whose decays all fit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ....decays import OF_CLAMP, RAW
from ..layouts import (
    CHUNKS,
    FLAT_BY_CHUNK,
    IN_A_WARP,
    PAIRS,
    SMALL,
    STAGES,
    C,
    N,
    barrier,
    index_along,
    rounded,
    times_transposed,
)
from ..loads import wait_for_tile
from ..maps import by_chunk, clear_tail, decayed, inverse, store_decays
from .split import split_decayed, store_split_decays, tile_again


@gluon.jit
def pairs_of(s_w):
    """The small matrices of the four chunks of a tile, which take the place of w."""
    return s_w._reinterpret(gl.bfloat16, [4, N, C], SMALL)


@gluon.jit
def clear_tails(tiles, i, rest, DECAY: gl.constexpr):
    """Clears what follows the last token in all tiles of a half; w is the second of them."""
    PARAMETER: gl.constexpr = DECAY == RAW or DECAY == OF_CLAMP
    for n in gl.static_range(len(tiles)):
        absent = float("-inf") if n == 1 and PARAMETER else 0.0
        clear_tail(by_chunk(tiles[n].index(i)), rest, absent)


@gluon.jit
def store_pair(s_x, b_x, keep):
    """A small matrix where `keep`, else 0, of each chunk."""
    s_x.store(gl.reshape(rounded(gl.where(keep, b_x, 0.0)), [N, C]))


@gluon.jit
def mark_of(s_decays, i):
    """The least decay of the tile in stage i as bits, or the negative one that is nearest to 0.

    So it is negative if any decay is. Of integers, it takes a single instruction between threads.
    """
    first = s_decays[0].index(i).load(IN_A_WARP).to(gl.int32, bitcast=True)
    second = s_decays[1].index(i).load(IN_A_WARP).to(gl.int32, bitcast=True)
    return gl.min(gl.minimum(first, second), 0)


@gluon.jit
def map_tile(
    halves, s_decays, i, scale, zero, DECAY: gl.constexpr, SCALED: gl.constexpr, SPLIT: gl.constexpr
):
    """Makes the maps of the tile in stage i. halves: r, w, k, v, a, b of 64 keys, twice.

    Returns the tile's mark.
    """
    b_ab = gl.zeros([CHUNKS, C, C], gl.float32, PAIRS)
    b_ba, b_ak, b_rb, b_rk = b_ab, b_ab, b_ab, b_ab
    for h in gl.static_range(2):
        r, w, k, _, a, b = halves[h]
        s_decay = s_decays[h].index(i)._reinterpret(gl.float32, [CHUNKS, N], FLAT_BY_CHUNK)
        s_r, s_k = by_chunk(r.index(i)), by_chunk(k.index(i))
        s_a, s_b = by_chunk(a.index(i)), by_chunk(b.index(i))
        if SPLIT:
            log_w, part = store_split_decays(by_chunk(w.index(i)), s_decay, DECAY)
            b_a, b_r, b_b, b_k = split_decayed(s_r, s_k, s_a, s_b, log_w, part, scale, zero, SCALED)
        else:
            log_w = store_decays(by_chunk(w.index(i)), s_decay, DECAY)
            b_a, b_r, b_b, b_k = decayed(s_r, s_k, s_a, s_b, log_w, scale, zero, SCALED)
        b_ab, b_ba = times_transposed(b_a, b_b, b_ab), times_transposed(b_b, b_a, b_ba)
        b_ak, b_rb = times_transposed(b_a, b_k, b_ak), times_transposed(b_r, b_b, b_rb)
        b_rk = times_transposed(b_r, b_k, b_rk)
    mark = 0 if DECAY == OF_CLAMP else mark_of(s_decays, i)
    row, col = index_along(1, C, PAIRS), index_along(2, C, PAIRS)
    row += 0 * index_along(0, CHUNKS, PAIRS)
    s_small = pairs_of(halves[0][1].index(i))
    store_pair(s_small.index(0), b_ak, col < row)
    store_pair(s_small.index(1), b_rb, col <= row)
    store_pair(s_small.index(2), b_rk, col <= row)
    b_ab, b_ba = gl.where(col < row, b_ab, 0.0), gl.where(row < col, b_ba, 0.0)
    s_small.index(3).store(gl.reshape(rounded(inverse(b_ab, b_ba, row, col)), [N, C]))
    return mark


@gluon.jit
def make_maps(halves, rows, s_decays, loaded, mapped, place, scale, FORM: gl.constexpr):
    """The warps that make maps, of one tile after the other, as soon as it is loaded."""
    start, n, column, step, _ = place
    MILD: gl.constexpr = False
    SPLIT: gl.constexpr = True
    count = gl.cdiv(n, N)
    mark = n * 0  # of the tile before
    for turn in range(0, count):
        i, phase = turn % STAGES, turn // STAGES % 2
        rest = n - (count - 1 - turn if FORM.REVERSE else turn) * N
        for h in gl.static_range(2):
            wait_for_tile(loaded[h], i, phase)
            if rest < N:
                clear_tails(halves[h], i, rest, FORM.DECAY)
        zero = turn // 2**25  # which the compiler cannot know: it would keep masks in registers
        if FORM.DECAY == OF_CLAMP:
            map_tile(halves, s_decays, i, scale, zero, FORM.DECAY, FORM.SCALED, MILD)
        else:
            if mark >= 0:
                mark = map_tile(halves, s_decays, i, scale, zero, FORM.DECAY, FORM.SCALED, MILD)
                if mark < 0:
                    first = gl.minimum(n - rest, n)  # never n: else all addresses would be kept
                    at = (start + first) * step + column
                    for h in gl.static_range(2):
                        tile_again(halves[h], rows, i, at + h * N, step, rest, FORM.DECAY)
            if mark < 0:
                mark = map_tile(halves, s_decays, i, scale, zero, FORM.DECAY, FORM.SCALED, SPLIT)
        fence_async_shared()
        barrier()  # all warps' maps are there
        mbarrier.arrive(mapped.index(i), count=1)
