"""Prefix sums."""

import numpy as np
from numba import cuda, float32

from . import case

X, Y = np.arange(128, dtype="f4"), np.zeros(128, "f4")


@case(1, 64, X, Y)
@cuda.jit
def scan_in_two_buffers(x, y):
    s = cuda.shared.array((2, 64), float32)
    t, now, step = cuda.threadIdx.x, 0, 1
    s[0, t] = x[t]
    while step < 64:
        cuda.syncthreads()
        other = 1 - now
        s[other, t] = s[now, t]
        if t >= step:
            s[other, t] += s[now, t - step]
        now, step = other, 2 * step
    y[t] = s[now, t]


@case(1, 64, X, Y)
@cuda.jit
def scan_in_place(x, y):
    s = cuda.shared.array(64, float32)
    t, step = cuda.threadIdx.x, 1
    s[t] = x[t]
    while step < 64:
        cuda.syncthreads()
        before = s[t - step] if t >= step else float32(0)
        cuda.syncthreads()
        s[t] += before
        step *= 2
    y[t] = s[t]


@case(1, 64, X, Y, planted="one barrier where two are needed", finds="race on s")
@cuda.jit
def scan_in_place_with_one_barrier(x, y):
    s = cuda.shared.array(64, float32)
    t, step = cuda.threadIdx.x, 1
    s[t] = x[t]
    while step < 64:
        cuda.syncthreads()
        if t >= step:
            s[t] += s[t - step]
        step *= 2
    y[t] = s[t]


@case(4, 32, X, Y, np.zeros(4, "f4"))
@cuda.jit
def scan_of_the_grid(x, y, sums):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for n in range(32):
            total += x[32 * b + n]
            y[32 * b + n] = total
        sums[b] = total
    cuda.cg.this_grid().sync()
    carry = float32(0)
    for n in range(b):
        carry += sums[n]
    y[cuda.grid(1)] += carry


@case(4, 32, X, Y, np.zeros(4, "f4"),
      planted="a barrier of the block between blocks", finds="race on sums")  # fmt: skip
@cuda.jit
def scan_of_the_grid_in_one_launch(x, y, sums):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for n in range(32):
            total += x[32 * b + n]
            y[32 * b + n] = total
        sums[b] = total
    cuda.syncthreads()
    carry = float32(0)
    for n in range(b):
        carry += sums[n]
    y[cuda.grid(1)] += carry
