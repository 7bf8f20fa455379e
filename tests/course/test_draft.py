"""`lessons new` writes a lesson that keeps to every rule that lessons keep to."""

import nbformat
import pytest
import test_notebooks
from test_solutions import test_the_exercise_is_complete as complete
from test_solutions import test_wrong_answers_are_rejected as rejected

from rwkv_lessons.lab.commands import draft
from rwkv_lessons.lab.course import exercises, outline
from rwkv_lessons.lab.course.check import evaluate

STEM, ID = "31_another_sum", "31_another_sum.running_sums"


@pytest.fixture
def written(tmp_path, monkeypatch):
    for name in ("NOTEBOOKS", "SOLUTIONS"):
        (tmp_path / name.lower()).mkdir()
        monkeypatch.setattr(exercises, name, tmp_path / name.lower())
    (tmp_path / "README.md").write_text("")
    return draft.write(STEM)


def test_a_draft_is_written_to_three_places(written):
    places = [f"{path.parent.name}/{path.name}" for path in written]
    assert places == [f"notebooks/{STEM}.ipynb", f"solutions/{STEM}.py", f"wrong/{STEM}.py"]


RULES = [rule for name, rule in vars(test_notebooks).items() if hasattr(rule, "pytestmark")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_draft_keeps_to_the_rules_of_notebooks(rule, written):
    assert len(RULES) > 12
    rule(written[0])


def passes(id):
    assert evaluate(id, exercises.load(id).reference).passed


@pytest.mark.parametrize("rule", [complete, passes, rejected])
def test_a_draft_keeps_to_the_rules_of_exercises(rule, written):
    rule(ID)
    assert [e.id for e in outline.outline(STEM)] == [ID]


def test_a_draft_is_valid_and_overwrites_nothing(written):
    nbformat.validate(nbformat.read(written[0], 4))
    for stem, said in ((STEM, "taken by 31_another_sum"), ("delta", "no name of a lesson")):
        with pytest.raises(ValueError, match=said):
            draft.write(stem)
