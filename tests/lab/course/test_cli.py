"""The `lessons` command, on a made-up course of one lesson."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rwkv_lessons.course import main as command
from rwkv_lessons.lab.commands import cli, companion, named, signposts
from rwkv_lessons.lab.commands.attended import attended
from rwkv_lessons.lab.commands.keys import keys
from rwkv_lessons.lab.course import exercises, progress
from warplens import time_limit

SOLUTION = '''
"""A lesson."""
from rwkv_lessons.lab.course.check import FAILED, PASSED, Row
from rwkv_lessons.lab.course.exercises import Exercise

FACTOR = 2

def answer(function, exercise):
    return Row("answer", PASSED if function(3) == 6 else FAILED)

def double(x):
    ### BEGIN SOLUTION
    return FACTOR * x
    ### END SOLUTION

def again(x):
    ### BEGIN SOLUTION
    return double(x)
    ### END SOLUTION

EXERCISES = {
    "double": Exercise(5, 1, ("look", "multiply", "FACTOR * x"), (answer,)),
    "again": Exercise(10, 2, ("a", "b", "c"), (answer,)),
}
'''
LIMITED = """FACTOR = 2
from warplens.time_limit import time_limit

def limited_to(function):
    with time_limit(0.1):
        return function(3) == 6
"""
REPOSITORY = Path(__file__).parents[3]
DOUBLE, AGAIN = "01_twice.double", "01_twice.again"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A tree with one lesson; `run(...)` gives exit code and output of a command."""
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(cli, "setup", lambda: None)  # says what the machine can do; slow
    for name in ("ROOT", "NOTEBOOKS", "SOLUTIONS"):
        folder = tmp_path if name == "ROOT" else tmp_path / name.lower()
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(exercises, name, folder)
    (tmp_path / "solutions" / "01_twice.py").write_text(SOLUTION)
    cells = [
        new_markdown_cell("# 01 · Twice"),
        new_code_cell("import math\n\nFACTOR = 2\nraise SystemExit('cells above do not run')"),
        new_markdown_cell("Write it.\n\n*5 minutes · ●○○*"),
        new_code_cell(exercises.stub(DOUBLE), metadata={"exercise": DOUBLE}),
        new_code_cell("%scratch, not Python"),
        new_markdown_cell("And again.\n\n*10 minutes · ●●○*"),
        new_code_cell(exercises.stub(AGAIN), metadata={"exercise": AGAIN}),
        new_markdown_cell(f"The end.\n\n{signposts.LAST}"),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "01_twice.ipynb")
    return tmp_path


@pytest.fixture
def run(course, capfd):
    def run(*words):
        code = cli.main(list(words))
        said = capfd.readouterr()  # of child processes, too
        return code, said.out + said.err

    return run


def write(path, id, source):
    """Types `source` into the exercise's cell of a notebook."""
    notebook = nbformat.read(path, 4)
    (cell,) = [cell for cell in notebook.cells if cell.metadata.get("exercise") == id]
    cell.source = source
    nbformat.write(notebook, path)


def source(path, id):
    cells = nbformat.read(path, 4).cells
    return next(cell.source for cell in cells if cell.metadata.get("exercise") == id)


@pytest.fixture
def mine(course, run):
    run("start")
    return course / "work" / "01_twice.ipynb"


def test_start_copies_and_never_overwrites(course, run):
    assert "new      work/01_twice.ipynb" in run("start")[1]
    mine = course / "work" / "01_twice.ipynb"
    write(mine, DOUBLE, "def double(x): return 7")
    before = mine.read_bytes()
    lesson = course / "notebooks" / "01_twice.ipynb"
    write(lesson, AGAIN, "def again(x): return 'newer'")
    assert "kept     work/01_twice.ipynb: you changed it" in run("start")[1]
    assert mine.read_bytes() == before


def test_a_copy_that_was_not_changed_follows_its_lesson(mine, course, run):
    lesson = course / "notebooks" / "01_twice.ipynb"
    assert "as they were: 1" in run("start")[1]
    for text in ("first", "second"):
        write(lesson, AGAIN, text)
        assert "updated  work/01_twice.ipynb" in run("start")[1]
        assert mine.read_bytes() == lesson.read_bytes()
    nbformat.write(new_notebook(cells=[]), course / "notebooks" / "02_more.ipynb")
    said = run("start")[1]
    assert "new      work/02_more.ipynb" in said and "as they were: 1" in said


def test_check_runs_the_learners_cells(mine, run):
    write(mine, DOUBLE, "def double(x):\n    return FACTOR * x")
    code, said = run("check", DOUBLE)
    assert code == 0 and "1 of 1 solved" in said
    write(mine, DOUBLE, "def double(x):\n    return x")
    code, said = run("check", DOUBLE)
    assert code == 1 and "✗ answer" in said
    assert progress.load()["exercises"]["twice.double"]["attempts"] == 2


def test_a_loop_in_c_is_ended_and_the_next_exercise_checked(mine, run, monkeypatch):
    """It never comes back to Python, where every other loop is stopped."""
    monkeypatch.setattr(time_limit, "GRACE", 0)
    (mine.parents[1] / "solutions" / "01_twice.py").write_text(
        SOLUTION.replace("if function(3) == 6", "if limited_to(function)").replace(
            "FACTOR = 2\n", LIMITED, 1
        )
    )
    write(mine, DOUBLE, "def double(x):\n    return sum(iter(int, 1))")
    write(mine, AGAIN, "def again(x):\n    return 6")
    code, said = run("check", "01")
    assert code == 1 and "1 of 2 solved" in said
    assert "line 2 of 01_twice.ipynb, cell 2 does not come back" in said


def test_check_of_a_lesson_counts(mine, run):
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    code, said = run("check", "01")
    assert code == 1 and "not attempted yet" in said and "1 of 2 solved" in said
    write(mine, AGAIN, "def again(x):\n    return double(x)")
    assert run("check")[0] == 0


def test_a_lesson_that_was_not_begun_is_a_line(mine, run, monkeypatch):
    monkeypatch.setattr(cli, "setup", lambda: pytest.fail("there is nothing to check"))
    for words in (["check"], ["check", "01"]):
        code, said = run(*words)
        assert code == 1 and said.splitlines()[1:] == [
            "2 exercises in 1 lesson not attempted yet; `lessons next` shows the next one",
            "0 of 2 solved",
        ]


@pytest.mark.parametrize(
    "typed, said",
    [
        ("def double(x):\n    return (", "SyntaxError"),
        ("def double(x):\n    return x\n\ndouble(1) / 0", "double(1) / 0"),
        ("def triple(x):\n    return 3 * x", "does not define double"),
    ],
)
def test_a_cell_that_does_not_run_is_shown(mine, run, typed, said):
    write(mine, DOUBLE, typed)
    code, out = run("check", DOUBLE)
    assert code == 1 and said in out and "work/01_twice.ipynb" in out


def test_without_work_the_lesson_itself_is_checked(course, run):
    write(course / "notebooks" / "01_twice.ipynb", DOUBLE, "def double(x):\n    return x + x")
    assert run("check", DOUBLE)[0] == 0


def test_list_and_next_follow_progress(mine, run):
    assert run("next")[1].startswith(f"{DOUBLE}: 1 line, about 5 minutes, in work/01_twice.ipynb")
    run("hint", DOUBLE)
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    run("check", DOUBLE)
    lines = run("list")[1].splitlines()
    assert lines[0] == "01  twice"
    assert lines[1].split() == ["✓", DOUBLE, "5", "min", "●○○", "1", "attempt", "1", "hint"]
    assert lines[2].split() == ["·", AGAIN, "10", "min", "●●○"]
    assert run("next")[1].startswith(AGAIN)


def test_progress_has_a_line_for_each_lesson(mine, run):
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    run("check", DOUBLE)
    lesson, left = run("progress")[1].splitlines()
    assert lesson.split() == ["01", "twice", "✓·"]
    assert left == "1 of 2 solved, about 0 h 10 min of exercises to go"


def test_one_gap_is_for_one_exercise(mine, run):
    assert run("check", "01", "--gap", "1")[0] == 2
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    code, said = run("check", DOUBLE, "--gap", "1")
    assert code == 0 and "So far so good: gap 1" in said
    code, said = run("check", DOUBLE, "--gap", "2")
    assert code == 2 and "gap is 2, needs a number from 1 to 1" in said


def test_saving_a_notebook_checks_what_changed(mine, run):
    seen = cli.changes([DOUBLE, AGAIN], seconds=0)
    assert [next(seen), next(seen)] == [DOUBLE, AGAIN]
    write(mine, AGAIN, "def again(x):\n    return 6")
    assert next(seen) == AGAIN  # nothing above it changed for the first
    mine.write_text("half a notebook")
    os.utime(mine, ns=(1, 1))
    write_whole = next(seen)
    assert write_whole == DOUBLE


@pytest.mark.parametrize("words", [["doctor"], ["translations", "zh"], ["reset", "05"]])
def test_what_takes_seconds_says_first_what_it_does(words):
    """Before it imports torch or nbformat."""
    code = (
        "import sys; from rwkv_lessons.lab.commands import cli\n"
        f"def first(text=''): print(text, {{'torch', 'nbformat'}} & {{*sys.modules}}); sys.exit()\n"
        f"cli.say = first; cli.main({words})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("[dim]") and out.stdout.endswith(" set()\n")


def test_the_way_is_found_without_torch(course):
    """`lessons next` answers in a second: nothing that it imports takes longer."""
    code = (
        "import sys; from rwkv_lessons.lab.commands.cli import main; main(['next'])\n"
        "assert not {'torch', 'numba', 'nbformat', 'triton', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_hints_grow(mine, run):
    shown = [run("hint", DOUBLE)[1].split(": ")[1] for _ in range(4)]
    last = "FACTOR * x\nThat was the last hint.\n"
    assert shown == ["look\n", "multiply\n", last, last]


def test_reset_restores_only_the_stubs(mine, run):
    write(mine, DOUBLE, "def double(x): return 7")
    notebook = nbformat.read(mine, 4)
    notebook.cells.insert(0, new_markdown_cell("my own notes"))
    nbformat.write(notebook, mine)
    before = mine.read_bytes()
    assert "1 of its exercises" in run("reset", "01")[1]
    after = nbformat.read(mine, 4)
    assert source(mine, DOUBLE) == exercises.stub(DOUBLE)
    assert after.cells[0].source == "my own notes" and len(after.cells) == 9
    (backup,) = (mine.parent / "backups").iterdir()
    assert backup.read_bytes() == before
    assert "nothing to reset" in run("reset", "01_twice")[1]


def test_sync_derives_and_compares(course, run):
    lesson = course / "notebooks" / "01_twice.ipynb"
    assert run("sync", "--check") == (0, "")
    write(lesson, AGAIN, "old")
    assert run("sync", "--check")[0] == 1
    assert source(lesson, AGAIN) == "old"
    assert run("sync")[0] == 0
    assert source(lesson, AGAIN) == exercises.stub(AGAIN)
    before = lesson.stat().st_mtime_ns
    assert run("sync") == (0, "") and lesson.stat().st_mtime_ns == before


def test_sync_puts_up_the_signposts(course, run):
    """A lesson that comes between two others, or takes another number, is linked by it."""
    first, second = (course / "notebooks" / name for name in ("01_twice.ipynb", "02_more.ipynb"))
    cells = [new_markdown_cell("# 07 · Much more"), new_markdown_cell("The end.")]
    nbformat.write(new_notebook(cells=cells), second)
    (course / "solutions" / "02_more.py").write_text("EXERCISES = {}")
    assert "notebooks/02_more.ipynb" in run("sync")[1] and run("sync") == (0, "")
    last = nbformat.read(first, 4).cells[-1].source
    assert last == "The end.\n\nNext: [02 · Much more](02_more.ipynb)"
    titles = [cell.source for cell in nbformat.read(second, 4).cells]
    title, before = signposts.title(first), "(01_twice.ipynb)"
    assert titles[0] == "# 02 · Much more"
    assert titles[1] == f"The end.\n\n{signposts.LAST} · Before: [{title}]{before}"


def test_run_keeps_what_a_notebook_shows_and_nothing_else(course, run):
    lesson = course / "notebooks" / "01_twice.ipynb"
    code = "import sys\nprint(1)\nsys.stdout.flush()\nprint(2)\n6 * 7"
    cells = [new_markdown_cell("Read."), new_code_cell(code), new_code_cell("1 / 0")]
    notebook = new_notebook(cells=cells[:2], metadata={"language_info": {"name": "python"}})
    nbformat.write(notebook, lesson)
    code, said = run("run", "01")
    assert code == 0  # and no warning of a kernel
    assert said == "running 01_twice\nnotebooks/01_twice.ipynb: shows something else now\n"
    after = nbformat.read(lesson, 4)
    printed, value = after.cells[1].outputs
    assert printed.text == "1\n2\n" and value.data["text/plain"] == "42"
    assert after.metadata == notebook.metadata and after.cells[0] == notebook.cells[0]
    before = lesson.stat().st_mtime_ns
    assert "the same" in run("run")[1] and lesson.stat().st_mtime_ns == before
    nbformat.write(new_notebook(cells=cells), lesson)
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match="division by zero"):
        run("run", "01")
    assert not nbformat.read(lesson, 4).cells[1].outputs


@pytest.mark.parametrize(
    "words, said",
    [
        (["check", "99"], "no lesson or exercise '99'; there are 01_twice"),
        (["hint", "twise"], "did you mean 01_twice?"),
        (["hint", "01_twice.none"], "no exercise"),
        (["check", "1.duoble"], f"did you mean {DOUBLE}?"),
        (["reset", "99_none"], "there are 01_twice"),
        (["chekc", "01"], "no command 'chekc'; did you mean check?"),
        (["trace", "--help"], "did you mean warplens trace?"),
        (["1"], "did you mean lessons check 1, or lessons hint 1?"),
        (["double"], "did you mean lessons check double"),
        (["solve", "01"], "no command 'solve'; `lessons --help` lists them"),
        (["reset", "1.double"], "'1.double' names an exercise, needs a lesson: 1"),
        (["report", "Ada", "--to", "nowhere/x.md"], "nowhere/x.md: No such file or directory"),
    ],
)
def test_a_wrong_request_is_said_in_a_line(mine, run, words, said):
    code, out = run(*words)
    assert code == 2 and said in out and out.count("\n") == 1


def test_of_many_lessons_the_first_and_the_last_are_said(mine, run, monkeypatch):
    monkeypatch.setattr(named, "FEW", 0)
    said = "there are 01_twice to 01_twice: `lessons list` shows them"
    assert run("hint", "99") == (2, f"lessons: no lesson or exercise '99'; {said}\n")


def test_a_folder_that_is_read_only_is_said_in_a_line(mine, run, monkeypatch):
    def refuse(self, *_):
        raise OSError(30, "Read-only file system", str(self))

    mine.unlink()
    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert run("start") == (2, f"lessons: {mine}: Read-only file system\n")


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "parser", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert command() == 130
    assert capsys.readouterr().err == "lessons: interrupted\n"


def test_an_interrupted_command_names_itself(run, monkeypatch):
    monkeypatch.setattr(cli.workbook, "sync", lambda write: os.kill(os.getpid(), signal.SIGINT))
    assert run("sync") == (130, "sync: interrupted\n")


def test_an_interrupted_run_leaves_the_notebook_and_no_kernel(course, run):
    lesson, pid = course / "notebooks" / "01_twice.ipynb", course / "pid"
    code = f"""import os, signal, time
with open({str(pid)!r}, "w") as file:
    print(os.getpid(), file=file)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(600)"""
    nbformat.write(new_notebook(cells=[new_code_cell("1"), new_code_cell(code)]), lesson)
    before = lesson.read_bytes()
    said = "running 01_twice\nrun: interrupted; notebooks/01_twice.ipynb is as it was\n"
    assert run("run", "01") == (130, said)
    assert lesson.read_bytes() == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_interrupted_check_says_how_many_it_has_checked(mine, run, monkeypatch):
    def check(id, gap):
        if id == AGAIN:
            time.sleep(600)
        return ["right", "passed"]

    def interrupted(remaining, check):
        checks = attended(remaining, check)
        yield next(checks)
        os.kill(os.getpid(), signal.SIGINT)
        yield from checks

    monkeypatch.setattr(cli, "_check", check)
    monkeypatch.setattr(cli, "attended", interrupted)
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    code, said = run("check", "01")
    last = said.splitlines()[-1]
    assert (code, last) == (130, "check: interrupted; 1 of 2 checked, 1 of them solved")


def test_a_check_that_is_interrupted_leaves_no_process(monkeypatch):
    def check(item):
        return os.getpid() if item == "first" else time.sleep(600)

    checks = attended(lambda done: ["first", "second"], check)
    _, child = next(checks)
    checks.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize("which", ["1", "01", "twice", "01_twice"])
def test_a_lesson_has_a_number_and_a_name(mine, run, which):
    assert run("check", which)[1].splitlines()[-1] == "0 of 2 solved"


@pytest.mark.parametrize("which", ["again", "1.again", "twice.again", AGAIN])
def test_an_exercise_is_found_by_its_name(mine, run, which):
    assert run("hint", which) == (0, "Hint 1 of 3: a\n")


def test_a_lessons_hint_is_of_its_first_exercise_that_is_not_solved(mine, run):
    assert run("hint", "1")[1] == f"{DOUBLE}\nHint 1 of 3: look\n"
    write(mine, DOUBLE, "def double(x):\n    return x + x")
    run("check", DOUBLE)
    assert run("hint", "1")[1] == f"{AGAIN}\nHint 1 of 3: a\n"
    assert run("hint")[1] == f"{AGAIN}\nHint 2 of 3: b\n"  # of the next one


def test_a_name_of_several_exercises_is_asked_back(mine, course, run):
    (course / "solutions" / "02_more.py").write_text(SOLUTION)
    assert run("hint", "again") == (2, f"lessons: which of these? {AGAIN}, 02_more.again\n")


def test_alone_it_says_where_you_are(mine, run):
    code, out = run()
    assert code == 0 and out.startswith("0 of 2 exercises solved.")
    assert f"{DOUBLE}: 1 line, about 5 minutes, in work/01_twice.ipynb" in out


def pressing(monkeypatch, *steps):
    """Keys in this order; a function among them is called when its turn comes, as no key."""
    waiting = iter(steps)

    def pressed(seconds):
        step = next(waiting)
        return (step() or "") if callable(step) else step

    monkeypatch.setattr(companion, "keys", lambda: contextlib.nullcontext(pressed))
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)


def test_keys_give_hints_and_checks_until_all_is_solved(mine, run, monkeypatch):
    solve = partial(write, mine, DOUBLE, "def double(x):\n    return x + x")
    again = partial(write, mine, AGAIN, "def again(x):\n    return 2 * x")
    pressing(monkeypatch, "h", "c", "", solve, again)
    code, out = run()
    said = "Hint 1 of 3: look", "not attempted", "1 of 2 exercises solved.", f"Watching {AGAIN}"
    places = [out.index(x) for x in said]
    assert code == 0 and places == sorted(places)
    assert progress.load()["exercises"]["twice.again"]["passed"]
    assert out.count("Watching") == 2  # and ends by itself


def test_a_key_that_is_none_shows_those_there_are(mine, run, monkeypatch):
    pressing(monkeypatch, "q")
    before = run()[1].count("quit")
    pressing(monkeypatch, "?", "H", "r", "n", "q")
    out = run()[1]
    assert out.count("quit") == before + 3 and "Hint 1 of 3" in out


def test_the_key_for_the_list_shows_this_lessons_exercises(mine, course, run, monkeypatch):
    (course / "solutions" / "02_more.py").write_text(SOLUTION)
    pressing(monkeypatch, "l", "q")
    out = run()[1]
    assert f"· {AGAIN}" in out and "02  more" in out and "02_more.again" not in out


def test_a_key_resets_only_after_a_yes(mine, run, monkeypatch):
    write(mine, DOUBLE, "def double(x):\n    return 7")
    pressing(monkeypatch, "r", "n", "q")
    run()
    assert "7" in source(mine, DOUBLE)
    pressing(monkeypatch, "r", "y", "l", "q")
    assert "of its exercises start afresh" in run()[1]
    assert "NotImplementedError" in source(mine, DOUBLE)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminals_key_needs_no_enter_and_the_terminal_is_as_before(monkeypatch):
    import pty
    import termios

    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        before = termios.tcgetattr(terminal)
        with keys() as pressed:
            assert pressed(0) == ""
            os.write(keyboard, b"h")
            assert pressed(5) == "h"
        assert termios.tcgetattr(terminal) == before
    os.close(keyboard)


def test_no_lessons_without_the_repository(course, run, monkeypatch):
    monkeypatch.setattr(exercises, "SOLUTIONS", course / "nowhere")
    code, out = run("list")
    assert code == 2 and "make lab" in out


@pytest.mark.parametrize("text", ['{"cells": ', '{"cells": 3}', '{"a": 1}', "[]", '{"cells": [1]}'])
def test_a_damaged_notebook_is_named(mine, run, text):
    mine.write_text(text)
    for words, status in (("check", DOUBLE), 1), (("reset", "01"), 2):
        code, out = run(*words)
        assert code == status and "work/01_twice.ipynb is damaged" in out and "lessons start" in out
    assert mine.read_text() == text
    assert run("report", "Ada", "--to", str(mine.parent / "ada.md"))[0] == 0
