"""What is derived from other files: a run that finds it old names the command that renews it."""

import subprocess
import sys
from types import SimpleNamespace

from rwkv_lessons.operations.entries import ROOT
from tests.support import derived


def test_each_old_file_is_named_once_with_its_command():
    def failed(*marks):
        return SimpleNamespace(user_properties=[("derived", mark) for mark in marks])

    stubs = ["exercises in notebooks/", "lessons sync"]  # a list, as another process sends it
    assert derived.renewals([]) == derived.renewals([failed()]) == []
    assert derived.renewals([failed(stubs), failed(tuple(stubs)), failed(("a", "b"))]) == [
        "old, or wrong: exercises in notebooks/; renewed by: lessons sync",
        "old, or wrong: a; renewed by: b",
    ]


def test_a_run_that_fails_ends_with_what_is_old(tmp_path):
    """In a run of its own, of a test that fails beside one that holds nothing to its source."""
    file = tmp_path / "test_made_for_a_moment.py"
    text = (
        "import pytest\n"
        "@pytest.mark.derived('a table', 'make table')\n"
        "def test_a(): assert False\n"
        "def test_b(): assert False\n"
    )
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "conftest"]
    said = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True).stdout
    assert said.count("old, or wrong") == 1
    assert "old, or wrong: a table; renewed by: make table" in said


def test_cells_are_outputs_of_their_notebook():
    item = SimpleNamespace(cell="", path=ROOT / "notebooks/00_start_here.ipynb", user_properties=[])
    derived.noted(item)
    outputs = ("outputs of 00_start_here.ipynb", "lessons run 00")
    assert item.user_properties == [("derived", outputs)]
