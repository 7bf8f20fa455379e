"""A cooperative launch of numba.cuda: blocks that wait for each other."""

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import cg

from warplens import trace


@cuda.jit
def mirrored(x, y, waits):
    s = cuda.shared.array(8, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    x[i], s[t] = i, i
    if cuda.blockIdx.x < waits:
        cg.this_grid().sync()
    y[i] = x[x.size - 1 - i] + s[t]


def traced(blocks, waits):
    return trace(mirrored, blocks, 8, np.zeros(8 * blocks), np.zeros(8 * blocks), waits)


def test_a_barrier_of_the_grid_orders_blocks_and_keeps_what_they_share():
    t = traced(4, 4)
    assert not t.races and not t.faults
    assert (t.arguments[-2] == 31).all()


def test_without_it_blocks_race():
    assert {race.array for race in traced(4, 0).races} == {"x"}


def test_a_block_that_does_not_come_to_it_is_a_fault():
    t = traced(4, 3)
    assert "3 of 4 blocks wait for the grid, but block (3, 0, 0) has returned" in str(t)


def test_more_threads_than_can_wait_are_refused(monkeypatch):
    from warplens.cuda import grid_barrier

    monkeypatch.setattr(grid_barrier, "MOST_THREADS", 16)
    with pytest.raises(ValueError, match="32 threads wait for the grid.*give a smaller grid"):
        traced(4, 4)


@cuda.jit
def of_a_block(x):
    cg.this_thread_block().sync()
    x[0] = 1


def test_another_group_than_the_grid_is_refused_by_name():
    assert "cuda.cg.this_thread_block is not simulated" in str(trace(of_a_block, 1, 1, np.zeros(1)))
