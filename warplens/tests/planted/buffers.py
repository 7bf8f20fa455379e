"""Tiles that are filled while others are read."""

import numpy as np
from numba import cuda, float32

from . import case

X, Y = np.ones(256, "f4"), np.zeros(64, "f4")


@case(1, 64, X, Y)
@cuda.jit
def two_buffers(x, y):
    s = cuda.shared.array((2, 64), float32)
    t, total = cuda.threadIdx.x, float32(0)
    s[0, t] = x[t]
    for n in range(4):
        cuda.syncthreads()
        if n < 3:
            s[(n + 1) % 2, t] = x[64 * (n + 1) + t]
        total += s[n % 2, 63 - t]
    y[t] = total


@case(1, 64, X, Y, planted="the tile that is read is the one being filled", finds="race on s")
@cuda.jit
def two_buffers_mixed_up(x, y):
    s = cuda.shared.array((2, 64), float32)
    t, total = cuda.threadIdx.x, float32(0)
    s[0, t] = x[t]
    s[1, t] = x[64 + t]
    for n in range(3):
        cuda.syncthreads()
        s[(n + 1) % 2, t] = x[64 * (n + 1) + t]
        total += s[(n + 1) % 2, 63 - t]
    y[t] = total


@case(1, 64, X, Y, planted="one buffer and one barrier for each tile", finds="race on s")
@cuda.jit
def one_buffer(x, y):
    s = cuda.shared.array(64, float32)
    t, total = cuda.threadIdx.x, float32(0)
    for n in range(4):
        s[t] = x[64 * n + t]
        cuda.syncthreads()
        total += s[63 - t]
    y[t] = total


@case(1, 64, X, Y)
@cuda.jit
def three_buffers(x, y):
    s = cuda.shared.array((3, 64), float32)
    t, total = cuda.threadIdx.x, float32(0)
    for n in range(4):
        s[n % 3, t] = x[64 * n + t]
        cuda.syncthreads()
        total += s[n % 3, 63 - t]
    y[t] = total
