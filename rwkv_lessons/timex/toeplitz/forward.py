"""Time-x as a matrix product: the weights of a channel are a lower triangular Toeplitz matrix.

    o[c] = eps + W[c] k[c]ᵀ        W[c][t, u] = w[c, T-1-(t-u)] for u ≤ t, else 0

Tiles of W that are equally far below the diagonal are the same tile. So a program, which has BB
batch rows and R neighbouring tiles of L tokens, takes the tiles of W by their distance D·U, and
multiplies each once with the R·BB columns that lie so far back in time. Columns for which that is
before the first token are zeros: (R-1)/2 products of each R in vain for every program.

A tile of W has its rows shifted by one number each. Of w in eight copies, shifted by one each
(product.py), every such row starts at a multiple of 16 bytes in one of them: so tiles come by
asynchronous copies of 16 bytes, as k does, with zeros from around the copies and without masks.
dk is the same product with the transposed tiles, from the distances forward in time.

Memory: k is read once for each tile of tokens after it, from L2, programs of many tiles first; so
is each tile of W once for each program. What bounds it: those reads, 390 MB at 32, 768, 768 in
16 bits, and products in float32, which are six for each.
"""

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...runtime.operators import call
from ..arguments import check_arguments
from ..fft import timex_fft
from ..operators import define
from .backward import correlate
from .product import is_short, margin, product, shifted

L = 64  # tokens t of a tile: 64 rows are what one instruction of Hopper's tensor cores takes
TOKENS = {True: 32, False: 64}  # u at a time; True: float32, whose pieces have to fit in registers
COLUMNS = {True: 64, False: 128}  # of a product: tiles times batch rows
WARPS, STAGES = 4, 3
MAX_ROWS, MAX_TILES = 64, 8


@assembled
@triton.jit(do_not_specialize=["eps", "B", "C", "T", "P8"])
def timex_toeplitz_kernel(
    w8, k, o, eps, B, C, T, P8,
    L: tl.constexpr, U: tl.constexpr, R: tl.constexpr, BB: tl.constexpr, MARGIN: tl.constexpr,
    BACKWARDS: tl.constexpr, ALIGNED: tl.constexpr, SHORT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    if ALIGNED:  # rows then start at multiples of 16 elements: wider loads
        T = T // 16 * 16
    tiles, groups = tl.cdiv(T, L), tl.cdiv(B, BB)
    spans = tl.cdiv(tiles, R)
    i_p = tl.program_id(0)
    i_s, i_b = i_p % spans, i_p // spans % groups
    if not BACKWARDS:  # the longest first
        i_s = spans - 1 - i_s
    i_c = (i_p // (spans * groups)).to(tl.int64)

    o_p, o_q, o_n = tl.arange(0, L), tl.arange(0, U), tl.arange(0, R * BB)
    t_n = (i_s * R + o_n // BB) * L  # the first token of a column's tile
    i_n = i_b * BB + o_n % BB  # and its batch row
    rows, m_n = (i_n.to(tl.int64) * C + i_c) * T, i_n < B

    # W[p, q] stands p - q before the weight of distance D U, or q - p: W transposed.
    w_c = w8 + i_c * 8 * (P8 * 8) + (T + 7) // 8 * 8 + MARGIN
    if BACKWARDS:
        end = (T - i_s * R * L + U - 1) // U
        at = ((-o_q) & 7)[None, :] * (P8 * 8) - (o_q[None, :] + 7) // 8 * 8 + o_p[:, None]
    else:
        end = tl.minimum(i_s * R + R, tiles) * L // U
        at = ((-o_p) & 7)[:, None] * (P8 * 8) - (o_p[:, None] + 7) // 8 * 8 + o_q[None, :]
        w_c += L - U  # of the last U tokens in the tile of t

    b_o = tl.full([L, R * BB], 0.0, tl.float32) + eps
    for D in tl.range(0, end, num_stages=STAGES):
        u_n = t_n + D * U if BACKWARDS else t_n + (L - U) - D * U
        o_u = u_n[None, :] + o_q[:, None]
        b_w = tl.load(w_c - D * U + at)
        b_k = tl.load(k + rows[None, :] + o_u, ((u_n >= 0) & m_n)[None, :] & (o_u < T), 0.0)
        if w8.dtype.element_ty != k.dtype.element_ty:
            b_w, b_k = b_w.to(tl.float32), b_k.to(tl.float32)
        b_o = product(b_w, b_k, b_o, SHORT)

    o_t = t_n[None, :] + o_p[:, None]
    tl.store(o + rows[None, :] + o_t, b_o.to(o.dtype.element_ty), m_n[None, :] & (o_t < T))


def convolve(w, k, eps, backwards):
    """o of `timex`, or, backwards, what each token of k has in the outputs: dk of k = do."""
    B, C, T = k.shape
    in_float32 = torch.float32 in (w.dtype, k.dtype)
    R, BB = columns_for(B, triton.cdiv(T, L), COLUMNS[in_float32])
    o, (w8, P8) = torch.empty_like(k), shifted(w, L)
    programs = C * triton.cdiv(triton.cdiv(T, L), R) * triton.cdiv(B, BB)
    short = is_short(timex_toeplitz_kernel)
    constants = L, TOKENS[in_float32], R, BB, margin(L), backwards, T % 16 == 0, short, STAGES
    launch(timex_toeplitz_kernel, programs, WARPS, (w8, k, o), (eps, B, C, T, P8), constants)
    return o


def columns_for(B, tiles, most):
    """Tiles and batch rows of a program, powers of 2, whose product is 16 at least."""
    BB = min(MAX_ROWS, triton.next_power_of_2(B))
    R = min(MAX_TILES, most // BB, triton.next_power_of_2(tiles))
    return R, max(BB, 16 // R)


OPERATOR = define("toeplitz", convolve, correlate)


def timex_toeplitz(w, k, eps=0.0):
    """Same arguments and results as `timex`, on tensor cores; spectra on a CPU and in float64.

    Float32 is multiplied as six products of bfloat16, which keep all of its 24 bits; sums are
    float32. Where w has another dtype than k, both are taken as float32.
    """
    check_arguments(w, k, eps)
    if not k.is_cuda or torch.float64 in (w.dtype, k.dtype):
        return timex_fft(w, k, eps)
    return call(OPERATOR, w, k, float(eps))
