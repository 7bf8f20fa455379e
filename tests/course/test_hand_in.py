"""`lessons report` writes what a student hands in, and `lessons collect` a class's table."""

import csv
import io

import pytest

from rwkv_lessons.lab.commands import cli, hand_in, notebooks
from rwkv_lessons.lab.course import progress
from rwkv_lessons.lab.course.outline import outline

ID, OTHER = "05_float4.kernel", "00_start_here.outer"
CODE = "@cuda.jit\ndef kernel():\n    '''```'''\n"


@pytest.fixture
def student(tmp_path, monkeypatch):
    """Somebody who solved one exercise and tried another."""
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(notebooks, "text_of", lambda id: CODE)
    monkeypatch.chdir(tmp_path)
    progress.note_check(ID, True, "x")
    progress.note_check(OTHER, False, "y")
    progress.note_check(OTHER, False, "z")
    progress.note_hint(OTHER)


def test_a_report_has_every_exercise_and_the_code_of_those_attempted(student):
    text = hand_in.written("Ada")
    rows = hand_in.ROW.findall(text)
    assert [id for id, *_ in rows] == [exercise.id for exercise in outline()]
    assert [row for row in rows if row[0] == OTHER] == [(OTHER, "no", "2", "1")]
    assert sum(solved != "no" for _, solved, *_ in rows) == 1
    assert "1 of " in text and text.count("\n## ") == 2
    assert f"## {ID}\n\n````python\n{CODE.rstrip()}\n````\n" in text  # a fence longer than its own


def test_a_class_is_one_table(student, capsys, tmp_path):
    assert cli.main(["report", "Ada Lovelace"]) == 0
    assert cli.main(["report", "Zuse, K.", "--to", "zuse.md"]) == 0
    assert cli.main(["report", "Zuse, K.", "--to", "zuse.md"]) == 0  # again, over one's own
    capsys.readouterr()
    assert cli.main(["collect", "report-ada-lovelace.md", "zuse.md"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == ["name", "file", "solved", *[exercise.id for exercise in outline()]]
    assert [row[:3] for row in rows] == [
        ["Ada Lovelace", "report-ada-lovelace.md", "1"],
        ["Zuse, K.", "zuse.md", "1"],
    ]
    told = dict(zip(head, rows[0], strict=True))
    assert told[OTHER] == "2 attempts" and told["04_drop_the_atomics.kernel"] == ""
    assert told[ID].count("-") == 2  # a day


def test_a_lesson_that_is_not_here_any_more_comes_last(student, tmp_path):
    path = tmp_path / "old.md"
    path.write_text(hand_in.written("Ada").replace(f"| {ID} |", "| 05_gone.kernel |"))
    head = hand_in.collected([path]).splitlines()[0]
    assert head.endswith(",05_gone.kernel") and ID not in head


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["report", " "], "name is ' '"),
        (["report", "Ada", "--to", "notes.md"], "notes.md is there and is not a report"),
        (["collect", "notes.md"], "notes.md is no report"),
        (["collect", "nothing.md"], "nothing.md"),
    ],
)
def test_a_wrong_request_changes_nothing(student, tmp_path, capsys, arguments, message):
    (tmp_path / "notes.md").write_text("# Notes\n")
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "notes.md").read_text() == "# Notes\n"


def test_the_cell_of_an_exercise_is_its_code():
    assert "raise NotImplementedError" in notebooks.text_of("04_drop_the_atomics.kernel")
    assert notebooks.text_of("04_drop_the_atomics.nothing") == ""
