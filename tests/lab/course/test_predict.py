"""A prediction is kept, and shown beside what came out."""

import pytest

from rwkv_lessons.lab import outcome, predict
from rwkv_lessons.lab.course.predict import close, factor


def test_without_a_number_nothing_is_noted(capsys):
    predict("99_test.nothing", None)
    outcome("99_test.nothing", 12, "requests")
    said = capsys.readouterr().out
    assert "No prediction yet" in said
    assert said.endswith("counted: 12 requests\n")


def test_a_prediction_stands_beside_the_outcome(capsys):
    predict("99_test.loads", 4000)
    outcome("99_test.loads", 1000, "requests")
    said = capsys.readouterr().out
    assert "Noted: 4,000" in said
    assert "counted: 1,000 requests\npredicted: 4,000 requests (4× too high)" in said


def test_factors():
    assert factor(5, 5) == "exactly"
    assert factor(1, 8) == "8× too low"
    assert factor(3, 1.5) == "2× too high"
    assert "no factor" in factor(0, 3)


@pytest.mark.parametrize(
    "guess, right", [(75, True), (125, True), (74, False), (126, False), (0, False)]
)
def test_a_quarter_off_is_close(guess, right):
    assert close(guess, 100) is right and close(0, 0)


@pytest.mark.parametrize("value", ["4", True, -1, float("nan"), [4]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="value must be a number of at least 0"):
        predict("99_test.bad", value)
