"""Factors of products, in one piece of bfloat16 or in two: high, and low if there is one.

bfloat16 holds 8 of the 24 bits of a float32, its two pieces 16. A product of two factors is as many
products of pieces as `products` says: high with high, and low with high of either side; low with
low is less than what float32 rounds. A factor is in registers, or in shared memory.

Being tuples, factors are what a wait names: deps=(b_sum,) + x. An absent piece is no None, since
Triton 3.6 lets no function return one.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from .tiles import as_left_operand, in_two, rounded, widened


class Rounded(NamedTuple):
    """A factor of one piece."""

    high: object


class Split(NamedTuple):
    """A factor of two pieces."""

    high: object
    low: object


@gluon.constexpr_function
def products(x, y):
    """How many products of pieces x y is."""
    return len(x) + len(y) - 1


@gluon.jit
def factor(pieces):
    """Of one tile or two."""
    if len(pieces) == 1:
        return Rounded(pieces[0])
    else:
        return Split(pieces[0], pieces[1])


@gluon.jit
def high_of(x):
    """The high piece of x as a factor."""
    return Rounded(x.high)


@gluon.jit
def tile_of(x, i):
    """A factor of one of several tiles."""
    if len(x) == 1:
        return Rounded(x.high.index(i))
    else:
        return Split(x.high.index(i), x.low.index(i))


@gluon.jit
def rows_of(x, first, count):
    """Some rows of a factor in shared memory."""
    if len(x) == 1:
        return Rounded(x.high.slice(first, count, 0))
    else:
        return Split(x.high.slice(first, count, 0), x.low.slice(first, count, 0))


@gluon.jit
def transposed(x):
    """A factor in shared memory, on its side."""
    if len(x) == 1:
        return Rounded(x.high.permute((1, 0)))
    else:
        return Split(x.high.permute((1, 0)), x.low.permute((1, 0)))


@gluon.jit
def product(x, y, zeros):
    """Starts x y. zeros: of its shape, in registers."""
    b_sum = warpgroup_mma(x.high, y.high, zeros, use_acc=False, is_async=True)
    if len(x) == 2:
        b_sum = warpgroup_mma(x.low, y.high, b_sum, is_async=True)
    if len(y) == 2:
        b_sum = warpgroup_mma(x.high, y.low, b_sum, is_async=True)
    return b_sum


@gluon.jit
def plus_product(b_sum, x, y, SMALL_FIRST: gl.constexpr = True):
    """Starts b_sum + x y, small products first, or the large one."""
    if not SMALL_FIRST:
        b_sum = warpgroup_mma(x.high, y.high, b_sum, is_async=True)
    if len(x) == 2:
        b_sum = warpgroup_mma(x.low, y.high, b_sum, is_async=True)
    if len(y) == 2:
        b_sum = warpgroup_mma(x.high, y.low, b_sum, is_async=True)
    if SMALL_FIRST:
        b_sum = warpgroup_mma(x.high, y.high, b_sum, is_async=True)
    return b_sum


@gluon.jit
def plus_product_of_low(b_sum, x, y):
    """Starts b_sum + what `plus_product` leaves out of x y, if both have low pieces."""
    if len(x) + len(y) == 4:
        b_sum = warpgroup_mma(x.low, y.low, b_sum, is_async=True)
    return b_sum


@gluon.jit
def split(b_x):
    """A float32 tile in two pieces."""
    high, low = in_two(b_x)
    return Split(high, low)


@gluon.jit
def in_float32(x):
    """The sum of a factor's pieces, in registers."""
    if len(x) == 1:
        return widened(x.high)
    else:
        return widened(x.high) + widened(x.low)


@gluon.jit
def as_left(x):
    """A factor in registers, where it is the left one."""
    if len(x) == 1:
        return Rounded(as_left_operand(x.high))
    else:
        return Split(as_left_operand(x.high), as_left_operand(x.low))


@gluon.jit
def store(s_x, x):
    """Stores the pieces of a factor."""
    s_x.high.store(x.high)
    if len(s_x) == 2:
        s_x.low.store(x.low)


@gluon.jit
def store_split(s_x, b_x):
    """Stores a float32 tile in as many pieces as there are tiles for."""
    if len(s_x) == 1:
        s_x.high.store(rounded(b_x))
    else:
        store(s_x, split(b_x))


@gluon.jit
def load(s_x, LAYOUT):
    """A factor's pieces, into registers."""
    if len(s_x) == 1:
        return Rounded(s_x.high.load(LAYOUT))
    else:
        return Split(s_x.high.load(LAYOUT), s_x.low.load(LAYOUT))
