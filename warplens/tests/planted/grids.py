"""Blocks that wait for each other, or should."""

import numpy as np
from numba import cuda

from . import case

X, Y = np.zeros(32, "f4"), np.zeros(32, "f4")


@case(4, 8, X, Y)
@cuda.jit
def mirrored(x, y):
    i = cuda.grid(1)
    x[i] = i
    cuda.cg.this_grid().sync()
    y[i] = x[x.size - 1 - i]


@case(4, 8, X, Y, planted="blocks do not wait for each other", finds="race on x")
@cuda.jit
def mirrored_after_a_barrier_of_the_block(x, y):
    i = cuda.grid(1)
    x[i] = i
    cuda.syncthreads()
    y[i] = x[x.size - 1 - i]


@case(4, 8, X, Y, planted="one block leaves before the grid's barrier", finds="DivergentBarrier")
@cuda.jit
def mirrored_by_all_but_one(x, y):
    i = cuda.grid(1)
    x[i] = i
    if cuda.blockIdx.x == 3:
        return
    cuda.cg.this_grid().sync()
    y[i] = x[i]
