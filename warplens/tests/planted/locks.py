"""Spin locks between blocks."""

import numpy as np
from numba import cuda

from . import case

LOCK, TOTAL, X = np.zeros(4, "i4"), np.zeros(2, "f4"), np.ones(4, "f4")


@case(4, 32, LOCK, TOTAL, X)
@cuda.jit
def sum_under_a_lock(lock, total, x):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@case(4, 32, LOCK, TOTAL, X, planted="no fence before the lock is released", finds="race on total")
@cuda.jit
def lock_without_a_fence(lock, total, x):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += x[cuda.blockIdx.x]
        cuda.atomic.exch(lock, 0, 0)


@case(4, 32, LOCK, TOTAL, X, planted="each block takes another lock", finds="race on total")
@cuda.jit
def a_lock_for_each_block(lock, total, x):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, b, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[b]
        cuda.threadfence()
        cuda.atomic.exch(lock, b, 0)


@case(4, 32, LOCK, TOTAL, X)
@cuda.jit
def two_locks_for_two_sums(lock, total, x):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, b % 2, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[b % 2] += x[b]
        cuda.threadfence()
        cuda.atomic.exch(lock, b % 2, 0)
