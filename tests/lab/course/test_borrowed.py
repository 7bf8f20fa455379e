"""A learner's function is the learner's: what runs in its place is named, however it is reached."""

import textwrap

import pytest
import triton

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import FAILED, evaluate

COMPOSE, DOUBLING = "30_many_gpus.compose", "24_chunked_rwkv7.by_doubling"
MODULE = "rwkv_lessons.lab.lessons.lesson_30.evidence"


def typed(id, text):
    """The function of an exercise whose cell has this text."""
    return exercises.defined(id, textwrap.dedent(text), f"<typed {hash(text)}>")


@pytest.mark.parametrize(
    "text",
    [
        f"""
        import importlib
        def compose(A1, B1, A2, B2):
            ranks = importlib.import_module("{MODULE}")
            return ranks.exact_compose(A1, B1, A2, B2)
        """,
        f"""
        import {MODULE} as ranks
        FUNCTIONS = [vars(ranks)["exact_" + "compose"]]
        def compose(*maps):
            return FUNCTIONS[0](*maps)
        """,
        """
        import sys
        def compose(*maps):
            return getattr(sys.modules["solutions.30_many_gpus"], "compose")(*maps)
        """,
        f"""
        import {MODULE} as ranks, threading
        def compose(*maps):
            found = []
            threading.Thread(target=lambda: found.extend(ranks.exact_compose(*maps))).run()
            return found
        """,
        f"""
        import {MODULE} as ranks, threading
        def compose(*maps):
            found = []
            thread = threading.Thread(target=lambda: found.extend(ranks.exact_compose(*maps)))
            thread.start()
            thread.join()
            return found
        """,
        f"""
        import functools, {MODULE} as ranks
        compose = functools.partial(ranks.exact_compose)
        """,
    ],
    ids=["importlib", "a table", "the solution", "a call back", "a thread", "partial"],
)
def test_the_projects_own_answer_is_seen_however_it_is_reached(text):
    (row,) = evaluate(COMPOSE, typed(COMPOSE, text)).rows
    assert row.verdict == FAILED
    assert row.text.endswith("compose, which is this library's own answer")


def test_the_line_that_borrows_is_shown():
    text = f"import {MODULE} as ranks\ndef compose(*maps):\n    return ranks.exact_compose(*maps)\n"
    (row,) = evaluate(COMPOSE, typed(COMPOSE, text)).rows
    assert row.details[0] == "line 3: return ranks.exact_compose(*maps)"


def test_what_a_learner_calls_by_the_librarys_names_is_the_learners():
    text = """
    def exact_compose(A1, B1, A2, B2):
        return A1 * A2, A2[:, None] * B1 + B2
    def compose(*maps):
        return exact_compose(*maps)
    """
    assert evaluate(COMPOSE, typed(COMPOSE, text)).passed


@pytest.mark.parametrize(
    "solve",
    [
        "torch.linalg.solve_triangular(eye - A, eye, upper=False)",
        "(eye - A).inverse()",
        "torch.from_numpy(numpy.linalg.inv((eye - A).numpy()))",
    ],
)
def test_a_solver_beside_an_idle_product_is_no_product(solve):
    text = f"""
    import numpy, torch
    def by_doubling(A):
        eye = torch.eye(A.shape[-1]).expand_as(A)
        A @ A
        return {solve}
    """
    *_, row = evaluate(DOUBLING, typed(DOUBLING, text)).rows
    assert row.verdict == FAILED and "solves the system, which a kernel has to do" in row.text


def test_a_kernel_that_calls_the_solutions_is_seen():
    id = "12_first_tiles.add"
    text = """
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        theirs(x, y, out, n, BLOCK)
    """
    kernel = typed(id, text)
    kernel.fn.__globals__["theirs"] = triton.jit(exercises.load(id).reference.fn)
    (row,) = evaluate(id, kernel).rows
    assert "it calls add, which is this library's own answer" in row.text


def test_an_attribute_that_shares_a_name_with_this_librarys_function_is_no_call():
    id = "12_first_tiles.add"
    kernel = typed(id, exercises.solved(id))
    kernel.fn.__globals__["load"] = exercises.load  # as lesson 12 imports it; the kernel's: tl.load
    assert evaluate(id, kernel).passed
