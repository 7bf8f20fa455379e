"""Spin locks of numba.cuda order what is done under them, and nothing else."""

import numpy as np
from numba import cuda

from warplens import races, trace


@cuda.jit
def sum_under_a_lock(lock, total, x):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def every_thread_locks(lock, total, x):
    waits = True
    while waits:
        if cuda.atomic.compare_and_swap(lock, 0, 1) == 0:
            total[0] += x[cuda.blockIdx.x]
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            waits = False


@cuda.jit
def one_sum_after_the_lock(lock, total, x):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    total[0] += x[cuda.blockIdx.x]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)
    total[1] += 1


@cuda.jit
def a_lock_for_each_block(lock, total, x):
    b = cuda.blockIdx.x
    while cuda.atomic.cas(lock, b, 0, 1) != 0:
        pass
    total[0] += x[b]
    cuda.threadfence()
    cuda.atomic.exch(lock, b, 0)


@cuda.jit
def lets_go_without_a_fence(lock, total, x):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    total[0] += x[cuda.blockIdx.x]
    cuda.atomic.exch(lock, 0, 0)


def inputs():
    return np.zeros(4, "i4"), np.zeros(2), np.ones(4)


def test_what_a_lock_orders_is_no_race():
    for kernel, threads in ((sum_under_a_lock, 1), (every_thread_locks, 32)):
        t = trace(kernel, 4, 32, *inputs())
        assert not t.races and not t.faults
        assert t.arguments[1][0] == 4 * threads


def test_a_race_beside_a_lock_is_found():
    (race,) = races(one_sum_after_the_lock, 4, 1, *inputs())
    assert race.array == "total" and race.index == (1,)


def test_two_locks_do_not_order_each_other():
    (race,) = races(a_lock_for_each_block, 4, 1, *inputs())
    assert race.array == "total" and race.index == (0,)


def test_a_lock_orders_nothing_without_a_fence():
    (race,) = races(lets_go_without_a_fence, 4, 1, *inputs())
    assert race.array == "total" and race.index == (0,)
