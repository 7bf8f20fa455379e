"""Decays of heads of 128 keys that are split at their middle, where whole ones do not fit.

Where a key decays by less than e^-60 in a chunk, 2^-c is no float32. There c counts from where
half of the chunk's decay is past, for all keys of a half of them. With d, the other half of the
decay, that is

    Ã = a 2^(c before) / d    R̃ = r 2^c / d    B̃ = b d 2^-c    K̃ = k d 2^-c

so products with pairs of tokens stay as they are, and the state is multiplied by d before and
after the chunk. As d >= e^-60, this fits chunks that decay by e^-120. Their d is stored as -d.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....decays import OF_CLAMP, RAW
from ..layouts import CHUNKS, LEFT, LOG2E, PAIRS, C, N, index_along, rounded, widened
from ..maps import FITS, by_chunk, log_decays, sums

STRONG = gl.constexpr(-1e-30)  # where no half of a decay fits: nearer to 0 than any -d


@gluon.jit
def tile_again(tiles, rows, i, at, step, rest, DECAY: gl.constexpr):
    """Loads r, w, k, a and b of a half of the keys again, where maps have replaced them.

    rows: tensors. at: of the tile's first token and key there; step: to the next token.
    """
    PARAMETER: gl.constexpr = DECAY == RAW or DECAY == OF_CLAMP
    token = C * index_along(0, CHUNKS, PAIRS) + index_along(1, C, PAIRS)
    offset = token * step + index_along(2, N, PAIRS)
    for n in gl.static_range(6):
        if n != 3:  # v is as it was
            absent = float("-inf") if n == 1 and PARAMETER else 0.0
            b_x = gl.load(rows[n] + at + offset, (token < rest) & (offset >= 0), absent)
            by_chunk(tiles[n].index(i)).store(b_x)


@gluon.jit
def store_split_decays(s_w, s_decay, DECAY: gl.constexpr):
    """The decay of each chunk of a half, or -d. Returns log decays, and their part before a split.

    That is 0.5 in chunks that are split, else 0.
    """
    w, b_total = log_decays(s_w, DECAY)
    split = gl.min(b_total, 1) < -FITS
    part = gl.convert_layout(gl.where(split, 0.5, 0.0), gl.SliceLayout(1, gl.SliceLayout(2, LEFT)))
    split = gl.expand_dims(split, 1)
    b_decay = gl.exp2(b_total * gl.where(split, LOG2E / 2, LOG2E))
    b_decay = gl.where(split, -b_decay, b_decay)
    s_decay.store(gl.where(b_total >= -2 * FITS, b_decay, STRONG))  # NaN does not fit
    return w, gl.expand_dims(gl.expand_dims(part, 1), 2)


@gluon.jit
def sums_from_split(counted, w, part):
    """log2 of decays from the split to before or after each token: `counted` tokens precede it."""
    weights = gl.where(counted, 1 - part, -part).to(gl.bfloat16)
    return sums(weights, w, gl.zeros([CHUNKS, C, N], gl.float32, PAIRS))


@gluon.jit
def split_decayed(s_r, s_k, s_a, s_b, w, part, scale, zero, SCALED: gl.constexpr):
    """As `decayed` of ../maps.py. part: of `store_split_decays`."""
    token, other = index_along(1, C, LEFT), index_along(2, C, LEFT)
    token += zero + 0 * index_along(0, CHUNKS, LEFT)
    b_a = rounded(widened(s_a.load(PAIRS)) * gl.exp2(sums_from_split(other < token, w, part)))
    s_a.store(b_a)
    b_after = sums_from_split(other <= token, w, part)
    b_grow, b_shrink = gl.exp2(-b_after), gl.exp2(b_after)
    b_b = rounded(widened(s_b.load(PAIRS)) * b_grow)
    b_k = rounded(widened(s_k.load(PAIRS)) * b_grow)
    if SCALED:
        b_shrink *= scale
    b_r = rounded(widened(s_r.load(PAIRS)) * b_shrink)
    s_b.store(b_b)
    s_k.store(b_k)
    s_r.store(b_r)
    return b_a, b_r, b_b, b_k
