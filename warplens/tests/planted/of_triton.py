"""Kernels of Triton: what one program does out of bounds, or to another program."""

import torch
import triton
import triton.language as tl

from . import case

X, Y, ONE = torch.arange(100.0), torch.zeros(100), torch.zeros(1)


@case(4, X, Y, 100, BLOCK=32)
@triton.jit
def scaled(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, o < n), o < n)


@case(4, X, Y, 100, BLOCK=32, planted="a load without its mask", finds="OutOfBounds")
@triton.jit
def scaled_without_a_mask(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o), o < n)


@case(4, X, Y, 100, BLOCK=32, planted="blocks overlap by one element", finds="race on y")
@triton.jit
def scaled_with_an_overlap(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, o < n), o < n)


@case(3, X, planted="each program reads what the next one writes", finds="race on x", BLOCK=32)
@triton.jit
def shifted_in_place(x, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + o, tl.load(x + o + 1))


@case(4, X, ONE, 100, BLOCK=32)
@triton.jit
def total(x, sum, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sum, tl.sum(tl.load(x + o, o < n, 0.0), 0))


@case((2, 2), X.view(10, 10), Y.view(10, 10), 10, BLOCK=8)
@triton.jit
def transposed(x, y, n, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    j = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (i < n) & (j < n)
    tl.store(y + j * n + i, tl.load(x + i * n + j, inside), inside)
