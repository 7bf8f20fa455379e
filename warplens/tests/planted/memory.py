"""Local and dynamic shared memory, and loops over a grid."""

import numpy as np
from numba import cuda, float32

from . import case

X, Y = np.ones(128, "f4"), np.zeros(32, "f4")


@case(1, 32, X, Y)
@cuda.jit
def sums_in_local_memory(x, y):
    part = cuda.local.array(2, float32)
    part[0], part[1] = 0, 0
    for n in range(4):
        part[n % 2] += x[32 * n + cuda.threadIdx.x]
    y[cuda.threadIdx.x] = part[0] + part[1]


@case(1, 32, X, Y, planted="one of two local sums is never set", finds="UninitialisedRead")
@cuda.jit
def sums_from_nothing(x, y):
    part = cuda.local.array(2, float32)
    part[0] = 0
    for n in range(4):
        part[n % 2] += x[32 * n + cuda.threadIdx.x]
    y[cuda.threadIdx.x] = part[0] + part[1]


@case(1, 32, X, Y, sharedmem=128)
@cuda.jit
def reversed_in_dynamic_memory(x, y):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[31 - t]


@case(1, 32, X, Y, sharedmem=64,
      planted="the launch brings half of the shared memory", finds="OutOfBounds")  # fmt: skip
@cuda.jit
def too_little_dynamic_memory(x, y):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[31 - t]


@case(2, 32, X, np.zeros(128, "f4"))
@cuda.jit
def stride_of_the_grid(x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = 2 * x[i]


@case(2, 32, X, np.zeros(128, "f4"), planted="the index never grows", finds="EndlessLoop")
@cuda.jit
def stride_of_nothing(x, y):
    i = cuda.grid(1)
    while i < x.size:
        y[i] = 2 * x[i]
