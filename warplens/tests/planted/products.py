"""Products and transposes of matrices through tiles in shared memory."""

import numpy as np
from numba import cuda, float32

from . import case

A, B, C = np.ones((20, 20), "f4"), np.ones((20, 20), "f4"), np.zeros((20, 20), "f4")
X, Y = np.ones((16, 16), "f4"), np.zeros((16, 16), "f4")


@case((3, 3), (8, 8), A, B, C)
@cuda.jit
def product(a, b, c):
    s_a, s_b = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, col = cuda.blockIdx.y * 8 + i, cuda.blockIdx.x * 8 + j
    total = float32(0)
    for k in range(0, 24, 8):
        s_a[i, j] = a[row, k + j] if row < 20 and k + j < 20 else 0
        s_b[i, j] = b[k + i, col] if k + i < 20 and col < 20 else 0
        cuda.syncthreads()
        for n in range(8):
            total += s_a[i, n] * s_b[n, j]
        cuda.syncthreads()
    if row < 20 and col < 20:
        c[row, col] = total


@case((2, 2), (8, 8), X, X, Y,
      planted="no barrier before the next tile", finds="race on s_b")  # fmt: skip
@cuda.jit
def product_with_one_barrier(a, b, c):
    s_a, s_b = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, col = cuda.blockIdx.y * 8 + i, cuda.blockIdx.x * 8 + j
    total = float32(0)
    for k in range(0, 16, 8):
        s_a[i, j] = a[row, k + j]
        s_b[i, j] = b[k + i, col]
        cuda.syncthreads()
        for n in range(8):
            total += s_a[i, n] * s_b[n, j]
    c[row, col] = total


@case((3, 3), (8, 8), A, C, planted="the last tile has no bounds check", finds="OutOfBounds")
@cuda.jit
def copy_without_a_check(a, c):
    row, col = cuda.grid(2)
    c[row, col] = a[row, col]


@case((2, 2), (8, 8), X, Y)
@cuda.jit
def transpose(x, y):
    s = cuda.shared.array((8, 9), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    s[i, j] = x[cuda.blockIdx.y * 8 + i, cuda.blockIdx.x * 8 + j]
    cuda.syncthreads()
    y[cuda.blockIdx.x * 8 + i, cuda.blockIdx.y * 8 + j] = s[j, i]


@case((2, 2), (8, 8), X, Y, planted="no barrier at all", finds="race on s")
@cuda.jit
def transpose_without_a_barrier(x, y):
    s = cuda.shared.array((8, 9), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    s[i, j] = x[cuda.blockIdx.y * 8 + i, cuda.blockIdx.x * 8 + j]
    y[cuda.blockIdx.x * 8 + i, cuda.blockIdx.y * 8 + j] = s[j, i]
