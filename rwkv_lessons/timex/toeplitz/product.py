"""A matrix product on tensor cores that keeps float32, and the weights laid out for it."""

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch

SHIFTS = 8  # copies of w: 8 numbers of 16 bits are the 16 bytes that one copy to shared memory has
BLOCK = 1024


@triton.jit
def product(a, b, acc, SHORT: tl.constexpr):
    """acc + a b; SHORT: float32 as six products of bfloat16, else (in an interpreter) as one.

    a = a₁ + a₂ + a₃ of 8 bits each, exactly; of nine products the last three are below 2⁻²⁴.
    Tensor cores round every addition down: the small ones come first, and acc gets the sum of a
    tile by ordinary additions.
    """
    if a.dtype.primitive_bitwidth == 32:
        if SHORT:
            a1, a2, a3 = pieces(a)
            b1, b2, b3 = pieces(b)
            part = tl.dot(a1, b3)
            part = tl.dot(a2, b2, part)
            part = tl.dot(a3, b1, part)
            part = tl.dot(a1, b2, part)
            part = tl.dot(a2, b1, part)
            acc += tl.dot(a1, b1, part)
        else:
            acc += tl.dot(a, b, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def pieces(x):
    """Three numbers of bfloat16 whose sum is x."""
    x1 = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    rest = x - x1
    x2 = (rest.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return x1.to(tl.bfloat16), x2.to(tl.bfloat16), (rest - x2).to(tl.bfloat16)


@assembled
@triton.jit(do_not_specialize=["T", "P8", "START"])
def timex_shifted_kernel(w, out, T, P8, START, SHIFTS: tl.constexpr, BLOCK: tl.constexpr):
    i_p, blocks = tl.program_id(0), tl.cdiv(P8 * 8, BLOCK)
    i_c = (i_p // blocks).to(tl.int64)
    o_n = i_p % blocks * BLOCK + tl.arange(0, BLOCK)
    for s in tl.static_range(SHIFTS):
        at = o_n + s - START
        b_w = tl.load(w + i_c * T + at, (at >= 0) & (at < T), 0.0)
        tl.store(out + (i_c * SHIFTS + s) * (P8 * 8) + o_n, b_w, o_n < P8 * 8)


def shifted(w, tile):
    """w eight times, each copy shifted by one more, with zeros around: `[C, 8, P]`.

    Number T rounded up + margin(tile) of copy 0 is w[c, T-1], the weight of distance 0. From some
    copy every run of weights then starts at a multiple of 16 bytes.
    """
    C, T = w.shape
    start = margin(tile) + triton.cdiv(T, 8) * 8 - (T - 1)
    P8 = triton.cdiv(start + T + 2 * tile, 8)
    out = torch.empty(C, SHIFTS, P8 * 8, dtype=w.dtype, device=w.device)
    programs = C * triton.cdiv(P8 * 8, BLOCK)
    launch(timex_shifted_kernel, programs, 4, (w, out), (T, P8, start), (SHIFTS, BLOCK))
    return out, P8


def margin(tile):
    """Zeros before the weights: tiles reach as far beyond distance T, and start at multiples."""
    return 2 * tile + SHIFTS


def is_short(kernel):
    """Whether float32 is taken as shorter numbers: an interpreter cannot multiply bfloat16."""
    return isinstance(kernel, triton.runtime.JITFunction)
