"""Progress survives crashes, broken files and two notebooks at once, and leaves learners' files."""

import json
import os
import subprocess
import sys

import pytest

from rwkv_lessons.lab.course import progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "somewhere" / "progress.json"
    monkeypatch.setenv(progress.VARIABLE, str(path))
    monkeypatch.setattr(progress, "_memory", {})
    monkeypatch.setattr(progress, "_printed_once", set())
    return path


def test_a_check_is_an_attempt_once_per_source(file):
    for passed, source in [(False, "a"), (False, "a"), (True, "b"), (True, "b"), (False, "c")]:
        progress.note_check("01_x.f", passed, source)
    entry = progress.load()["exercises"]["x.f"]
    assert entry["attempts"] == 3
    assert entry["passed"] and entry["hints"] == 0


def test_the_first_pass_keeps_its_time(file, monkeypatch):
    monkeypatch.setattr(progress, "_now", lambda: "first")
    progress.note_check("01_x.f", True, "a")
    monkeypatch.setattr(progress, "_now", lambda: "later")
    progress.note_check("01_x.f", True, "b")
    assert progress.load()["exercises"]["x.f"]["passed"] == "first"


def test_hints_come_in_three_tiers(file):
    assert [progress.note_hint("01_x.f") for _ in range(5)] == [1, 2, 3, 3, 3]


def test_after_a_pass_hints_unfold_again_from_the_first(file):
    assert [progress.note_hint("01_x.f") for _ in range(2)] == [1, 2]
    progress.note_check("01_x.f", False, "a")
    assert progress.note_hint("01_x.f") == 3
    progress.note_check("01_x.f", True, "b")
    assert [progress.note_hint("01_x.f") for _ in range(2)] == [1, 2]
    assert progress.load()["exercises"]["x.f"]["hints"] == 3  # as many as were needed


def test_notes_survive_when_lessons_are_renumbered(file):
    """Of a file that this version wrote, and of one from before, with numbers in its keys."""
    progress.note_check("05_x.f", True, "a")
    assert progress.note_hint("12_x.f") == 1
    old = {"attempts": 4, "hints": 2, "passed": "2026-01-02", "source": "s"}
    file.write_text(
        json.dumps(
            {
                "exercises": {"05_x.f": old, "06_x.f": old | {"passed": None}, "y_2.g": old},
                "predictions": {
                    "05_x.loads": {"value": 1, "time": "2026-01-02"},
                    "x.loads": {"value": 2, "time": "2026-01-01"},
                },
            }
        )
    )
    data = progress.load()
    assert set(data["exercises"]) == {"x.f", "y_2.g"} and data["exercises"]["x.f"] == old
    assert progress.prediction("17_x.loads") == 1 and len(data["predictions"]) == 1
    assert progress.note_hint("12_x.f") == 3
    assert "05_x" not in file.read_text()


def test_an_outcome_is_kept_beside_a_prediction_only(file):
    progress.note_outcome("01_x.y", 8, "loads")
    assert progress.load()["predictions"] == {}
    progress.note_prediction("01_x.y", 4)
    progress.note_outcome("02_x.y", 8, "loads")
    note = progress.load()["predictions"]["x.y"]
    assert (note["value"], note["outcome"], note["unit"]) == (4, 8, "loads")


def test_predictions_are_kept_and_replaced(file):
    assert progress.prediction("01_x.sectors") is None
    progress.note_prediction("01_x.sectors", 4)
    progress.note_prediction("01_x.sectors", 8.5)
    assert progress.prediction("01_x.sectors") == 8.5


def test_off_touches_no_file_and_still_remembers(file, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, "off")
    progress.note_prediction("01_x.y", 3)
    assert (progress.note_hint("01_x.f"), progress.note_hint("01_x.f")) == (1, 2)
    assert progress.prediction("01_x.y") == 3
    assert not file.parent.exists() and progress.path() is None


def test_the_suite_itself_leaves_the_learner_alone():
    assert os.environ[progress.VARIABLE] == "off"


BROKEN = [
    b"",
    b'{"exercises": {"01_x.f": {"attem',
    b"\xff\xfe\x00",
    b"[1, 2]",
    b'{"exercises": []}',
    b'{"exercises": {"01_x.f": {"attempts": "many", "hints": 0, "passed": null, "source": null}}}',
    b'{"predictions": {"01_x.y": 3}}',
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_kept_aside_and_said(file, content, capsys):
    file.parent.mkdir()
    file.write_bytes(content)
    progress.note_check("01_x.f", True, "a")
    (aside,) = file.parent.glob("*.unreadable-*")
    assert aside.read_bytes() == content
    assert aside.name in capsys.readouterr().err
    assert progress.load()["exercises"]["x.f"]["attempts"] == 1


def test_fields_of_a_newer_version_survive(file):
    file.parent.mkdir()
    file.write_text('{"exercises": {}, "predictions": {}, "badges": [1]}')
    progress.note_hint("01_x.f")
    assert json.loads(file.read_text())["badges"] == [1]


def test_a_crash_while_writing_leaves_the_old_file(file, monkeypatch):
    progress.note_prediction("01_x.y", 1)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        progress.note_prediction("01_x.y", 2)
    assert progress.prediction("01_x.y") == 1
    assert not list(file.parent.glob("*.new"))


def test_a_value_json_cannot_hold_is_refused(file):
    with pytest.raises(TypeError):
        progress.note_prediction("01_x.y", object())
    assert not file.exists()


def test_a_lesson_goes_on_where_nothing_can_be_written(file, capsys):
    file.parent.write_text("a file where the folder should be")
    assert (progress.note_hint("01_x.f"), progress.note_hint("01_x.f")) == (1, 2)
    assert capsys.readouterr().err.count("progress is not kept") == 1


def test_what_was_kept_counts_where_nothing_can_be_written(file, monkeypatch, capsys):
    """As in a folder that is mounted read-only."""
    monkeypatch.setattr(progress, "_memory", {})
    progress.note_check("01_x.f", True, "text")

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(progress, "FileLock", refuse)
    progress.note_hint("01_x.g")
    noted = progress.load()["exercises"]
    assert noted["x.f"]["passed"] and noted["x.g"]["hints"] == 1
    assert f"{file} cannot be written (Read-only file system)" in capsys.readouterr().err


def test_notebooks_writing_at_once_lose_nothing(file):
    code = (
        "import sys; from rwkv_lessons.lab.course import progress\n"
        "progress.PATIENCE = 300  # on a slow disk, one has written all before the other's turn\n"
        "for n in range(40): progress.note_check('01_x.f', False, sys.argv[1] + str(n))\n"
        "for n in range(40): progress.note_prediction(sys.argv[1] + str(n), n)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    data = progress.load()
    assert data["exercises"]["x.f"]["attempts"] == 80
    assert len(data["predictions"]) == 80
