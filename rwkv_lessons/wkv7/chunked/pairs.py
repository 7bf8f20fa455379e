"""What the tokens of a chunk read of each other, and the gradients of that, in Triton.

Two inputs read the state, a and r, and two are written to it, b and k. Tiles hold both, one over
the other, `[2C, keys]`: then the four matrices of a chunk are one, with A_ab and A_ak over A_rb and
A_rk, and one product. Of a chunk of 32 it has 64 rows, which a Hopper tensor core multiplies at
once.

Token t reads token s through the decays between them, one for each key: those before t for a,
those up to t for r. Split at the middle of the chunk this is something of t times something of s;
exp(±sum) of half a chunk is a float32 while the sum is at most FITS. RWKV-7's own decays sum to 10
in 16 tokens. Where decays are stronger the chunk goes in levels, as in ../wy.py: runs of 1, 2, 4, …
tokens read the run before them, through decays to the end of the one and from the start of the
other, all of which are at most 1.

The levels take more registers than the other way has to spare. So they are a launch of their own
(STRONG), of the same kernel: the first launch marks the chunks that are to be done again. Where w
is "clamp" no decay is that strong, and there is none.
"""

import triton
import triton.language as tl

from ...sequences.tiles import LOG2E, MIN_LOG_DECAY, in_two, product, product_tf32
from ..decays import log_of

FITS = tl.constexpr(55.0)  # inputs between 2^-46 and 2^46 times exp(±FITS) are float32
LEAST_DECAY = tl.constexpr(-1.4)  # of stronger ones too little is left in dw's sums


@triton.jit
def any_marked(strong, first, count, MARKS: tl.constexpr):
    """Is one of these chunks to be done again? All marks are read at once."""
    o = first + tl.arange(0, MARKS)
    return tl.max(tl.load(strong + o, o < count, 0).to(tl.int32), 0) != 0


@triton.jit
def store(at, b_x, m):
    tl.store(at, b_x.to(at.dtype.element_ty), m)


@triton.jit
def load_both(first, second, of_first, m, DTYPE: tl.constexpr):
    """A tile of two tensors: rows `of_first`, [D, 1], come from addresses `first`."""
    if first.dtype.element_ty == second.dtype.element_ty:
        return tl.load(tl.where(of_first, first, second), m, 0.0).to(DTYPE)
    else:
        b_x = tl.load(first, m & of_first, 0.0).to(DTYPE)
        return tl.where(of_first, b_x, tl.load(second, m & ~of_first, 0.0).to(DTYPE))


@triton.jit
def store_both(first, second, b_x, of_first, m):
    store(tl.where(of_first, first, second), b_x, m)


@triton.jit
def log_decay(at, m_w, DECAY: tl.constexpr):
    """The log decays at these addresses, with a number for -inf, and 0 outside the mask."""
    b_w = log_of(tl.load(at, m_w, 0.0), m_w, DECAY)
    least = tl.full([], MIN_LOG_DECAY, tl.float32)
    return tl.where(b_w.to(tl.float32) < least, least.to(b_w.dtype), b_w)


@triton.jit
def log_decay_of_sum(at, m_w, w0, o_w0, m_w0, DECAY: tl.constexpr):
    """The same of w0 + w."""
    b_w = tl.load(at, m_w, 0.0).to(tl.float32) + tl.load(w0 + o_w0, m_w0, 0.0).to(tl.float32)
    b_w = log_of(tl.where(m_w, b_w, 0.0), m_w, DECAY)
    least = tl.full([], MIN_LOG_DECAY, tl.float32)
    return tl.where(b_w < least, least, b_w)


@triton.jit
def exp(b_x):
    """As tl.exp, which keeps numbers below 2^-126 for three more instructions."""
    return tl.exp2(b_x * LOG2E)


@triton.jit
def stored(b_x, DTYPE: tl.constexpr):
    """A tile as it is kept and multiplied: in bfloat16 for bfloat16 inputs, else in float32."""
    return b_x.to(tl.bfloat16 if DTYPE == tl.bfloat16 else tl.float32)


@triton.jit
def stored_product(b_x, b_y, b_sum, DTYPE: tl.constexpr):
    """b_sum + b_x b_y of factors that are `stored`."""
    if DTYPE == tl.bfloat16:
        return tl.dot(b_x.to(tl.bfloat16), b_y.to(tl.bfloat16), b_sum)
    else:
        return product(b_x.to(tl.float32), b_y.to(tl.float32), b_sum, DTYPE)


@triton.jit
def parts(b_x, DTYPE: tl.constexpr):
    """What `sums` add up of a tile: of float32 numbers, 16 of 24 bits if inputs have 16 bits."""
    if DTYPE == tl.float32:
        return (b_x.to(tl.float32),)
    elif b_x.dtype == tl.float32:
        return in_two(b_x)
    else:
        return (b_x,)


@triton.jit
def sums(weights, b_x, b_sum, DTYPE: tl.constexpr):
    """b_sum + sums over tokens, with weights of -1, 0 and 1, as a matrix product."""
    b_parts = parts(b_x, DTYPE)
    for i in tl.static_range(len(b_parts)):
        m = weights.to(b_parts[i].dtype)
        b_sum = tl.dot(m, b_parts[i], b_sum, input_precision="tf32x3")
    return b_sum


@triton.jit
def sums_by_token(b_x, weights, b_sum, DTYPE: tl.constexpr):
    """As `sums`, of a tile with a column for each token: b_sum + b_x times weights."""
    b_parts = parts(b_x, DTYPE)
    for i in tl.static_range(len(b_parts)):
        m = weights.to(b_parts[i].dtype)
        b_sum = tl.dot(b_parts[i], m, b_sum, input_precision="tf32x3")
    return b_sum


@triton.jit
def run_weights(t, until, token, run):
    """Of the decays from a run's start to `until`, and from after token t to the run's end."""
    same = t // run == token // run
    return same & (token < until), same & (token > t)


@triton.jit
def is_pair(row, col, run):
    """Where a run of tokens (row) reads the run before it, of the same pair of runs (col)."""
    return (row // run == col // run + 1) & (col // run % 2 == 0)


@triton.jit
def level_products(b_x, b_y, b_w, t, until, col, s, C: tl.constexpr, DTYPE: tl.constexpr):
    """The four matrices of a chunk, `[2C, 2C]`, for any w ≤ 0; what is above the diagonals is 0.

    b_x: a over r; b_y: b over k; b_w: `[C, keys]`. t, until, s: of each row its token and the first
    one whose decay it does not read through, of each column its token. col: [1, C].
    """
    b_none = tl.zeros([2 * C, 2 * C], tl.float32)
    own = (s == t) & (until > t)  # r reads what its own token wrote
    b_m = tl.where(own, product_tf32(b_x, tl.trans(b_y), b_none, DTYPE), 0.0)
    run = 1
    while run < C:
        of_x, of_y = run_weights(t, until, col, run)
        b_xd, b_yd = exp(sums(of_x, b_w, None, DTYPE)), exp(sums(of_y, b_w, None, DTYPE))
        b_level = product_tf32(b_x * b_xd, tl.trans(b_y * b_yd), b_none, DTYPE)
        b_m += tl.where(is_pair(t, s, run), b_level, 0.0)
        run *= 2
    return b_m


@triton.jit
def gradients_in_levels(
    b_x, b_y, b_w, b_dm, t, until, s, until_s, row, C: tl.constexpr, DTYPE: tl.constexpr
):
    """Of b_x and b_y, `[keys, 2C]`, and of w, `[keys, C]`, from those of the matrices.

    For any w ≤ 0: dw is a sum over the decays that it is part of. b_dm: what is read in rows, of
    tokens s, and what reads it in columns, of tokens t. row: [C, 1].
    """
    col, b_none = tl.trans(row), tl.zeros(b_x.shape, tl.float32)
    b_own = tl.where((s == t) & (until > t), b_dm, 0.0)
    b_dx = product_tf32(b_y, b_own, b_none, DTYPE)
    b_dy = product_tf32(b_x, tl.trans(b_own), b_none, DTYPE)
    b_dw = tl.zeros([b_x.shape[0], C], tl.float32)
    run = 1
    while run < C:
        of_x, of_y = run_weights(t, until, row, run)
        b_xd = exp(sums_by_token(b_w, of_x, None, DTYPE))
        b_yd = exp(sums_by_token(b_w, of_y, None, DTYPE))
        b_level = tl.where(is_pair(t, s, run), b_dm, 0.0)
        b_xr, b_yr = b_x * b_xd, b_y * b_yd
        b_dxr = product_tf32(b_yr, b_level, b_none, DTYPE)
        b_dyr = product_tf32(b_xr, tl.trans(b_level), b_none, DTYPE)
        b_dx, b_dy = b_dx + b_dxr * b_xd, b_dy + b_dyr * b_yd
        of_x, of_y = run_weights(s, until_s, col, run)
        b_dw = sums_by_token(b_xr * b_dxr, of_x, b_dw, DTYPE)
        b_dw = sums_by_token(b_yr * b_dyr, of_y, b_dw, DTYPE)
        run *= 2
    return b_dx, b_dy, b_dw


@triton.jit
def quarters(b_m, C: tl.constexpr):
    """A_ab, A_ak, A_rb and A_rk, `[C, C]`, of the matrix of both."""
    b_m = tl.permute(tl.reshape(b_m, [2, C, 2, C]), [1, 3, 0, 2])
    b_b, b_k = tl.split(b_m)  # what reads b, and what reads k
    b_ab, b_rb = tl.split(b_b)
    b_ak, b_rk = tl.split(b_k)
    return b_ab, b_ak, b_rb, b_rk


@triton.jit
def left_right(b_x, C: tl.constexpr):
    """The columns of each of the two inputs of a tile [keys, 2C]."""
    return tl.split(tl.permute(tl.reshape(b_x, [b_x.shape[0], 2, C]), [0, 2, 1]))


@triton.jit
def beside(b_x, b_y):
    """A tile [keys, 2C] of two of [keys, C]."""
    b_x = tl.permute(tl.join(b_x, b_y), [0, 2, 1])
    return tl.reshape(b_x, [b_x.shape[0], 2 * b_x.shape[2]])


@triton.jit
def upper_lower(b_x, C: tl.constexpr):
    """The upper and the lower half of a tile [2C, keys]."""
    return tl.split(tl.permute(tl.reshape(b_x, [2, C, b_x.shape[1]]), [1, 2, 0]))


@triton.jit
def blocks_times(b_x, b_y):
    """Each block of rows of b_x times b_y, which is one block of rows."""
    R: tl.constexpr = b_x.shape[0] // b_y.shape[0]
    b_z = tl.reshape(b_x, [R, b_y.shape[0], b_y.shape[1]]) * b_y[None, :, :]
    return tl.reshape(b_z, b_x.shape)


@triton.jit
def inverse(b_x, row, col, C: tl.constexpr, DTYPE: tl.constexpr):
    """(I - b_x)⁻¹ of a strictly lower triangular matrix, by blocks.

    Of two neighbouring runs of tokens, with the inverses L and R of each, it is
    [[L, 0], [R X L, R]]. That adds and multiplies numbers of the inverse alone: the sum of the
    powers of b_x, as many products, would make numbers of 10⁸ out of ones, and cancel them.
    """
    b_none = tl.zeros([C, C], tl.float32)
    b_inverse = tl.where(is_pair(row, col, 1), b_x, tl.where(row == col, 1.0, 0.0))
    for n in tl.static_range(1, 6):
        if 2**n < C:
            b_low = tl.where(is_pair(row, col, 2**n), b_x, 0.0)
            b_low = product_tf32(b_low, b_inverse, b_none, DTYPE)
            b_inverse = product_tf32(b_inverse, b_low, b_inverse, DTYPE)
    return b_inverse
