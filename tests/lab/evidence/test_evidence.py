"""The evidence itself: what a check says, and what it never lets pass."""

import copy
import dataclasses
import inspect
import re
import types

import numpy as np
import pytest
from numba import cuda

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import ABSENT, FAILED, check, evaluate
from rwkv_lessons.lab.evidence import cuda as evidence
from rwkv_lessons.lab.evidence import traffic
from rwkv_lessons.lab.evidence.claims import machine_code
from rwkv_lessons.lab.evidence.compare import Difference, compare
from rwkv_lessons.lab.evidence.wkv6 import parameters

KERNELS = [
    id
    for id in exercises.ids()
    if parameters(exercises.load(id).reference) == ("r", "k", "v", "decay", "u", "o")
    and any(gather.kind == "machine code" for gather in exercises.load(id).evidence)
]


@cuda.jit
def zeros(r, k, v, decay, u, o):
    B, T, H, N = r.shape
    thread = cuda.grid(1)
    b, h, j = thread // (H * N), thread // N % H, thread % N
    if b < B:
        for t in range(T):
            o[b, t, h, j] = 0


@cuda.jit
def nothing(r, k, v, decay, u, o):
    pass


@pytest.mark.parametrize("id", KERNELS)
@pytest.mark.parametrize("kernel", [zeros, nothing], ids=["zeros", "nothing"])
def test_zeros_and_untouched_outputs_fail(id, kernel):
    result = evaluate(id, kernel)
    assert result.attempted and not result.passed
    assert "first difference" in str(result) or "elements is ever written" in str(result)


def test_inputs_must_be_left_alone():
    id = "04_drop_the_atomics.kernel"
    source = exercises.solved(id)
    assert "            o[b, t, h, j] = o_j\n" in source + "\n"
    vandal = source + "\n        v[b, 0, h, j] = 0\n"
    module = exercises.solutions("04_drop_the_atomics")
    namespace = dict(vars(module))
    exec(compile(vandal, "vandal", "exec"), namespace)
    result = evaluate(id, namespace["kernel"])
    assert not result.passed and "changed its input v" in str(result)


def test_compare_names_the_first_difference():
    want = np.zeros((2, 3, 1, 4))
    want[1, 2, 0, 3] = 5
    with pytest.raises(Difference, match=r"\[b=1, t=2, h=0, j=3\]: 0, want 5; 1 of 24 differ"):
        compare(np.zeros_like(want), want)
    with pytest.raises(Difference, match=r"j=0\]: NaN, want 0; 24 of 24"):
        compare(np.full_like(want, np.nan), want)
    compare(want * (1 + 1e-7), want)
    with pytest.raises(Difference, match="a NaN that was computed") as found:
        compare(np.full(want.shape, np.nan, np.float32), want, untouched=True)
    assert found.value.symptom == "unset"


def test_a_kernel_without_atomics_is_told_what_this_rung_is():
    source = inspect.getsource(exercises.load("03_atomic_baseline.kernel").reference.py_func)
    plain = re.sub(r"cuda.atomic.add\(o, \((.*?)\), (.*)\)\n", r"o[\1] += \2\n", source)
    namespace = dict(vars(exercises.solutions("03_atomic_baseline")))
    exec(compile(plain, "plain", "exec"), namespace)
    text = str(evaluate("03_atomic_baseline.kernel", namespace["kernel"]))
    assert "0 atomics per warp and token" in text and "adds each product with cuda.atomic" in text


def test_heads_before_columns_are_right_and_the_sectors_are_told():
    id = "03_atomic_baseline.kernel"
    right = exercises.solved(id)
    source = right.replace("thread // N % H, thread % N", "thread % H, thread // H % N")
    assert source != right
    result = evaluate(id, exercises.defined(id, source, "<heads first>"))
    assert result.passed and "a load touches 2 sectors on average, 1 would do" in str(result)
    assert "hint: Let j vary fastest" in str(result)
    assert "sectors" not in str(evaluate(id, exercises.load(id).reference))


@pytest.mark.parametrize(
    "budget, silent, told, refused",
    [
        (traffic.loads(3), 3.04, 3.2, 3.3),
        (traffic.loads(257), 257, 269, 271),  # by one of twenty
        (traffic.bank_conflicts(), 0.04, 4, 5),
        (traffic.exponentials(1), 1, 1.2, 1.3),
    ],
    ids=lambda x: getattr(x, "text", x),
)
def test_a_budget_warns_before_it_refuses(budget, silent, told, refused):
    def said(per_token):
        launch = types.SimpleNamespace(warps=1, threads_per_block=1, blocks=[0])
        counted = dataclasses.replace(budget, count=lambda t: t.made, shares=lambda t: {})
        few, many = copy.copy(launch), copy.copy(launch)
        few.made, many.made = 0, per_token * 64
        return counted.excess(few, many, (6, 70)), counted.warning(few, many, (6, 70))

    assert said(silent) == (None, "")
    assert said(told)[0] is None and "would be better" in said(told)[1]
    assert "too many" in said(refused)[0][0]


def test_conflicts_before_the_loop_over_tokens_are_counted_once_a_launch():
    few, many = (types.SimpleNamespace(warps=2, threads_per_block=64, blocks=[0]) for _ in "ab")

    def said(before, per_token):
        few.bank_conflicts, many.bank_conflicts = (2 * (before + t * per_token) for t in (6, 70))
        few.rows = many.rows = [row]
        return traffic.bank_conflicts().excess(few, many, (6, 70))

    row = dataclasses.make_dataclass("Row", ["array", "place", "conflicts"], frozen=True)(
        "s_state", "line 7: s_state[j, i] = 0", 3968
    )
    assert said(64, 4) is None
    text, where = said(1984, 0)
    assert "1.98e+03 bank conflicts per warp before or after the loop" in text
    assert where == "s_state: 3,968, line 7: s_state[j, i] = 0"


def test_without_a_compiler_the_row_says_so(monkeypatch):
    from warplens.compiled import assembly

    monkeypatch.setattr(assembly, "what_is_missing", lambda kernel: "numba-cuda is not installed")
    exercise = exercises.load("04_drop_the_atomics.kernel")
    row = machine_code(signature=evidence.WKV5_SIGNATURE)(exercise.reference, exercise)
    assert row.verdict == ABSENT and "numba-cuda" in row.text


def test_a_kernel_that_does_not_compile_fails_with_a_line():
    @cuda.jit
    def kernel(r, k, v, decay, u, o):
        o[0] = undefined_name  # noqa: F821

    exercise = exercises.load("04_drop_the_atomics.kernel")
    row = machine_code(signature=evidence.WKV5_SIGNATURE)(kernel, exercise)
    assert row.verdict == FAILED and "undefined_name" in str(row)


def test_check_never_raises(capsys):
    def blocks(B, H, N, block):
        raise KeyError("anything")

    result = check("06_block_size.blocks", blocks)
    assert not result.passed
    assert "✗ answer         KeyError: 'anything'" in capsys.readouterr().out


def test_the_unsolved_check_says_what_happens_next(capsys):
    @cuda.jit
    def kernel(r, k, v, decay, u, o):
        raise NotImplementedError

    check("04_drop_the_atomics.kernel", kernel)
    assert capsys.readouterr().out.startswith("04_drop_the_atomics.kernel: not attempted yet. ")
