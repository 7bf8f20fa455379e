"""The gradient of w as matrix products over the batch, whose diagonals are added up.

    dw[c, T-1-d] = Σ_b Σ_t do[b, c, t] k[b, c, t-d] = Σ_{t-u = d} S[t, u]      S = do[c]ᵀ k[c]

A tile of L × L of S, D tiles below the diagonal, has distances D·L - (L-1) … D·L + (L-1), and so
have all tiles as far below it. So a program, which has a channel and a D, adds up all of these in
one accumulator, over tokens and batch, and takes the sums along its diagonals once, at the end:
row p is turned by p, and column j then holds distance D·L + j from row j on, and (D-1)·L + j above.
The two are stored apart, and added outside: every distance has two addends.

What bounds it: reads of do and k from L2, and products in float32. Programs of few tiles come last.
"""

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from .product import is_short, product

L = 64  # tokens along both sides of a tile
WARPS, STAGES = 4, 3
MAX_ROWS = 32  # batch rows of a product


@assembled
@triton.jit(do_not_specialize=["B", "C", "T"])
def timex_toeplitz_dw_kernel(
    do, k, parts, B, C, T,
    L: tl.constexpr, BB: tl.constexpr, ALIGNED: tl.constexpr, SHORT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    if ALIGNED:  # rows then start at multiples of 16 elements: wider loads
        T = T // 16 * 16
    tiles, groups = tl.cdiv(T, L), tl.cdiv(B, BB)
    i_p = tl.program_id(0)
    i_d, i_c = i_p % tiles, (i_p // tiles).to(tl.int64)

    o_p, o_b = tl.arange(0, L), tl.arange(0, BB)
    b_s = tl.zeros([L, L], tl.float32)
    for step in tl.range(0, (tiles - i_d) * groups, num_stages=STAGES):
        i_u, i_b = step // groups, step % groups * BB
        rows, m_b = ((i_b + o_b).to(tl.int64) * C + i_c) * T, i_b + o_b < B
        o_t, o_u = (i_u + i_d) * L + o_p, i_u * L + o_p
        b_do = tl.load(do + o_t[:, None] + rows[None, :], (o_t < T)[:, None] & m_b[None, :], 0.0)
        b_k = tl.load(k + rows[:, None] + o_u[None, :], m_b[:, None] & (o_u < T)[None, :], 0.0)
        b_s = product(b_do, b_k, b_s, SHORT)

    turned = tl.gather(b_s, (o_p[:, None] - o_p[None, :]) & (L - 1), 1)
    below = o_p[:, None] >= o_p[None, :]
    b_here = tl.sum(tl.where(below, turned, 0.0), 0)
    b_before = tl.sum(tl.where(below, 0.0, turned), 0)  # of the distances of tile D - 1
    last = i_c * T + T - 1 - o_p
    d = i_d * L
    tl.store(parts + last - d, b_here, d + o_p < T)
    # Before distance 0 there is none; what lies beyond the last tile gets zeros instead.
    before = tl.where(i_d > 0, d - L, (tiles - 1) * L)
    b_before = tl.where(i_d > 0, b_before, 0.0)
    tl.store(parts + C * T + last - before, b_before, before + o_p < T)


def correlate(do, k):
    """dw `[C, T]`, float32, of `timex`."""
    B, C, T = k.shape
    BB = min(MAX_ROWS, max(16, triton.next_power_of_2(B)))
    parts = torch.empty(2, C, T, dtype=torch.float32, device=k.device)
    short = is_short(timex_toeplitz_dw_kernel)
    constants, programs = (L, BB, T % 16 == 0, short, STAGES), C * triton.cdiv(T, L)
    tensors = do.to(k.dtype), k, parts
    launch(timex_toeplitz_dw_kernel, programs, WARPS, tensors, (B, C, T), constants)
    return parts[0] + parts[1]
