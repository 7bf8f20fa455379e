"""What people meet who report a fault, contribute, cite or teach."""

import re

import pytest
import yaml

import rwkv_lessons
from rwkv_lessons.lab.course.exercises import ROOT, stems

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda file: file.stem)
def test_a_form_asks_for_what_a_maintainer_needs(form):
    asked = yaml.safe_load(form.read_text())
    assert asked["name"] and asked["description"] and asked["title"]
    fields = {field["id"]: field for field in asked["body"]}
    assert len(fields) == len(asked["body"])
    assert any(field.get("validations", {}).get("required") for field in fields.values())
    assert all(field["attributes"]["label"] for field in fields.values())


def test_what_people_report_has_a_form_of_its_own():
    assert {form.stem for form in FORMS} == {"lesson", "verdict", "kernel", "times"}


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == rwkv_lessons.__version__
    assert cited["license"] == "MIT" and cited["cff-version"] == "1.2.0"


def test_a_commit_runs_the_ruff_of_the_lock():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert all(hook["entry"].startswith(".venv/bin/ruff ") for hook in hooks)


def test_a_semester_has_every_lesson_once_and_in_order():
    text = (ROOT / "docs" / "teach.md").read_text()
    weeks = re.findall(r"^\| (\d+) \| ((?:\d\d(?:, )?)+) \|", text, re.M)
    assert [int(week) for week, _ in weeks] == list(range(1, 15))
    taught = [lesson for _, lessons in weeks for lesson in lessons.split(", ")]
    assert taught == [stem[:2] for stem in stems()]


def test_two_hours_are_two_hours():
    text = (ROOT / "docs" / "teach.md").read_text()
    minutes = re.findall(r"^\| (\d+) \| \[\d\d ", text, re.M)
    assert sum(map(int, minutes)) == 120
