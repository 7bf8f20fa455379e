"""Sums of a block and of a grid."""

import numpy as np
from numba import cuda, float32

from . import case

X, ONE = np.arange(128, dtype="f4"), np.zeros(1, "f4")


@case(2, 64, X, ONE)
@cuda.jit
def tree(x, total):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    step = 32
    while step > 0:
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step]
        step //= 2
    if t == 0:
        cuda.atomic.add(total, 0, s[0])


@case(2, 64, X, ONE, planted="no barrier between the levels", finds="race on s")
@cuda.jit
def tree_with_one_barrier(x, total):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if t < step:
            s[t] += s[t + step]
        step //= 2
    if t == 0:
        cuda.atomic.add(total, 0, s[0])


@case(2, 64, X, ONE, planted="the barrier stands in a branch", finds="DivergentBarrier")
@cuda.jit
def tree_with_a_barrier_in_a_branch(x, total):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if t < step:
            s[t] += s[t + step]
            cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(total, 0, s[0])


@case(2, 64, X, ONE, planted="blocks add up without an atomic", finds="race on total")
@cuda.jit
def sum_of_blocks(x, total):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        for n in range(64):
            total[0] += s[n]


@case(2, 64, X, np.zeros(2, "f4"))
@cuda.jit
def sum_for_each_block(x, sums):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = 0
        for n in range(64):
            sums[cuda.blockIdx.x] += s[n]


@case(2, 64, X, np.zeros(2, "f4"), np.zeros(1, "i4"), ONE)
@cuda.jit
def the_last_block_adds_up(x, sums, done, total):
    """As in CUDA's sample threadFenceReduction."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    last = cuda.shared.array(1, float32)
    if t == 0:
        sums[b] = x[b * 64] + x[b * 64 + 1]
        cuda.threadfence()
        last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if t == 0 and last[0]:
        cuda.threadfence()
        total[0] = sums[0] + sums[1]


@case(2, 64, X, np.zeros(2, "f4"), np.zeros(1, "i4"), ONE,
      planted="the block with the last number adds up at once", finds="race on sums")  # fmt: skip
@cuda.jit
def the_last_block_by_number(x, sums, done, total):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        sums[b] = x[b * 64] + x[b * 64 + 1]
        cuda.threadfence()
        cuda.atomic.add(done, 0, 1)
        if b == cuda.gridDim.x - 1:
            total[0] = sums[0] + sums[1]


@case(2, 64, X, np.zeros(2, "f4"), np.zeros(1, "i4"), ONE,
      planted="no fence before the counter", finds="race on sums")  # fmt: skip
@cuda.jit
def the_last_block_without_a_fence(x, sums, done, total):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        sums[b] = x[b * 64] + x[b * 64 + 1]
        if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1:
            total[0] = sums[0] + sums[1]
