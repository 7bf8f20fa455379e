"""What kernels in chunks share, in Triton: raw decays, weights of sums, products of tiles."""

import triton
import triton.language as tl

MIN_LOG_DECAY = tl.constexpr(-1e4)  # instead of -inf in the sums, where 0 · inf would be NaN
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def raw_decay(b_x):
    """The log decay -exp(x) of a raw parameter x, in float32."""
    return -tl.exp2(b_x.to(tl.float32) * LOG2E)


@triton.jit
def cut(b_x):
    """The upper 16 bits of a float32 tile as they are, in bfloat16, and what is left of it."""
    b_high = (b_x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return b_high.to(tl.bfloat16), b_x - b_high


@triton.jit
def in_two(b_x):
    """A float32 tile as two of bfloat16, which hold 16 of its 24 bits."""
    b_high, b_rest = cut(b_x)
    return b_high, b_rest.to(tl.bfloat16)


@triton.jit
def nearest_two(b_x):
    """The same with the first one rounded: a quarter of the error, for some more instructions."""
    b_high = b_x.to(tl.bfloat16)
    return b_high, (b_x - b_high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def from_middle(row, col, C: tl.constexpr):
    """Weights of the sums a: from the middle to just before token `row`; negated before it."""
    after = (col >= C // 2) & (col < row)
    before = (col < C // 2) & (col >= row)
    return after.to(tl.float32) - before.to(tl.float32)


# Ways to multiply float32 tiles made of 16-bit inputs. The forward kernel cuts them in two pieces
# of bfloat16: 0.72 ms, where TF32, at half the rate and without rounding, took 0.82
# (docs/designs_wkv6.md). The backward kernels take TF32 for bfloat16: they have no registers left
# for a second tile a factor. float16 deserves more than numbers cut off to 11 bits, a bias of 1e-3
# in the end: it gets pieces again, or where one factor is given, TF32 with the other one rounded.


@triton.jit
def product(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """b_sum + b_x b_y, to the precision that inputs of a DTYPE deserve.

    Rounding a factor to bfloat16 costs as much as rounding the result to it, so for 16-bit inputs
    float32 tiles are multiplied in two pieces; given bfloat16 fits in one. Two pieces hold a given
    float16 too. (TF32 would drop 13 bits instead of rounding them, a bias of 1e-3 in the end.)
    """
    if DTYPE == tl.float32:
        return tl.dot(b_x, b_y, b_sum, input_precision="tf32x3")
    elif b_y.dtype == tl.bfloat16:
        b_high, b_low = in_two(b_x)
        return tl.dot(b_low, b_y, tl.dot(b_high, b_y, b_sum))
    else:
        b_high, b_low = in_two(b_x)
        if b_y.dtype == tl.float16:
            b_up, b_down = nearest_two(b_y.to(tl.float32))
        else:
            b_up, b_down = in_two(b_y)
        b_sum = tl.dot(b_high, b_down, tl.dot(b_high, b_up, b_sum))
        return tl.dot(b_low, b_up, b_sum)


@triton.jit
def product_tf32(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """b_sum + b_x b_y as inputs of a DTYPE deserve: 11 bits, of TF32, suffice for bfloat16.

    Numbers of 16 bits lose nothing in TF32; where both factors have them, their own unit is faster.
    """
    if b_x.dtype == b_y.dtype and b_x.dtype != tl.float32:
        return tl.dot(b_x, b_y, b_sum)
    elif DTYPE == tl.bfloat16:
        return tl.dot(b_x.to(tl.float32), b_y.to(tl.float32), b_sum, input_precision="tf32")
    else:
        return product(b_x.to(tl.float32), b_y.to(tl.float32), b_sum, DTYPE)
