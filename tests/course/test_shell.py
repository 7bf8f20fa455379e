"""`lessons check` hands the check what the notebook's own cell would, in every real lesson."""

import ast
import builtins
import functools
import json
import symtable

import pytest
import torch

from rwkv_lessons.lab.commands import cli, notebooks
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.outline import outline
from rwkv_lessons.records.fingerprint import plain

IDS = exercises.ids()


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Copies of all lessons, by what their exercises were filled with."""
    return {fill: _filled(fill, tmp_path_factory) for fill in (exercises.stub, exercises.solved)}


def _filled(fill, tmp_path_factory):
    folder = tmp_path_factory.mktemp(fill.__name__)
    for lesson in exercises.NOTEBOOKS.glob("*.ipynb"):
        notebook = json.loads(lesson.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if id := cell["metadata"].get("exercise"):
                cell["source"] = fill(id)
        (folder / lesson.name).write_text(json.dumps(notebook), encoding="utf-8")
    return folder


@pytest.mark.parametrize("id", IDS)
def test_an_untouched_copy_is_not_attempted(id, copies, monkeypatch):
    monkeypatch.setattr(notebooks, "work", lambda: copies[exercises.stub])
    assert not evaluate(id, notebooks.function_of(id)).attempted


@pytest.mark.parametrize("id", IDS)
def test_a_solved_copy_gives_the_function_that_passes(id, copies, monkeypatch):
    """It is the solution, and every name in it means the same: so its evidence is the same."""
    monkeypatch.setattr(notebooks, "work", lambda: copies[exercises.solved])
    function, reference = notebooks.function_of(id), exercises.load(id).reference
    stem = id.partition(".")[0]
    lesson = exercises.ids(stem)
    below = {later.partition(".")[2] for later in lesson[lesson.index(id) + 1 :]}
    _same(function, reference, below)


@pytest.mark.parametrize("id", IDS)
def test_what_is_read_from_the_text_is_what_the_module_has(id):
    (read,) = (exercise for exercise in outline(id.partition(".")[0]) if exercise.id == id)
    loaded = exercises.load(id)
    assert exercises.stub(id) == loaded.stub
    assert read.hints == loaded.hints and read.more == (loaded.guided is not None)
    assert (read.minutes, read.difficulty) == (loaded.minutes, loaded.difficulty)


def _same(value, wanted, below, seen=()):
    """Raises where two values, or two names that functions read, do not mean the same.

    Of the names of exercises further `below` the check knows for itself.
    """
    assert type(value) is type(wanted)
    try:
        function, other = plain(value), plain(wanted)
    except TypeError:
        # Constants of Gluon say what they are, and nothing is told of what they are equal to.
        assert value is wanted or repr(value) == repr(wanted)
        return
    if function is other or function in seen:
        return
    assert _code(function) == _code(other)
    for name in _reads(exercises.source_of(function)):
        if not hasattr(builtins, name) and name not in below:
            values = function.__globals__[name], other.__globals__[name]
            _same(*values, below, (*seen, function))


def _code(function):
    """What a function does, without comments and docstring."""
    tree = ast.parse(exercises.source_of(function))
    if ast.get_docstring(tree.body[0]):
        del tree.body[0].body[0]
    return ast.dump(tree)


@functools.cache
def _reads(source):
    """Global names that a function and those inside of it read when they are called."""
    (scope,) = symtable.symtable(source, "<cell>", "exec").get_children()
    queue, found = [scope], set()
    for scope in queue:
        queue += scope.get_children()
        found |= {s.get_name() for s in scope.get_symbols() if s.is_global()}
    return found


def test_a_solved_copy_passes_at_the_shell(copies, monkeypatch, capsys):
    """An exercise whose answer calls what an earlier check returned."""
    monkeypatch.setattr(notebooks, "work", lambda: copies[exercises.solved])
    monkeypatch.setattr(notebooks, "relative", lambda path: path.name)
    # The child has none of the threads with which torch computed here, and would wait for them.
    monkeypatch.setattr(cli, "setup", lambda: torch.set_num_threads(1))
    assert cli.main(["check", "24_chunked_rwkv7.chunk"]) == 0
    assert "1 of 1 solved" in capsys.readouterr().out
