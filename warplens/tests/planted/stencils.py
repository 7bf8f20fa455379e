"""Stencils: each element from its neighbours."""

import numpy as np
from numba import cuda, float32

from . import case

X, Y = np.arange(64, dtype="f4"), np.zeros(64, "f4")


@case(2, 32, X, Y)
@cuda.jit
def smooth(x, y):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        y[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


@case(2, 32, X, planted="in place: neighbours may be the new or the old ones", finds="race on x")
@cuda.jit
def smooth_in_place(x):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        x[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


@case(2, 32, X, Y, planted="thread 0 reads x[-1]", finds="OutOfBounds")
@cuda.jit
def smooth_from_the_first(x, y):
    i = cuda.grid(1)
    if i < x.size - 1:
        y[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


@case(2, 32, X, Y)
@cuda.jit
def smooth_with_a_halo(x, y):
    s = cuda.shared.array(34, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    s[t + 1] = x[i]
    if t == 0:
        s[0] = x[i - 1] if i > 0 else 0
    if t == 31:
        s[33] = x[i + 1] if i + 1 < x.size else 0
    cuda.syncthreads()
    y[i] = (s[t] + s[t + 1] + s[t + 2]) / 3


@case(2, 32, X, Y, planted="nobody loads the halo", finds="UninitialisedRead")
@cuda.jit
def smooth_with_an_empty_halo(x, y):
    s = cuda.shared.array(34, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    s[t + 1] = x[i]
    cuda.syncthreads()
    y[i] = (s[t] + s[t + 1] + s[t + 2]) / 3
