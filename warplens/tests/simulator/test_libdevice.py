"""Functions of NVIDIA's library, and random numbers of numba.cuda, without a GPU."""

import math

import numpy as np
import pytest
from numba import cuda
from numba.cuda import random

from warplens import trace


def values(function, *inputs):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = function(x[i])

    x = np.array(inputs)
    t = trace(kernel, 1, len(x), x, np.zeros(len(x)))
    return t.arguments[-1].tolist() if not t.faults else t.faults


@pytest.mark.parametrize(
    "function, inputs, want",
    [
        (cuda.libdevice.float2int_rn, [0.5, 1.5, 2.5], [0, 2, 2]),
        (cuda.libdevice.erff, [1.0], [np.float32(math.erf(1))]),
        (cuda.libdevice.erf, [1.0], [math.erf(1)]),
        (cuda.libdevice.fast_expf, [1.0], [np.exp(np.float32(1))]),
        (cuda.libdevice.saturatef, [-1.0, 0.25, 3.0], [0, 0.25, 1]),
        (cuda.libdevice.brev, [1, 2], [-(2**31), 2**30]),  # of 32 bits
        (cuda.libdevice.clzll, [1], [63]),
        (cuda.libdevice.rsqrtf, [4.0], [0.5]),
    ],
)
def test_functions_of_libdevice_have_its_types(function, inputs, want):
    assert values(function, *inputs) == want


def test_a_function_of_libdevice_without_a_cpu_form_is_named():
    with pytest.raises(NotImplementedError, match="frcp_rd is not simulated: compute it from"):
        values(cuda.libdevice.frcp_rd, 3.0)


def test_random_numbers_are_numbas_own():
    @cuda.jit
    def drawn(states, y):
        i = cuda.grid(1)
        for n in range(3):
            y[i, n] = random.xoroshiro128p_uniform_float32(states, i)

    states = np.zeros(8, random.xoroshiro128p_dtype)
    random.init_xoroshiro128p_states_cpu(states, 1, 0)
    t = trace(drawn, 1, 8, states, np.zeros((8, 3), "f4"))
    want = [[random.xoroshiro128p_uniform_float32(states, i) for _ in range(3)] for i in range(8)]
    assert not t.faults and not t.races
    np.testing.assert_array_equal(t.arguments[-1], np.array(want, "f4"))


def test_threads_that_draw_from_one_state_race():
    @cuda.jit
    def drawn(states, y):
        i = cuda.grid(1)
        y[i] = random.xoroshiro128p_uniform_float32(states, 0)

    states = np.ones(1, random.xoroshiro128p_dtype)
    assert {race.array for race in trace(drawn, 1, 8, states, np.zeros(8)).races} == {"states"}
