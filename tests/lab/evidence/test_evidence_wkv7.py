"""The evidence of the lessons on RWKV-7: its problems, and answers of other shapes than ours."""

import pytest
import torch

from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.exercises import defined, load, solutions
from rwkv_lessons.lab.evidence import wkv7
from rwkv_lessons.lab.evidence.triton import answer as answers
from rwkv_lessons.lab.evidence.wkv7_functions import (
    exact_loop,
    heads,
    readings,
    unit_triangular_inverse,
)
from rwkv_lessons.lab.lessons.lesson_23 import pictures as stepping_back
from rwkv_lessons.lab.lessons.lesson_24 import pictures as wy
from rwkv_lessons.wkv7 import wkv7_wy

pytest.importorskip("triton")
NAMES = ("r", "w", "k", "v", "a", "b", "s0")


@pytest.mark.parametrize("decay", ["text", "most", "slow", "strong", "edge"])
def test_problems_have_the_librarys_answers(decay):
    known = wkv7.problem((2, 11, 3, 6, 5), C=4, decay=decay)
    leaves = [known[name].clone().requires_grad_() for name in NAMES]
    o, s1 = wkv7_wy(*leaves)
    ((o * known["do"]).sum() + (s1 * known["ds1"]).sum()).backward()
    found = {"o": o, "s1": s1} | {f"d{x}": y.grad for x, y in zip(NAMES, leaves, strict=True)}
    for name, x in found.items():
        torch.testing.assert_close(x, known[name])  # float64, sums in another order
    assert known["kept"].shape == (2, 3, 3, 6, 5) and torch.equal(known["kept"][:, -1], known["s1"])


def test_one_head_at_a_time_is_the_same():
    *tokens, s = heads(3, 7, 4, 5)
    o, s1 = exact_loop(*tokens, s)
    for h in range(3):
        alone, last = exact_loop(*(x[h] for x in tokens), s[h])
        torch.testing.assert_close(alone, o[h])
        torch.testing.assert_close(last, s1[h])


def test_alike_keys_have_an_inverse_of_small_numbers_and_powers_of_large_ones():
    (A,) = readings(64, alike=True)
    assert unit_triangular_inverse(A.double()).abs().max() < 1.1
    assert torch.linalg.matrix_power(A.double(), 32).abs().max() > 1e15


def edited(id, *edits):
    """The solution with lines exchanged for others that do the same."""
    text = load(id).solution
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return defined(id, text, f"<{id}, another shape>")


PARTS = "tl.sum((b_r * tl.exp(b_w))[:, None] * b_s, 0) + tl.sum(b_r * b_b) * b_z"
SAME = {
    "22_delta_rule.kernel": (
        (
            "        b_s = tl.exp(b_w)[:, None] * b_s + b_b",
            f"        b_o = {PARTS} + tl.sum(b_r * b_k) * b_v\n"
            "        b_s = tl.exp2(1.4426950408889634 * b_w)[:, None] * b_s + b_b",
        ),
        ("tl.sum(b_r[:, None] * b_s, 0), m_v)", "b_o, m_v)"),
    ),
    "23_stepping_back.backward_sweep": (
        ("b_s *= tl.exp(-b_w)[:, None]", "b_s = b_s / tl.exp(b_w)[:, None]"),
        ("        b_dw = tl.exp(b_w) * tl.sum(b_s * b_g, 1)\n", ""),
        (
            "        b_g = tl.exp(b_w)[:, None] * b_g + b_a[:, None] * b_dz[None, :]",
            "        b_g = tl.exp(b_w)[:, None] * b_g\n        b_dw = tl.sum(b_s * b_g, 1)\n"
            "        b_g += b_a[:, None] * b_dz[None, :]",
        ),
    ),
    "24_chunked_rwkv7.kernel": (
        (
            "tl.dot(b_inverse, b_y, input_precision=PRECISION)",
            "tl.dot(b_inverse, b_y, allow_tf32=False)",
        ),
        (
            "b_o += tl.dot(b_rb, b_z, input_precision=PRECISION)",
            "b_o = tl.dot(b_rb, b_z, b_o, input_precision=PRECISION)",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("id", SAME)
def test_a_right_kernel_of_another_shape_is_accepted(id):
    result = evaluate(id, edited(id, *SAME[id]))
    assert result.passed, str(result)


def test_a_kernel_that_norms_its_keys_is_wrong():
    """A model's keys are unit vectors, and the kernel takes any."""
    line = "b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]"
    normed = edited("22_delta_rule.kernel", (line, f"{line[:35]} / tl.sum(b_a * b_a)"))
    answer = evaluate("22_delta_rule.kernel", normed).rows[0]
    assert answer.verdict == "FAILED" and "o: first difference" in str(answer)


def test_an_inverse_that_is_right_for_short_chunks_alone_is_told_so():
    short = edited("24_chunked_rwkv7.kernel", ("for i in range(1, BT):", "for i in range(1, 16):"))
    case = next(x for x in solutions("24_chunked_rwkv7").CASES if x.symptom == "steps")
    row = answers(case)(short, load("24_chunked_rwkv7.kernel"))
    assert "BT tokens need BT − 1 rows" in str(row)


def rows(A):
    found = [torch.eye(A.shape[-1])[0].expand(*A.shape[:-2], 1, -1)]
    for i in range(1, A.shape[-1]):
        above = torch.cat(found, -2)
        found.append(torch.eye(A.shape[-1])[i] + A[..., i : i + 1, :i] @ above)
    return torch.cat(found, -2)


def solved(A):
    eye = torch.eye(A.shape[-1])
    return torch.linalg.solve_triangular(eye - A, eye.expand_as(A), upper=False)


def test_blocks_are_no_rows_and_no_solver():
    assert "two matrix products" in str(evaluate("24_chunked_rwkv7.by_blocks", rows))
    said = str(evaluate("24_chunked_rwkv7.by_blocks", solved))
    assert "linalg_solve_triangular solves the system, which a kernel has to do" in said


def test_a_chunk_is_not_charged_for_a_slow_inverse_of_the_learners():
    slow = solutions("24_chunked_rwkv7")
    before, slow.by_blocks = slow.by_blocks, rows
    try:
        result = evaluate("24_chunked_rwkv7.chunk", slow.chunk)
    finally:
        slow.by_blocks = before
    assert result.passed, str(result)


@pytest.mark.parametrize("decay", [0.8, 0.545, 0.3])
def test_errors_of_stepping_back_grow_as_the_lesson_says(decay):
    found = stepping_back.back_and_forth(decay, 16)
    for steps, error in enumerate(found, 1):
        # Sums of 32 products round a few times at each token, not once.
        assert 0.05 < error / (2**-24 / decay**steps) < 20
    assert max(stepping_back.back_and_forth(decay, 16, torch.float64)) < 1e-6


def test_predictions_of_chunks_count_their_products():
    text = wy.predictions(solutions("24_chunked_rwkv7").chunk)
    sixteen, _, sixty_four = (line.split() for line in text.splitlines()[1:4])
    assert float(sixteen[1]) < float(sixty_four[1]) < 26  # twelve products come to 24, and inverses
    assert float(sixteen[5]) == float(sixty_four[5])  # the bytes are the same
