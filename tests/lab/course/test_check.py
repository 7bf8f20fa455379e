"""What a check says: marks, a verdict, what is next, and whose kernel the lesson goes on with."""

import re
import time
import types

import pytest
from numba import cuda, float32

from rwkv_lessons.lab.course import check as checking
from rwkv_lessons.lab.course import definition, exercises, stand_in, terminal
from rwkv_lessons.lab.course.check import (
    ABSENT,
    FAILED,
    PASSED,
    Result,
    Row,
    check,
    evaluate,
    hint,
)

LESSON = """
from rwkv_lessons.lab.course.check import FAILED, PASSED, Row
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise

def polynomial(x):
    ### BEGIN SOLUTION
    square = x * x
    ### END SOLUTION
    cube = square * x
    ### BEGIN SOLUTION
    total = square + cube
    ### END SOLUTION
    return total

def answer(function, exercise):
    fine = [function(x) for x in (2, 3)] == [12, 36]
    return Row("answer", PASSED if fine else FAILED, "" if fine else "at x = 2")

def traffic(function, exercise):
    return Row("traffic", FAILED if "slow" in function.__doc__ else PASSED, "counted")

answer.kind, traffic.kind = "answer", "traffic"
EXERCISES = {
    "polynomial": Exercise(
        minutes=5, difficulty=1, hints=("a", "b", "c"), evidence=(answer, ),
        afterwards=Afterwards({"square = x * x": "Once."}, {"x ** 3": "A power."}, "Use Horner."),
    )
}
"""
ID = "01_sums.polynomial"


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "SOLUTIONS", tmp_path)
    (tmp_path / "01_sums.py").write_text(LESSON)


def typed(one="raise NotImplementedError", two="raise NotImplementedError"):
    text = f"def polynomial(x):\n    {one}\n    cube = square * x\n    {two}\n    return total"
    return exercises.defined(ID, text, f"<typed {one} {two}>")


def test_a_pass_explains_the_solution_and_says_what_is_next(lesson, capsys):
    result = check(ID, typed("square = x**2", "total = cube + square"))
    said = capsys.readouterr().out
    assert result.passed and "  ✓ answer" in said and "✓ Solved: 01_sums.polynomial." in said
    assert "this lesson's last one: read on." in said
    assert "square = x * x\n        Once." in said and "x ** 3: A power." in said
    assert "Use Horner." in said


def test_a_failure_says_whose_kernel_goes_on(lesson, capsys):
    result = check(ID, typed("square = x", "total = cube"))
    said = capsys.readouterr().out
    assert "  ✗ answer         at x = 2\n✗ Not yet: answer." in said
    assert "the reference answer, not yours" in said and result.stands_in
    assert "check(…, gap=1)" in said and f"`lessons hint {ID}` helps" in said


def test_a_notebooks_failure_names_what_can_be_typed_there(lesson, monkeypatch):
    monkeypatch.setattr(checking, "in_notebook", lambda: True)
    said = str(checking.evaluate(ID, typed("square = x", "total = cube")))
    assert f"run the cell again; hint('{ID}') helps" in said


def test_a_narrow_terminal_has_short_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    row = checking.Row("answer", PASSED, "word " * 30)
    assert max(map(len, str(row).splitlines())) > 90  # a pipe and a notebook are never narrow
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True, raising=False)
    assert 50 < max(map(len, str(row).splitlines())) <= 60 + len("\x1b[32m\x1b[0m")


def test_a_learners_right_answer_goes_on_even_where_it_is_too_slow(lesson):
    (exercises.SOLUTIONS / "01_sums.py").write_text(
        LESSON.replace("(answer, )", "(answer, traffic)").replace("polynomial(x):\n",
            'polynomial(x):\n    """quick"""\n', 1))  # fmt: skip
    text = 'def polynomial(x):\n    """slow"""\n    return x * x + x * x * x'
    mine = exercises.defined(ID, text, "<slow>")
    result = evaluate(ID, mine)
    assert not result.passed and result.kernel is mine and not result.stands_in
    assert "measure your answer" in str(result)


@pytest.mark.parametrize(
    "one, two, verdict",
    [
        ("square = x * x", "pass  # later\n    raise NotImplementedError", "So far so good: gap 1"),
        ("square = x", "raise NotImplementedError", "Not yet: answer."),
    ],
)
def test_an_open_gap_is_named_and_the_others_are_judged(lesson, one, two, verdict):
    result = evaluate(ID, typed(one, two))
    assert result.open == (2,) and not result.passed
    assert verdict in str(result) and "1 of 2 gaps is still open: 2." in str(result)


def test_one_gap_can_be_judged_alone(lesson):
    function = typed("square = x", "total = square + cube")
    assert not evaluate(ID, function).right
    assert not evaluate(ID, function, gap=1).right
    result = evaluate(ID, function, gap=2)
    assert result.right and not result.passed and "gap 2" in str(result)
    assert not evaluate(ID, typed("square = x * x"), gap=2).attempted
    with pytest.raises(
        ValueError, match="gap is 3, needs a number from 1 to 2, the gaps of 01_sums.polynomial"
    ):
        evaluate(ID, function, gap=3)


def test_a_given_line_that_is_gone_is_named(lesson):
    text = "def polynomial(x):\n    return x * x + x**3"
    whole = exercises.defined(ID, text, "<whole>")
    assert evaluate(ID, whole).passed
    assert "not there any more: cube = square * x" in str(evaluate(ID, whole, gap=1))


GUIDED = (
    LESSON[: LESSON.index("def polynomial")]
    + """
def polynomial(x):
    ### BEGIN SOLUTION
    ### BEGIN GAP
    square = x * x
    ### END GAP
    cube = square * x
    ### BEGIN GAP
    total = square + cube
    ### END GAP
    return total
    ### END SOLUTION
"""
    + LESSON[LESSON.index("\ndef answer") :]
)


def test_a_whole_answer_is_asked_for_and_the_last_hint_has_it_with_gaps(lesson, capsys):
    (exercises.SOLUTIONS / "01_sums.py").write_text(GUIDED)
    exercise = exercises.load(ID)
    assert "cube" not in exercise.stub and exercise.gaps == 1
    assert "###" not in exercise.solution + exercise.stub + exercise.guided.stub
    assert exercise.guided.gaps == 2 and exercise.guided.solution == exercise.solution
    for _ in range(3):
        hint(ID)
    first, _, last = capsys.readouterr().out.partition("Hint 3 of 3")
    assert "cube" not in first and exercise.guided.stub in last


def test_the_guided_version_is_judged_gap_by_gap(lesson):
    (exercises.SOLUTIONS / "01_sums.py").write_text(GUIDED)
    assert not evaluate(ID, typed()).attempted
    result = evaluate(ID, typed("square = x * x"))
    assert result.open == (2,) and "1 of 2 gaps is still open: 2." in str(result)
    assert evaluate(ID, typed("square = x", "total = square + cube"), gap=2).right
    assert evaluate(ID, typed("square = x * x", "total = square + cube")).passed
    whole = exercises.defined(ID, "def polynomial(x):\n    return x * x + x**3", "<own shape>")
    assert evaluate(ID, whole).passed


def test_a_fault_is_told_once(lesson, monkeypatch):
    def outside(function, exercise):
        return Row("answer", FAILED, "n=70", ("x[70] is out of bounds", "  line 4: y[i] = x[i]"))

    def counted(function, exercise):
        return Row("traffic", FAILED, "", ("x[96] is out of bounds", "  line 4: y[i] = x[i]"))

    outside.kind, counted.kind = "answer", "traffic"
    known = types.SimpleNamespace(id=ID, reference=typed, evidence=(outside, counted))
    assert len(tuple(checking.rows_of(known, lambda **more: 1))) == 1


def test_a_row_without_a_text_begins_with_its_first_detail():
    assert str(Row("traffic", FAILED, "", ("a race", "line 3"))).splitlines() == [
        "  ✗ traffic        a race",
        "                   line 3",
    ]
    assert str(Row("this GPU", ABSENT)) == "  · this GPU       not available here"


def with_parameters(a, b):
    pass


def with_a_varying_array(r, k, v, decay, u, o):
    n = r.shape[3]
    s = cuda.local.array(n, float32)
    s[0] = 0


@pytest.mark.parametrize(
    "kernel, said",
    [
        (with_a_varying_array, "@cuda.jit is missing above its `def`"),
        (cuda.jit(with_parameters), "it takes 2 arguments, and is called with 6"),
        (cuda.jit(with_a_varying_array), "the size of an array is known only when the kernel runs"),
    ],
    ids=["decorator", "parameters", "array"],
)
def test_a_wrong_definition_is_named(kernel, said):
    (row,) = evaluate("03_atomic_baseline.kernel", kernel).rows
    assert row.verdict == FAILED and said in row.text


def test_a_function_may_have_other_names_and_defaults():
    exercise = exercises.load("06_block_size.blocks")
    assert not definition.trouble(lambda B, H, N, threads, more=1: 1, exercise)
    assert not definition.trouble(lambda *sizes: 1, exercise)
    assert definition.trouble(cuda.jit(lambda B, H, N, block: 1), exercise)


def patient(step):
    while True:
        try:
            step()
        except BaseException:
            pass


def through_a_helper(B, T, H, K, V):
    patient(int)


def test_a_function_that_nothing_could_stop_is_not_run():
    (row,) = evaluate("01_five_loops.least_bytes", through_a_helper).rows
    assert row.verdict == FAILED and row.text.startswith("it catches every exception")
    assert "of patient: except BaseException:" in row.details[0]


def test_a_handler_of_one_exception_or_that_raises_again_is_no_fault():
    def careful(B, T, H, K, V):
        try:
            return B // T
        except ZeroDivisionError:
            return 0
        except BaseException:
            raise

    assert not definition.trouble(careful, exercises.load("01_five_loops.least_bytes"))


@pytest.fixture
def shell(monkeypatch):
    """A notebook's memory of what was typed."""
    import IPython

    events = types.SimpleNamespace(register=lambda *event: None)
    memory = {"In": [""]}
    typed = types.SimpleNamespace(user_ns=memory, transform_cell=str, events=events)
    monkeypatch.setattr(IPython, "get_ipython", lambda: typed)
    monkeypatch.setattr(stand_in, "_references", {})
    monkeypatch.setattr(stand_in, "_listening", [])
    return typed


def test_the_function_from_before_a_mistake_is_not_judged(lesson, shell, capsys):
    good = typed("square = x * x", "total = square + cube")
    shell.user_ns["In"] += [exercises.source_of(good), "result = check(…)"]
    assert not definition.stale(good)
    shell.user_ns["In"] += ["def polynomial(x):\n    return (", "result = check(…)"]
    result = check(ID, good)
    said = capsys.readouterr().out
    assert not result.passed and "the last cell that defines polynomial did not run" in said
    assert "SyntaxError, line 2" in said
    shell.user_ns["In"] += ["@missing\ndef polynomial(x):\n    return 1"]
    assert "its error stands below it" in definition.stale(good)[1]


def test_cells_that_use_a_stand_in_say_so(lesson, monkeypatch):
    monkeypatch.setattr(stand_in, "_references", {})
    reference = exercises.load(ID).reference
    result = Result(ID, (), True, reference)
    names = {"sweep": reference, "result": result, "other": 3}
    assert not stand_in.used("print(sweep(2))", names)
    stand_in.stands_in(ID, reference)
    assert stand_in.used("print(sweep(2))", names) == [ID]
    assert stand_in.used("trace(result.kernel, 1)", names) == [ID]
    assert not stand_in.used("result = check('…', other)\nsweep = result.kernel", names)
    assert not stand_in.used("print(other)", names)
    stand_in.stands_back(reference)
    assert not stand_in.used("print(sweep(2))", names)


def test_colour_is_for_terminals_and_notebooks(monkeypatch, capsys):
    assert terminal.paint("✓", terminal.GREEN) == "✓"  # a pipe
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")  # a notebook's outputs are the same everywhere
    assert terminal.paint("✓", terminal.GREEN) == "\x1b[32m✓\x1b[0m"


def test_long_work_shows_that_it_goes_on_and_leaves_nothing(monkeypatch, capsys):
    said, end = "", time.monotonic() + 60
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    monkeypatch.setattr(terminal, "PATIENCE", 0.01)
    monkeypatch.setenv("RWKV_LESSONS_PROGRESS", "somewhere")
    with terminal.busy("answer"):
        while "…" not in said and time.monotonic() < end:
            time.sleep(0.01)
            said += capsys.readouterr().out
    said += capsys.readouterr().out
    assert re.search(r"… answer, \d+ s", said) and said.endswith("\r") and "\n" not in said
    monkeypatch.setenv("RWKV_LESSONS_PROGRESS", "off")
    with terminal.busy("answer"):
        time.sleep(0.1)
    assert capsys.readouterr().out == ""


def test_a_result_needs_evidence_that_passed():
    def right(*verdicts):
        return Result("x", tuple(Row("k", v) for v in verdicts), True, print).right

    assert right(PASSED, ABSENT) and not right(ABSENT) and not right(PASSED, FAILED)


def test_a_notebook_breaks_a_long_detail_between_words(monkeypatch):
    row = Row("answer", FAILED, "n=70", ("  line 4: " + "word " * 30, "hint: short"))
    assert len(str(row).splitlines()) == 3  # a terminal breaks lines itself
    monkeypatch.setattr(checking, "in_notebook", lambda: True)
    _, first, second, last = str(row).splitlines()
    assert max(map(len, (first, second))) <= checking.WIDTH
    assert first.startswith(checking.INDENT + "  line 4: word")
    assert second.startswith(checking.INDENT + "    word") and last.endswith("hint: short")
