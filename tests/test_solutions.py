"""Every answer passes its own check, every wrong kernel is rejected, zeros never pass."""

import pytest

from rwkv_lessons.lab import exercises
from rwkv_lessons.lab.check import evaluate

IDS = exercises.ids()


@pytest.mark.parametrize("id", IDS)
def test_the_solution_passes(id):
    result = evaluate(id, exercises.load(id).reference)
    assert result.passed, str(result)


@pytest.mark.parametrize("id", IDS)
def test_the_exercise_is_complete(id):
    exercise = exercises.load(id)
    assert 1 <= exercise.difficulty <= 3 and 1 <= exercise.minutes <= 45
    assert len(exercise.hints) == 3 and all(len(h) > 20 for h in exercise.hints)
    assert exercise.lines >= 1, "no SOLUTION region"
    assert exercise.stub != exercise.solution
    compile(exercise.stub, id, "exec")  # a stub is a program too


@pytest.mark.parametrize("id", IDS)
def test_wrong_kernels_are_rejected(id):
    wrong = exercises.wrong_kernels(id)
    assert len(wrong) >= 2, f"solutions/wrong/{id.split('.')[0]} holds fewer than two for {id}"
    for what, function in wrong:
        result = evaluate(id, function)
        assert result.attempted, f"{what}: looks like a stub"
        assert not result.passed, f"{what}: passes the check"
