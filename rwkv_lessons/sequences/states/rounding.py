"""Rounding a state to the pool's dtype, in Triton; `pool.rounded` does the same in torch.

Stochastic rounding goes up with the probability that makes the mean exact: an update of less than
half a unit in the last place is not lost each time, but kept now and then. Random bits are those of
a seed and of the element's place in its head, not of its slot or of what else is in the batch: the
same seed gives the same bits in every call. Of each key and of each value there is one random word;
the upper bits of their product cost an element one multiplication. They are added to the bits that
float16 drops. Numbers below 2⁻¹⁴, of which it drops more, are rounded to nearest in the end.
"""

import triton
import triton.language as tl

from .pool import DROPPED as _DROPPED
from .pool import KEYS as _KEYS
from .pool import STEP as _STEP
from .pool import VALUES as _VALUES

KEYS, VALUES, STEP = tl.constexpr(_KEYS), tl.constexpr(_VALUES), tl.constexpr(_STEP)
DROPPED = tl.constexpr(_DROPPED)
LARGEST = tl.constexpr(65504.0)


@triton.jit
def mixed(b_x):
    """A word whose bits all depend on all bits of b_x, uint32: the end of MurmurHash3."""
    b_x ^= b_x >> 16
    b_x *= 0x85EBCA6B
    b_x ^= b_x >> 13
    b_x *= 0xC2B2AE35
    return b_x ^ (b_x >> 16)


@triton.jit
def random_bits(seed, o_k, o_v):
    """`DROPPED` bits for each key and value; o_k and o_v: places among those of all heads."""
    b_k = mixed(seed.to(tl.uint32) * STEP + (o_k.to(tl.uint32) ^ KEYS))
    b_v = mixed(seed.to(tl.uint32) * STEP + (o_v.to(tl.uint32) ^ VALUES)) | 1
    return (b_k[:, None] * b_v[None, :]) >> (32 - DROPPED)


@triton.jit
def rounded(b_s, seed, o_k, o_v, DTYPE: tl.constexpr, STOCHASTIC: tl.constexpr):
    """A tile of states in DTYPE."""
    if STOCHASTIC and DTYPE == tl.float16:
        b_bits = b_s.to(tl.uint32, bitcast=True) + random_bits(seed, o_k, o_v)  # of the size alone
        b_cut = (b_bits >> DROPPED << DROPPED).to(tl.float32, bitcast=True)
        b_s = tl.where(tl.abs(b_s) <= LARGEST, b_cut, b_s)  # beyond it, and NaN, to nearest
    return b_s.to(DTYPE)


@triton.jit
def store_state(at, b_s, m_s, seeds, i_n, n, o_k, o_v):
    """Rounds the state after n tokens of sequence i_n to the pool's dtype."""
    seed = n  # of no use
    if seeds is not None:
        seed = tl.load(seeds + i_n).to(tl.int32) + n - 1
    tl.store(at, rounded(b_s, seed, o_k, o_v, at.dtype.element_ty, seeds is not None), m_s)
