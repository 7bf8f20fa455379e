"""Time-x as a matrix product: the weights of a channel are a lower triangular Toeplitz matrix.

    o[c] = eps + W[c] k[c]ᵀ        W[c][t, u] = w[c, T-1-(t-u)] for u ≤ t, else 0

with the batch as columns. A program has BT tokens of a channel and BB batch rows. It goes through
the tokens before them, BU at a time, and makes each tile of W in registers, from the BT + BU - 1
numbers of w that stand in it: neighbouring threads read neighbouring numbers, from L1. Only tiles
on the diagonal hold zeros; whole tiles above it are never made.

Memory: k is read once for each BT tokens after it, from L2, as programs of a channel are
neighbours, the longest first. What bounds it: products, B·C·T²/2 multiply-adds and half a tile for
each tile of the diagonal. Float32 is taken as three TF32 products; 16 bits as one.
"""

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ..arguments import check_arguments
from ..fft import timex_fft
from ..operators import define
from .backward import correlate

BT, BU = 64, 64  # 64 rows are what one instruction of Hopper's tensor cores takes
WARPS = 4
MOST_ROWS = 64  # batch rows of a program


@assembled
@triton.jit(do_not_specialize=["eps", "B", "C", "T"])
def timex_toeplitz_kernel(
    w, k, o, eps, B, C, T,
    BT: tl.constexpr, BU: tl.constexpr, BB: tl.constexpr, REVERSED: tl.constexpr,
    ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if ALIGNED:  # rows then start at multiples of 16 elements: wider loads
        T = T // 16 * 16
    tiles, groups = tl.cdiv(T, BT), tl.cdiv(B, BB)
    i_p = tl.program_id(0)
    i_t, i_b = tiles - 1 - i_p % tiles, i_p // tiles % groups
    i_c = (i_p // (tiles * groups)).to(tl.int64)

    o_t, o_b = i_t * BT + tl.arange(0, BT), i_b * BB + tl.arange(0, BB)
    rows = (o_b.to(tl.int64) * C + i_c) * T
    m_b = o_b < B
    b_o = tl.full([BT, BB], 0.0, tl.float32) + eps
    for u0 in range(0, tl.minimum(i_t * BT + BT, T), BU):
        o_u = u0 + tl.arange(0, BU)
        at = T - 1 - (o_t[:, None] - o_u[None, :])
        b_w = tl.load(w + i_c * T + at, (at >= 0) & (at < T), 0.0)  # at ≥ T: u > t
        from_k = T - 1 - o_u if REVERSED else o_u
        b_k = tl.load(k + from_k[:, None] + rows[None, :], (o_u < T)[:, None] & m_b[None, :], 0.0)
        if w.dtype.element_ty != k.dtype.element_ty:
            b_w, b_k = b_w.to(tl.float32), b_k.to(tl.float32)
        b_o = tl.dot(b_w, b_k, b_o, input_precision=PRECISION)

    to_o = T - 1 - o_t if REVERSED else o_t
    m_o = (o_t < T)[:, None] & m_b[None, :]
    tl.store(o + to_o[:, None] + rows[None, :], b_o.to(o.dtype.element_ty), m_o)


def convolve(w, k, eps, backwards):
    """o of `timex`, with time reversed in k and in o where it runs backwards."""
    B, C, T = k.shape
    o, BB = torch.empty_like(k), rows_for(B)
    programs = C * triton.cdiv(T, BT) * triton.cdiv(B, BB)
    constants = BT, BU, BB, backwards, T % 16 == 0, "tf32x3"
    launch(timex_toeplitz_kernel, programs, WARPS, (w, k, o), (eps, B, C, T), constants)
    return o


def rows_for(B):
    """Batch rows of a program: a power of 2 that tensor cores take, from 16 on."""
    return min(MOST_ROWS, max(16, triton.next_power_of_2(B)))


OPERATOR = define("toeplitz", convolve, correlate)


def timex_toeplitz(w, k, eps=0.0):
    """Same arguments and results as `timex`, on tensor cores; spectra on a CPU and in float64.

    Float32 is multiplied as three products of TF32 each, which keep some 21 of its 24 bits; sums
    are float32. Where w has another dtype than k, both are taken as float32.
    """
    check_arguments(w, k, eps)
    if not k.is_cuda or torch.float64 in (w.dtype, k.dtype):
        return timex_fft(w, k, eps)
    return OPERATOR(w, k, float(eps))
