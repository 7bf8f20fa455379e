"""Every exercise is complete, and every wrong answer is rejected.

That every solution passes its check is seen where the notebooks run solved: `make test` does.
"""

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import FAILED, rows_of
from rwkv_lessons.lab.course.gaps import Parted
from rwkv_lessons.lab.course.wrong_answers import wrong_answers

IDS = exercises.ids()


@pytest.mark.parametrize("id", IDS)
def test_the_exercise_is_complete(id):
    exercise = exercises.load(id)
    assert 1 <= exercise.difficulty <= 3 and 1 <= exercise.minutes <= 45
    assert len(exercise.hints) == 3 and all(len(h) > 20 for h in exercise.hints)
    assert exercise.lines >= 1, "no SOLUTION region"
    assert exercise.stub != exercise.solution
    compile(exercise.stub, id, "exec")  # a stub is a program too
    parts = exercise.guided or exercise
    gaps = Parted(parts, parts.stub).open
    assert len(gaps) == parts.gaps, "between two gaps there has to be a given line"
    told = exercise.afterwards
    assert 1 <= len(told.why) <= 3 and 1 <= len(told.instead) <= 2 and len(told.stretch) > 20
    for line in told.why:
        assert line in exercise.solution, "what is explained stands in the solution"


@pytest.mark.parametrize("id", IDS)
def test_wrong_answers_are_rejected(id):
    wrong = wrong_answers(id)
    assert len(wrong) >= 2, f"solutions/wrong/{id.partition('.')[0]}.py has fewer than two for {id}"
    exercise = exercises.load(id)
    for answer in wrong.values():
        assert exercises.attempted(answer.function), f"{answer.name}: looks like a stub"
        # Up to the first row that fails: the rest takes most of the time, and changes nothing.
        rows = rows_of(exercise, answer.function)
        assert any(row.verdict == FAILED for row in rows), f"{answer.name}: passes the check"
