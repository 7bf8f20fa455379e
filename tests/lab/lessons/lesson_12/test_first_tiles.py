"""Lesson 12's checks: right answers of another shape pass, and launches that cheat do not."""

import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from rwkv_lessons.lab.course.check import evaluate  # noqa: E402
from rwkv_lessons.lab.lessons.lesson_12.evidence import numbers, rows_apart  # noqa: E402


@triton.jit
def two_halves(x, y, out, n, BLOCK: tl.constexpr):
    for half in tl.static_range(2):
        o = tl.program_id(0) * BLOCK + half * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        tl.store(out + o, tl.load(x + o, o < n) + tl.load(y + o, o < n), o < n)


@triton.jit
def powers_of_two(x, y, stride, N, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_x = tl.load(x + tl.program_id(0) * stride + o, o < N, -1e38)
    b_e = tl.exp2((b_x - tl.max(b_x)) * 1.4426950408889634)
    tl.store(y + tl.program_id(0) * N + o, b_e * (1 / tl.sum(b_e)), o < N)


@triton.jit
def through_the_log_of_the_sum(x, y, stride, N, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_x = tl.load(x + tl.program_id(0) * stride + o, o < N, float("-inf"))
    b_log = tl.max(b_x, 0)
    b_log += tl.log(tl.sum(tl.exp(b_x - b_log), 0))
    tl.store(y + tl.program_id(0) * N + o, tl.exp(b_x - b_log), o < N)


@triton.jit
def summed_at_the_end(x, sums, stride, M, N, BM: tl.constexpr, BN: tl.constexpr):
    o_m, o_n = tl.arange(0, BM)[:, None], tl.program_id(0) * BN + tl.arange(0, BN)
    b_sums = tl.zeros([BM, BN], tl.float32)
    while tl.min(o_m) < M:
        b_sums += tl.load(x + o_m * stride + o_n[None, :], (o_m < M) & (o_n < N)[None, :], 0)
        o_m += BM
    tl.store(sums + o_n, tl.sum(b_sums, 0), o_n < N)


def by_name(kernel, x):
    M, N = x.shape
    y = x.new_empty(M, N)
    block = triton.next_power_of_2(N)
    kernel[lambda sizes: (M,)](x=x, y=y, N=N, stride=x.stride(0), BLOCK=block, num_warps=1)
    return y


@pytest.mark.parametrize(
    "name, answer",
    [
        ("add", two_halves),
        ("softmax", powers_of_two),
        ("softmax", through_the_log_of_the_sum),
        ("column_sums", summed_at_the_end),
        ("softmax_rows", by_name),
    ],
)
def test_right_answers_of_another_shape_pass(name, answer):
    result = evaluate(f"12_first_tiles.{name}", answer)
    assert result.passed, str(result)


def once_more(kernel, x):
    by_name(kernel, x)
    return by_name(kernel, x)


def of_a_copy(kernel, x):
    return by_name(kernel, x.clone())


def in_its_own_place(kernel, x):
    M, N = x.shape
    kernel[(M,)](x, x, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return x


def another_tensor(kernel, x):
    by_name(kernel, x)
    return torch.softmax(x, 1)


def without_a_grid(kernel, x):
    return kernel(x, torch.empty_like(x), x.stride(0), x.shape[1], BLOCK=8)


def without_a_tuple(kernel, x):
    y = torch.empty_like(x)
    kernel[x.shape[0]](x, y, x.stride(0), x.shape[1], BLOCK=8)
    return y


def without_a_return(kernel, x):
    by_name(kernel, x)


@pytest.mark.parametrize(
    "answer, said",
    [
        (without_a_tuple, "the grid is 3, want a tuple: kernel[(3,)](…)"),
        (without_a_return, "nothing was returned"),
        (once_more, "launches: 2, want 1"),
        (of_a_copy, "does not get x"),
        (in_its_own_place, "x was changed"),
        (another_tensor, "not the tensor that the kernel wrote to"),
        (without_a_grid, "a launch needs a grid"),
        (lambda kernel, x: None, "launches: 0, want 1"),
    ],
)
def test_a_launch_that_is_not_what_was_asked_for_is_refused(answer, said):
    result = evaluate("12_first_tiles.softmax_rows", answer)
    assert not result.passed and said in str(result)


def test_inputs_are_exact_and_lie_in_nan():
    x = numbers(3, 5)
    assert torch.equal(x, x.half().float()) and x.min() < 0 < x.max()
    wide = rows_apart(x, 7)
    assert torch.equal(wide[:, :5], x) and wide[:, 5:].isnan().all()
