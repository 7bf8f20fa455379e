"""Lessons 00 to 02: one torch loop, one count of the work, and checks that no shortcut passes."""

import nbformat
import numpy as np
import pytest
import torch
from numba import cuda, njit

from rwkv_lessons.inputs import rwkv5_inputs
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import wrong_answer
from rwkv_lessons.operations import work
from rwkv_lessons.wkv5.reference import wkv5_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_lessons_torch_loop_is_the_reference(dtype):
    inputs = rwkv5_inputs(2, 9, 3, 16, dtype=dtype)
    got = exercises.solutions("01_five_loops").torch_loop(*inputs)
    for x, y in zip(got, wkv5_reference(*inputs), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y)  # the same sums in another order


def test_the_lessons_count_as_the_measurements_do():
    answers = exercises.solutions("01_five_loops")
    for shape in ((8, 4096, 64, 64), (1, 3, 2, 8)):
        for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
            least = work("wkv5", shape, dtype)
            assert least.flops == answers.flops(*shape)
            assert least.bytes == answers.least_bytes(*shape, itemsize)


def test_lesson_01_shows_the_torch_loop_that_is_profiled():
    loop = exercises.solutions("01_five_loops").torch_loop
    cells = nbformat.read(exercises.NOTEBOOKS / "01_five_loops.ipynb", 4).cells
    shown = [cell.source for cell in cells if cell.id == "torch-loop"]
    assert shown == [exercises.source_of(loop)]


@cuda.jit
def zeros(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 0


@cuda.jit
def nothing(x, y):
    pass


@pytest.mark.parametrize("kernel", [zeros, nothing], ids=["zeros", "nothing"])
def test_zeros_and_untouched_outputs_fail(kernel):
    result = evaluate("00_start_here.double", kernel)
    assert result.attempted and not result.passed
    assert "first difference" in str(result)


@pytest.mark.parametrize(
    "id, function",
    [
        ("01_five_loops.five_loops", lambda r, k, v, decay, u: np.zeros_like(v)),
        ("01_five_loops.five_loops", lambda r, k, v, decay, u: None),
        ("01_five_loops.flops", lambda *sizes: 0),
        ("01_five_loops.least_bytes", lambda *sizes: 0),
        ("02_profile_first.read_profile", lambda kernels, tokens: (0, 0, 0)),
        ("02_profile_first.read_profile", lambda kernels, tokens: 0),
        ("02_profile_first.read_profile", lambda kernels, tokens: None),
        ("02_profile_first.finish", lambda durations, launch: 0),
    ],
)
def test_zeros_and_nonsense_fail(id, function):
    result = evaluate(id, function)
    assert result.attempted and not result.passed


def test_a_function_that_changes_its_inputs_fails():
    def vandal(r, k, v, decay, u):
        o = np.zeros_like(v)
        for b, h, i, j in np.ndindex(*r.shape[::2], *r.shape[3:], *v.shape[3:]):
            s = 0.0
            for t in range(r.shape[1]):
                kv = k[b, t, h, i] * v[b, t, h, j]
                o[b, t, h, j] += r[b, t, h, i] * (s + u[h, i] * kv)
                s = decay[h, i] * s + kv
        k[...] = 0
        return o

    assert "changed its input k" in str(evaluate("01_five_loops.five_loops", vandal))


def test_a_wrong_number_is_named():
    launches = wrong_answer("02_profile_first.read_profile", "share_of_launches").function
    text = str(evaluate("02_profile_first.read_profile", launches))
    assert "elementwise share: 0.667, want 0.4" in text and "microseconds, not launches" in text
    assert "got 1, want 7" in str(evaluate("01_five_loops.flops", lambda *sizes: 1))


@pytest.mark.parametrize(
    "returned, said",
    [
        (None, "nothing was returned"),
        (0.4, "returns 1 thing, want 3: kernels per token, elementwise share, idle share"),
        ((3, 40, 0), "elementwise share: 40, want 0.4\n"),
    ],
)
def test_a_profile_without_its_three_shares_is_told_so(returned, said):
    text = str(evaluate("02_profile_first.read_profile", lambda kernels, tokens: returned))
    assert said in text and text.count("hint:") == (returned != 0.4) and "line" not in text


def test_a_function_may_be_compiled_by_the_learner():
    loops = exercises.load("01_five_loops.five_loops").reference
    assert evaluate("01_five_loops.five_loops", njit(loops)).passed
