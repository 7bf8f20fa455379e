"""Histograms in shared and in global memory."""

import numpy as np
from numba import cuda, int32

from . import case

X, COUNTS = np.arange(128, dtype="i4") * 7 % 16, np.zeros(16, "i4")


@case(2, 64, X, COUNTS)
@cuda.jit
def private_histogram(x, counts):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


@case(2, 64, X, COUNTS, planted="bins are counted without an atomic", finds="race on s")
@cuda.jit
def histogram_without_atomics(x, counts):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()
    s[x[cuda.grid(1)]] += 1
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


@case(2, 64, X, COUNTS, planted="no barrier before the bins are read", finds="race on s")
@cuda.jit
def histogram_read_too_early(x, counts):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, x[cuda.grid(1)], 1)
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


@case(2, 64, X, COUNTS, planted="the bins are never set to 0", finds="UninitialisedRead")
@cuda.jit
def histogram_from_nothing(x, counts):
    s = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    cuda.syncthreads()
    cuda.atomic.add(s, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


@case(2, 64, X, COUNTS)
@cuda.jit
def global_histogram(x, counts):
    cuda.atomic.add(counts, x[cuda.grid(1)], 1)


@case(2, 64, X, COUNTS, planted="a value of 16 has no bin", finds="OutOfBounds")
@cuda.jit
def histogram_shifted_by_one(x, counts):
    cuda.atomic.add(counts, x[cuda.grid(1)] + 1, 1)
