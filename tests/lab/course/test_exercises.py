"""Stubs, solutions and the static 'not attempted', on a made-up lesson."""

import textwrap

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import FAILED, PASSED, Row, evaluate
from rwkv_lessons.lab.course.exercises import Exercise

MODULE = '''
"""A lesson."""
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.course.exercises import Exercise

def double(x):
    """2·x"""
    ### BEGIN SOLUTION
    # a comment does not count
    y = x + x
    return y
    ### END SOLUTION

EXERCISES = {
    "double": Exercise(
        minutes=1, difficulty=1, hints=("a", "b", "c"),
        evidence=(function_cases(("one", ([1.0],), [2.0]),),),
        symptoms={"one": "twice, not once"},
    )
}
'''


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "SOLUTIONS", tmp_path)
    (tmp_path / "01_twice.py").write_text(MODULE.replace("x + x", "[2 * n for n in x]"))
    return "01_twice.double"


def test_stub_keeps_what_is_outside_the_region(lesson):
    assert exercises.stub(lesson) == textwrap.dedent('''\
        def double(x):
            """2·x"""
            # your code: about 2 lines
            raise NotImplementedError''')


def test_solution_has_no_markers(lesson):
    assert "###" not in exercises.solved(lesson)
    assert "return y" in exercises.solved(lesson)


def test_unattempted_is_seen_in_the_text_without_a_call(lesson):
    def double(x):
        raise NotImplementedError

    result = evaluate(lesson, double)
    assert not result.attempted and not result.passed
    assert result.kernel([1.0]) == [2.0]  # the reference answer


def test_a_right_answer_passes_and_is_returned(lesson):
    def double(x):
        return [n * 2 for n in x]

    result = evaluate(lesson, double)
    assert result.passed and result.kernel is double


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: x, "got"),
        (lambda x: [0.0], "got"),
        (lambda x: [float("nan")], "NaN"),
        (lambda x: [2.0, 2.0], "shape"),
        (lambda x: x.missing, "AttributeError"),
    ],
)
def test_a_wrong_answer_fails_and_does_not_raise(lesson, wrong, message):
    result = evaluate(lesson, wrong)
    assert not result.passed
    assert message in str(result) or "want" in str(result)
    assert result.kernel([1.0]) == [2.0]


def test_the_symptom_hint_is_shown(lesson):
    assert "twice, not once" in str(evaluate(lesson, lambda x: [0.0]))


def test_unknown_exercises_are_named():
    with pytest.raises(ValueError, match="no lesson '99_nothing'"):
        exercises.load("99_nothing.kernel")


def test_a_result_needs_evidence_that_passed():
    from rwkv_lessons.lab.course.check import ABSENT, Result

    def result(*verdicts):
        return Result("x", tuple(Row("k", v) for v in verdicts), True, print)

    assert result(PASSED, ABSENT).passed
    assert not result(ABSENT).passed
    assert not result(PASSED, FAILED).passed


def test_exercise_hints_are_three():
    fields = {field.name for field in Exercise.__dataclass_fields__.values()}
    assert {"minutes", "difficulty", "hints", "evidence"} <= fields


def test_without_triton_its_lessons_are_left_out(lesson, tmp_path):
    (tmp_path / "02_tiles.py").write_text("raise ModuleNotFoundError('no', name='triton')")
    assert exercises.ids() == [lesson]
    with pytest.raises(ModuleNotFoundError):
        exercises.ids("02_tiles")
