"""The CPU run of a kernel: right where the kernel is right, and loud where it is not."""

import math

import numba
import numpy as np
import pytest
import torch
from helpers.vectors import load4, store4
from numba import cuda, float32, int32
from numba.cuda import threadIdx

from warplens.cuda.trace import DivergentBarrier, KernelFault, OutOfBounds, run

N = 64
SCALE = 2.0


@cuda.jit(device=True)
def scaled(x):
    return math.exp(x) * float32(SCALE)


@cuda.jit
def flip(x, y):
    s_x, s_e = cuda.shared.array(N, float32), cuda.shared.array(N, float32)
    i = threadIdx.x
    s_x[i] = x[i]
    s_e[i] = scaled(x[i])
    cuda.syncthreads()
    y[i] = s_x[N - 1 - i] + s_e[i]


@cuda.jit
def flip_without_barrier(x, y):
    s_x = cuda.shared.array(N, float32)
    i = cuda.threadIdx.x
    s_x[i] = x[i]
    y[i] = s_x[N - 1 - i]


@cuda.jit
def from_the_left(x, y):
    i = cuda.grid(1)
    y[i] = x[i - 1]


@cuda.jit
def half_a_barrier(x):
    i = cuda.grid(1)
    if i < 40:
        cuda.syncthreads()
    x[i] = i


@cuda.jit
def two_barriers(x):
    i = cuda.grid(1)
    if i < 32:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    x[i] = i


@cuda.jit
def number_cells(x):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] = cuda.blockIdx.x * 1000 + cuda.blockIdx.y * 100 + cuda.threadIdx.x * 10
        x[i, j] += cuda.threadIdx.y


@cuda.jit
def number_boxes(x):
    i, j, k = cuda.grid(3)
    x[i, j, k] = (i * cuda.gridsize(3)[1] + j) * cuda.gridsize(3)[2] + k


@cuda.jit
def histogram(x, counts, largest):
    i = cuda.grid(1)
    cuda.atomic.add(counts, x[i], 1)
    cuda.atomic.max(largest, (0, 0), x[i])


@cuda.jit
def quadruple(x, y):
    i = cuda.grid(1) * 4
    a, b, c, d = load4(x, (i,))
    store4(y, (i,), (a * 4, b * 4, c * 4, d * 4))


@cuda.jit
def warp_sums(x, y):
    i = cuda.grid(1)
    total = x[i]
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, step)
    if cuda.laneid == 0:
        y[i // 32] = total
    odd = cuda.ballot_sync(0xFFFFFFFF, i % 2)
    if i == 0:
        y[2] = cuda.popc(odd)


@cuda.jit
def not_written(y):
    local = cuda.local.array(2, float32)
    shared = cuda.shared.array(2, int32)
    y[0] = local[1]
    y[1] = shared[1]


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_barriers_shared_arrays_and_device_functions():
    x, y = floats(N), np.empty(N, np.float32)
    run(flip, 1, N, x, y)
    np.testing.assert_array_equal(y, x[::-1] + np.exp(x) * np.float32(2))


def test_a_constant_is_replaced_in_the_kernel_and_in_what_it_calls():
    x, y = floats(8), np.empty(8, np.float32)
    run(flip, 1, 8, x, y, constants={"N": 8, "SCALE": 3.0})
    np.testing.assert_array_equal(y, x[::-1] + np.exp(x) * np.float32(3))
    with pytest.raises(ValueError, match="'M', which flip does not use"):
        run(flip, 1, 8, x, y, constants={"M": 8})


def test_a_constant_in_a_closure_is_replaced():
    def make(size):
        def kernel(x):
            x[0] = size

        return kernel

    x = np.zeros(1)
    run(make(3), 1, 1, x)
    assert x[0] == 3
    run(make(3), 1, 1, x, constants={"size": 5})
    assert x[0] == 5


def test_a_missing_barrier_shows_every_time_and_differs_by_order():
    x, forward, backward = floats(N), np.empty(N, np.float32), np.empty(N, np.float32)
    run(flip_without_barrier, 1, N, x, forward)
    run(flip_without_barrier, 1, N, x, backward, reverse=True)
    assert np.isnan(forward[: N // 2]).all() and not np.isnan(forward[N // 2 :]).any()
    assert np.isnan(backward[N // 2 :]).all() and not np.isnan(backward[: N // 2]).any()


def test_the_order_does_not_matter_to_a_correct_kernel():
    x, forward, backward = floats(N), np.empty(N, np.float32), np.empty(N, np.float32)
    run(flip, 1, N, x, forward)
    run(flip, 1, N, x, backward, reverse=True)
    np.testing.assert_array_equal(forward, backward)


def test_negative_indices_and_indices_past_the_end_fault_with_their_place():
    x, y = floats(N), np.empty(N, np.float32)
    with pytest.raises(OutOfBounds, match=r"x\[-1\] is out of bounds") as caught:
        run(from_the_left, 2, N, x, y)
    assert caught.value.block == (0, 0, 0) and caught.value.thread == (0, 0, 0)
    assert caught.value.place.text == "y[i] = x[i - 1]"
    assert caught.value.array == "x" and caught.value.index == (-1,)
    with pytest.raises(OutOfBounds, match=r"x\[126\]") as caught:
        run(from_the_left, 2, N, x, y, reverse=True)
    assert caught.value.block == (1, 0, 0) and caught.value.thread == (63, 0, 0)


@pytest.mark.parametrize(
    "kernel, reason",
    [
        (half_a_barrier, r"40 of 64 threads wait at a barrier, but thread \(40, 0, 0\) has ret"),
        (two_barriers, r"32 of 64 threads wait at a barrier, but thread \(32, 0, 0\) waits at li"),
    ],
)
def test_divergent_barriers_fault(kernel, reason):
    with pytest.raises(DivergentBarrier, match=reason) as caught:
        run(kernel, 1, N, np.zeros(N))
    assert caught.value.place.text == "cuda.syncthreads()"


def test_any_other_exception_names_the_thread():
    def kernel(x):
        if cuda.grid(1) == 5:
            raise NotImplementedError("your code")
        x[0] += 1

    with pytest.raises(KernelFault, match="NotImplementedError: your code") as caught:
        run(kernel, 1, 8, np.zeros(1))
    assert caught.value.thread == (5, 0, 0) and "raise NotImpl" in caught.value.place.text


def test_grids_and_blocks_of_two_and_three_dimensions():
    x = np.full((5, 7), -1, np.int32)
    run(number_cells, (2, 2), (4, 4), x)
    assert x[4, 6] == 1000 + 100 + 0 + 2 and x[3, 2] == 30 + 2 and (x >= 0).all()
    boxes = np.zeros((4, 2, 6), np.int64)
    run(number_boxes, (2, 1, 3), (2, 2, 2), boxes)
    np.testing.assert_array_equal(boxes.ravel(), np.arange(48))


def test_atomics_with_scalar_and_tuple_index():
    x = np.random.default_rng(0).integers(0, 5, 64)
    counts, largest = np.zeros(5, np.int32), np.zeros((1, 1), np.int64)
    run(histogram, 2, 32, x, counts, largest)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=5))
    assert largest[0, 0] == x.max()


def test_the_four_float_intrinsics_run_as_their_python_twins():
    x, y = floats(64), np.empty(64, np.float32)
    run(quadruple, 1, 16, x, y)
    np.testing.assert_array_equal(y, 4 * x)
    with pytest.raises(OutOfBounds):
        run(quadruple, 1, 17, x, y)


@cuda.jit
def integers_apart(x, y):
    y[0] = load4(x, 0, 4)[0]


@cuda.jit
def short_index(x, y):
    y[0] = load4(x, (4,))[0]


@cuda.jit
def of_an_element(x, y):
    y[0] = load4(x[0, 4])[0]


@pytest.mark.parametrize(
    "kernel, reason",
    [
        (integers_apart, r"index of x is 0, 4; needs one tuple of 2 integers, one per axis"),
        (short_index, r"index of x is \(4,\); needs one tuple of 2 integers"),
        (of_an_element, r"array is one element, 4.0; needs an array, and its index apart"),
    ],
)
def test_a_vector_access_with_other_arguments_says_how_it_is_called(kernel, reason):
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with pytest.raises(KernelFault, match=rf"load4\(array, index\): {reason}"):
        run(kernel, 1, 1, x, np.empty(1, np.float32))


def test_lanes_of_a_warp_exchange_values():
    x, y = np.arange(64, dtype=np.float32), np.zeros(3, np.float32)
    run(warp_sums, 2, 32, x, y)
    assert list(y) == [x[:32].sum(), x[32:].sum(), 16]


def test_float32_stays_float32():
    def kernel(x, y):
        acc = float32(0)
        for i in range(x.shape[0]):
            acc += math.exp(x[i]) * numba.float32(0.1)
        y[0] = acc

    x, y = floats(100), np.zeros(1)
    run(kernel, 1, 1, x, y)
    acc = np.float32(0)
    for value in x:
        acc = np.float32(acc + np.exp(value) * np.float32(0.1))
    assert y[0] == acc


def test_float32_overflow_gives_infinity_as_on_the_gpu():
    def kernel(x, y):
        y[0] = math.exp(x[0])

    y = np.zeros(1, np.float32)
    run(kernel, 1, 1, np.full(1, 1000, np.float32), y)
    assert np.isinf(y[0])


def test_fresh_memory_is_poisoned():
    y = np.zeros(2)
    run(not_written, 1, 1, y)
    assert np.isnan(y[0]) and y[1] not in (0, 1)


def test_rows_and_slices_keep_their_bounds():
    def kernel(x, y):
        row = x[cuda.threadIdx.x]
        for j in range(len(row)):
            y[cuda.threadIdx.x] += row[j]
        y[2] = row[1:][y.shape[0]]

    x, y = floats(2, 4), np.zeros(3, np.float32)
    with pytest.raises(OutOfBounds, match=r"x\[3\]"):
        run(kernel, 1, 2, x, y)


def test_torch_tensors_share_their_memory():
    x = torch.arange(64, dtype=torch.float32)
    y = torch.empty(64)
    run(quadruple, 1, 16, x, y)
    assert torch.equal(y, 4 * x)
    with pytest.raises(TypeError, match="x is a torch.bfloat16 tensor"):
        run(quadruple, 1, 16, x.bfloat16(), y)


@pytest.mark.parametrize(
    "grid, block, reason",
    [(0, 1, "grid is 0"), (1, (1, 2.5), "block is"), (1, 2048, "at most 1024 threads")],
)
def test_bad_launch_sizes_are_named(grid, block, reason):
    with pytest.raises(ValueError, match=reason):
        run(flip, grid, block, floats(N), floats(N))


def test_a_thing_that_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="kernel is a int"):
        run(3, 1, 1)


def test_dynamic_shared_memory():
    def kernel(y):
        s = cuda.shared.array(0, float32)
        s[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        y[cuda.threadIdx.x] = s[7 - cuda.threadIdx.x]

    y = np.zeros(8)
    run(kernel, 1, 8, y, sharedmem=32)
    assert list(y) == list(range(7, -1, -1))
    with pytest.raises(OutOfBounds):
        run(kernel, 1, 8, y)


def test_a_step_of_zero_and_a_type_that_numba_has_not_are_told_in_words():
    def strided(y):
        for i in range(0, 4, y.shape[0] // 8):
            y[i] = 0

    with pytest.raises(KernelFault, match="the step of a loop is 0(.|\n)*for i in range"):
        run(strided, 1, 1, np.zeros(4, np.float32))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="y is a torch.bfloat16 tensor.*float32 first"):
        run(strided, 1, 1, torch.zeros(4, dtype=torch.bfloat16))
