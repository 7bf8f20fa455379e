"""What the checks of lessons 10 and 11 refuse, what they let pass, and what they say of it."""

import types

import pytest
import torch
from numba import cuda

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import FAILED, PASSED, evaluate
from rwkv_lessons.lab.evidence import kernels
from rwkv_lessons.lab.lessons.lessons_10_11 import budgets as timex_budgets
from rwkv_lessons.lab.lessons.lessons_10_11 import evidence as timex
from rwkv_lessons.timex.cuda import backward, forward
from warplens.faults import OutOfBounds

NAIVE, SHARED, DW = "10_time_x.naive", "10_time_x.shared", "11_time_x_gradients.dw_naive"
BUDGETS = (  # as of `grouped`; but many of their products are with zeros in so short a row
    timex_budgets.global_reads(0.05),
    timex_budgets.shared_reads(0.4),
    timex_budgets.conflicts(),
    timex_budgets.conflicts("store"),
    timex_budgets.no_atomics(),
)


def library_forward():
    kernel, _, _ = forward.build.__wrapped__(torch.float32, 1)

    @cuda.jit
    def convolve(w, k, o):
        B, C, T = k.shape
        kernel(w.reshape(w.size), k.reshape(k.size), o.reshape(o.size), 0.0, B, C, T)

    return convolve, lambda B, C, T: forward.blocks_for(B, C, T, 1), "o"


def library_backward():
    kernel, _, distances = backward.build.__wrapped__(torch.float32, 4)

    @cuda.jit
    def correlate(k, do, dw):
        B, C, T = k.shape
        kernel(do.reshape(do.size), k.reshape(k.size), dw.reshape(dw.size), B, C, T)

    return correlate, lambda B, C, T: backward.blocks_for(C, T, distances), "dw"


@pytest.mark.parametrize("build", [library_forward, library_backward])
def test_the_librarys_kernels_pass_the_checks_of_the_lessons(build, monkeypatch):
    kernel, blocks, written = build()
    exercise = types.SimpleNamespace(reference=kernel, symptoms={})
    monkeypatch.setattr(timex, "sizes", lambda *_: {})  # a tile of theirs is 128 or 256
    small = [case for case in timex.CASES if case.shape[0] < 20 and max(case.shape) < 80]
    monkeypatch.setattr(timex, "CASES", small)
    launch = lambda B, C, T, tile=backward.THREADS: (blocks(B, C, T), tile)  # noqa: E731
    (gather,) = timex.timex_judged(launch, (written,), *BUDGETS, traced=timex.TRACED_FOUR)
    for row in gather(kernel, exercise):
        assert row.verdict == PASSED, str(row)


def judged(id, *edits):
    """The evidence for the solution with these edits."""
    text = exercises.solved(id)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return evaluate(id, exercises.defined(id, text, "<a learner's>"))


def test_a_race_explains_a_wrong_answer_in_the_case_that_shows_it():
    barrier = "cuda.syncthreads()  # everyone has read what is overwritten now"
    answer, traffic = judged(SHARED, (barrier, "pass")).rows[:2]
    assert "75 tokens" in answer.text and "race on s_" in "\n".join(answer.details)
    assert traffic.verdict == FAILED


LIMITED = {
    "four outputs a thread": (NAIVE, "while t < T:", "while t < min(T, 4 * cuda.blockDim.x):"),
    "1,024 outputs": (NAIVE, "while t < T:", "while t < min(T, 1024):"),
    "512 channels": (NAIVE, "* k[b, c, u]", "* k[b, c % 512, u]"),
    "128 batch rows": (DW, "range(B)", "range(min(B, 128))"),
    "four chunks of tokens": (SHARED, "(0, t0 + 1, TILE)", "(0, min(t0 + 1, 4 * TILE), TILE)"),
}


@pytest.mark.parametrize("limit", LIMITED)
def test_a_kernel_that_is_right_up_to_a_limit_is_refused(limit):
    id, *change = LIMITED[limit]
    result = judged(id, change)
    assert [row.verdict for row in result.rows if row.kind == "answer"] == [FAILED]


def test_an_atomic_in_the_second_tile_only_is_counted():
    add = "cuda.atomic.add(s_w, 0, float32(1)) if t0 > 0 else 0"
    again = "i = x\n            cuda.syncthreads()\n            while i < min(TILE"
    result = judged(
        SHARED, ("i = x\n            while i < min(TILE", f"{add}\n            {again}")
    )
    assert "atomics, want at most 0" in str(result)


WIDE = ("(WINDOW, float32)", "(2 * WINDOW, float32)"), ("s_w[i] =", "s_w[2 * i] =")


def test_bank_conflicts_in_the_loop_of_products_are_refused():
    result = judged(
        SHARED, *WIDE, ("s_w[TILE - x :]", "s_w[2 * (TILE - x) :]"), ("w_t[u]", "w_t[2 * u]")
    )
    assert "by reads, are bank conflicts, want at most 0" in " ".join(str(result).split())


def test_bank_conflicts_where_an_array_is_filled_are_told():
    filled = "s_k[i] = k[b, c, u0 + i]"
    again = f"{filled}\n                s_w[2 * (WINDOW + i)] = s_k[i]"
    result = judged(SHARED, ("(WINDOW, float32)", "(3 * WINDOW, float32)"), (filled, again))
    (row,) = (row for row in result.rows if row.kind == "traffic")
    assert row.verdict == PASSED and "by writes, are bank conflicts" in str(result), str(result)


def test_sizes_that_a_traced_case_changes_are_named():
    text = exercises.solved(SHARED).replace("s_w[TILE - x :]", "s_w[1020 - x :]")
    kernel = exercises.defined(SHARED, text, "<a learner's>")
    values = timex.arrays(kernel, ("o",), (1, 1, 9))
    sizes = {"TILE": 32, "WINDOW": 64}
    given = kernels.Problem([(1, 32, values)], ("o",), lambda: None, sizes)
    with pytest.raises(OutOfBounds) as caught:
        kernels.run(kernel, given, timex.TRACED, traced=True)
    assert "TILE is 32 and WINDOW is 64" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("id", [NAIVE, DW, "11_time_x_gradients.dk_naive"])
def test_a_kernel_without_shared_memory_gets_no_hints_on_it(id):
    symptoms = {"order", *(case.symptom for case in timex.CASES)}
    hints = [exercises.load(id).symptoms.get(symptom, "") for symptom in symptoms]
    assert len(hints) > 5
    for word in ("ROWS", "barrier", "t0", "u0", "window", "s_w"):
        assert not any(word in hint for hint in hints), word


@pytest.mark.parametrize("stem", ["10_time_x", "11_time_x_gradients"])
def test_every_case_that_may_fail_has_a_hint(stem):
    for id in exercises.ids():
        if id.startswith(stem) and id.rpartition(".")[2] not in ("launch", "toeplitz"):
            assert {case.symptom for case in timex.CASES} - {"order"} <= {
                *exercises.load(id).symptoms
            }
