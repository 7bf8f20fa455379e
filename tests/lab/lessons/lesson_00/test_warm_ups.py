"""Lesson 00's warm-ups: right answers of another shape pass, and tricks do not."""

import pytest
from numba import cuda, float32, int16, int32

from rwkv_lessons.lab.course.check import evaluate


@cuda.jit
def by_hand(k, v, kv):
    i = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= kv.shape[0] or j >= kv.shape[1]:
        return
    kv[i, j] = v[j] * k[i]


@cuda.jit
def tree(x, sums):
    s_x = cuda.shared.array(64, float32)
    i, n = cuda.grid(1), cuda.threadIdx.x
    s_x[n] = 0
    if i < x.shape[0]:
        s_x[n] = x[i]
    cuda.syncthreads()
    half = 32
    while half > 0:
        if n < half:
            s_x[n] += s_x[n + half]
        cuda.syncthreads()
        half //= 2
    if n == 0:
        sums[cuda.blockIdx.x] = s_x[0]


@cuda.jit
def shared_counts(x, counts):
    s_counts = cuda.shared.array(16, int32)
    i, n = cuda.grid(1), cuda.threadIdx.x
    if n < 16:
        s_counts[n] = 0
    cuda.syncthreads()
    if i < x.shape[0]:
        cuda.atomic.add(s_counts, x[i], 1)
    cuda.syncthreads()
    if n < 16:
        cuda.atomic.add(counts, n, s_counts[n])


@pytest.mark.parametrize(
    "name, answer", [("outer", by_hand), ("block_sums", tree), ("histogram", shared_counts)]
)
def test_right_answers_of_another_shape_pass(name, answer):
    result = evaluate(f"00_start_here.{name}", answer)
    assert result.passed, str(result)


@cuda.jit
def one_thread_counts(x, counts):
    if cuda.grid(1) == 0:
        for n in range(x.shape[0]):
            counts[x[n]] += 1


@cuda.jit
def atomics_for_a_sum(x, sums):
    n = cuda.threadIdx.x
    if n == 0:
        sums[cuda.blockIdx.x] = 0
    cuda.syncthreads()
    if cuda.grid(1) < x.shape[0]:
        cuda.atomic.add(sums, cuda.blockIdx.x, x[cuda.grid(1)])


@cuda.jit
def few_numbers(x, sums):
    n, i = cuda.threadIdx.x, int16(cuda.grid(1))
    s_x = cuda.shared.array(64, float32)
    s_x[n] = x[i] if 0 <= i < x.shape[0] else 0
    cuda.syncthreads()
    if n == 0:
        total = float32(0)
        for m in range(64):
            total += s_x[m]
        sums[cuda.blockIdx.x] = total


@cuda.jit
def clears_its_input(x, counts):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(counts, x[i], 1)
        x[i] = 0


@pytest.mark.parametrize(
    "name, answer, said",
    [
        ("histogram", one_thread_counts, "0 atomic requests, want at least 1"),
        ("histogram", clears_its_input, "changed an input"),
        ("block_sums", atomics_for_a_sum, "want no atomics"),
        ("block_sums", few_numbers, "33,000 elements"),
    ],
)
def test_tricks_are_refused(name, answer, said):
    result = evaluate(f"00_start_here.{name}", answer)
    assert not result.passed and said in str(result)
