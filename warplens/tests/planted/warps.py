"""Threads of one warp: shuffles, votes, and what they exchange through shared memory."""

import numpy as np
from numba import cuda, float32

from . import case

X, Y = np.arange(64, dtype="f4"), np.zeros(64, "f4")
FULL = 0xFFFFFFFF


@case(1, 64, X, Y)
@cuda.jit
def butterfly(x, y):
    value = x[cuda.grid(1)]
    for n in range(5):
        value += cuda.shfl_xor_sync(FULL, value, 1 << n)
    y[cuda.grid(1)] = value


@case(1, 64, X, Y, planted="half of the warp is not at the shuffle", finds="DivergentBarrier")
@cuda.jit
def butterfly_in_a_branch(x, y):
    value = x[cuda.grid(1)]
    if cuda.laneid < 16:
        value += cuda.shfl_xor_sync(FULL, value, 1)
    y[cuda.grid(1)] = value


@case(1, 64, X, Y)
@cuda.jit
def half_a_butterfly(x, y):
    value = x[cuda.grid(1)]
    if cuda.laneid < 16:
        value += cuda.shfl_xor_sync(0xFFFF, value, 1)
    y[cuda.grid(1)] = value


@case(1, 64, X, Y)
@cuda.jit
def neighbours_of_a_warp(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    y[t] = s[t ^ 1]


@case(1, 64, X, Y, planted="lanes of a warp are taken to run in step", finds="race on s")
@cuda.jit
def neighbours_in_lockstep(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    y[t] = s[t ^ 1]


@case(1, 64, X, Y, planted="a barrier of the warp between two warps", finds="race on s")
@cuda.jit
def neighbours_of_two_warps(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    y[t] = s[t ^ 32]


@case(1, 64, X, np.zeros(2, "u4"))
@cuda.jit
def votes(x, y):
    ballot = cuda.ballot_sync(FULL, x[cuda.threadIdx.x] > 7)
    if cuda.laneid == 0:
        y[cuda.threadIdx.x // 32] = ballot
