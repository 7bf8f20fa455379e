"""Wrong answers: what an edit makes of a solution, and what it says when it does not fit."""

import inspect

import pytest

from rwkv_lessons.lab import break_it
from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong_answer, wrong_answers

SOLUTION = '''
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.course.exercises import Exercise

def sums(x):
    """The sums of x up to each number: total = total + n."""
    total, found = 0, []
    ### BEGIN SOLUTION
    for n in x:
        total = total + n
        found.append(total)
    ### END SOLUTION
    return found

EXERCISES = {
    "sums": Exercise(
        minutes=1, difficulty=1, hints=("a", "b", "c"),
        evidence=(function_cases(("three", ([1, 2, 4],), [1, 3, 7])),),
    )
}
'''
ID = "01_sums.sums"


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """(edits as Python source) → the wrong answer "it" to a made-up exercise."""
    monkeypatch.setattr(exercises, "SOLUTIONS", tmp_path)
    (tmp_path / "01_sums.py").write_text(SOLUTION)
    (tmp_path / "wrong").mkdir()

    def made(*edits):
        monkeypatch.setitem(made.answers, "it", ("Something is wrong.", *edits))
        return wrong_answer(ID, "it")

    (tmp_path / "wrong/01_sums.py").write_text("sums = {}\n")
    made.answers = exercises.module(tmp_path / "wrong/01_sums.py").sums
    return made


def body(answer):
    return inspect.cleandoc(answer.source.partition("\n")[2])


def test_a_part_of_a_line_is_replaced_and_the_docstring_is_left_out(lesson):
    answer = lesson(edit("total + n", "total - n"))
    assert answer.source == (
        "def sums(x):\n"
        "    total, found = 0, []\n"
        "    for n in x:\n"
        "        total = total - n\n"
        "        found.append(total)\n"
        "    return found"
    )
    assert answer.function([1, 2]) == [-1, -3]


def test_lines_are_replaced_wherever_they_are_indented(lesson):
    old = """
        total = total + n
        found.append(total)
    """
    assert lesson(edit(old, "if n:\n    found.append(n)")).function([1, 0, 2]) == [1, 2]
    assert "found.append" not in lesson(edit(old, "pass")).source
    assert lesson(edit("found.append(total)")).source.count("\n") == 4  # no empty line stays


def test_lines_are_moved_and_indented_as_where_they_come(lesson):
    assert lesson(move("found.append(total)", before="total = total")).function([1, 2]) == [0, 1]
    answer = lesson(move("found.append(total)", before="for n in"))
    assert "\n    found.append(total)\n    for" in answer.source


def test_a_body_takes_the_place_of_the_whole_one(lesson):
    assert body(lesson(instead("return x"))) == "return x"
    assert lesson(instead("y = x\nreturn y")).function([3]) == [3]


def test_edits_take_place_one_after_another(lesson):
    answer = lesson(edit("0, []", "1, []"), edit("1, []", "2, []"))
    assert answer.function([1]) == [3]


@pytest.mark.parametrize(
    "edits, said",
    [
        ([edit("total * n", "n")], "does not stand in the solution:\ntotal * n"),
        ([edit("found", "lost")], "stands 3 times, not once, in the solution:\nfound"),
        ([edit("n", "m"), edit("x", "y")], "in the solution:\nn"),
        ([edit("for n in x:\n  total = total + n", "")], "does not stand"),
        ([edit("0, []", "1, []"), edit("0, []", "2, []")], "does not stand"),
        ([move("total = 0", before="for n in x")], "does not stand in the solution:\ntotal = 0"),
        ([move("total = total + n", before="found")], "stands 3 times"),
    ],
)
def test_an_edit_that_does_not_fit_exactly_once_is_refused(lesson, edits, said):
    with pytest.raises(ValueError) as error:
        lesson(*edits)
    assert str(error.value).startswith(f"{ID}, wrong answer 'it': this ")
    assert said in str(error.value)


def test_python_shows_the_derived_text_and_counts_its_lines(lesson):
    answer = lesson(edit("total + n", "total + m"))
    assert inspect.getsource(answer.function).rstrip("\n") == answer.source
    assert "in line 4: total = total + m" in str(evaluate(ID, answer.function))


def test_a_wrong_answer_is_shown_whole_with_its_verdict(lesson, capsys):
    answer = lesson(edit("0, []", "1, []"))
    break_it(ID, "it")
    shown = capsys.readouterr().out
    assert shown.startswith(answer.source)
    assert "✗" in shown and "hint" not in shown


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="no wrong answer 'it'; it has one_too_many, rounds_down"):
        break_it("06_block_size.blocks", "it")


def test_every_file_of_wrong_answers_belongs_to_a_lesson():
    files = exercises.SOLUTIONS.glob("wrong/*")
    assert {file.stem for file in files if file.suffix == ".py"} <= set(exercises.stems())


@pytest.mark.parametrize("stem", sorted({id.partition(".")[0] for id in exercises.ids()}))
def test_every_group_has_the_name_of_an_exercise(stem):
    file = exercises.module(exercises.SOLUTIONS / "wrong" / f"{stem}.py")
    groups = [name for name, x in vars(file).items() if isinstance(x, dict) and name[0] != "_"]
    assert [f"{stem}.{name}" for name in groups] == exercises.ids(stem)


@pytest.mark.parametrize("id", exercises.ids())
def test_every_wrong_answer_fits_its_solution(id):
    answers = wrong_answers(id)
    sources = {answer.source for answer in answers.values()}
    assert len(sources | {exercises.solved(id)}) == len(answers) + 1
    for answer in answers.values():
        assert answer.what.endswith(".") and answer.name.isidentifier()
        assert all(line == line.rstrip() for line in answer.source.splitlines()), answer.name
        compile(answer.source, answer.name, "exec")
