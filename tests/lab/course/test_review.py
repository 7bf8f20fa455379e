"""Wrong predictions come back two lessons later; questions can be asked again from the shell."""

import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rwkv_lessons.lab import outcome, predict
from rwkv_lessons.lab.commands import cli, review
from rwkv_lessons.lab.course import exercises, progress
from rwkv_lessons.lab.course.terminal import without_latex

LESSONS = ("01_loads", "02_banks", "03_warps", "04_tiles", "05_copies")
RECAP = """## Recap

What it was.

**1.** Why `x`?

<details><summary>Answer</summary>

Because of **y**.

And z.

</details>

**2.** Which?

<details><summary>Answer</summary>

That.

</details>

Next: nothing
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.json"))
    for name in ("ROOT", "NOTEBOOKS", "SOLUTIONS"):
        folder = tmp_path if name == "ROOT" else tmp_path / name.lower()
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(exercises, name, folder)
    for stem in LESSONS:
        cells = [
            new_markdown_cell("# Title"),
            new_markdown_cell(f"## Predict\n\nHow many in {stem}?"),
            new_code_cell(f'predict("{stem}.n", None)'),
            new_markdown_cell(RECAP),
        ]
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{stem}.ipynb")
    return tmp_path


@pytest.fixture
def types(monkeypatch, capsys):
    """`types("review", "12")`: what the command says to somebody who types these lines."""

    def run(command, *lines):
        left = list(lines)

        def read(prompt):
            print(prompt)
            if not left:
                raise EOFError
            return left.pop(0)

        monkeypatch.setattr("builtins.input", read)
        capsys.readouterr()
        try:
            assert cli.main(command.split()) == 0
        except SystemExit as end:
            assert end.code == 0
        assert not left
        return capsys.readouterr().out

    return run


def go(stem, guess, value=100):
    predict(f"{stem}.n", guess)
    outcome(f"{stem}.n", value, "loads")


def names():
    return [found.name for found in review.due()]


def test_a_wrong_prediction_comes_back_two_lessons_later(course, types):
    go("01_loads", 300)
    go("02_banks", 110)  # close enough
    assert names() == []
    assert "No prediction to repeat now" in types("review")
    go("03_warps", 0)
    assert names() == ["loads.n"]
    said = types("review", "many", "1e2")
    assert "How many in 01_loads?" in said and "You said 300 loads." in said
    assert "a number of at least 0, please" in said and "100 loads: exactly" in said
    assert names() == []
    go("05_copies", 100)
    assert names() == ["warps.n"]  # zero is wrong, too


def test_wrong_again_comes_back_two_lessons_after_that(course, types):
    go("01_loads", 300)
    go("03_warps", 100)
    said = types("review", "50")
    assert "2× too low" in said and "notebooks/01_loads.ipynb" in said
    assert names() == []
    progress.note_check("04_tiles.kernel", False, "a")
    assert names() == []
    progress.note_check("05_copies.kernel", False, "a")
    assert names() == ["loads.n"]
    types("review", "90")
    assert names() == []


def test_enter_leaves_it_for_later_and_the_end_of_input_ends_it(course, types):
    go("01_loads", 300)
    go("02_banks", 300)
    go("04_tiles", 100)
    assert types("review", "").count("You said") == 2
    assert names() == ["loads.n", "banks.n"]
    assert types("review", "100").count("You said") == 2
    assert names() == ["banks.n"]
    assert "1 prediction to make again: lessons review" in types("next")


def test_an_unknown_outcome_and_a_lesson_that_is_gone_are_not_asked_for(course):
    predict("01_loads.n", 300)
    predict("09_gone.n", 300)
    go("04_tiles", 100)
    assert names() == []
    go("02_banks", 300)
    assert names() == ["banks.n"]
    (course / "notebooks" / "02_banks.ipynb").unlink()
    assert names() == []


def test_renumbered_lessons_keep_what_is_due(course):
    go("01_loads", 300)
    go("03_warps", 100)
    for old, new in (("01_loads", "11_loads"), ("02_banks", "12_banks"), ("03_warps", "13_warps")):
        file = course / "notebooks" / f"{old}.ipynb"
        file.write_text(file.read_text().replace(old, new))
        file.rename(file.with_name(f"{new}.ipynb"))
    assert [(found.name, found.stem) for found in review.due()] == [("loads.n", "11_loads")]
    (course / "notebooks" / "12_banks.ipynb").unlink()
    assert names() == []  # the lesson that was begun is the next one now


def test_questions_are_asked_again_with_their_answers(course, types):
    said = types("questions 02", "", "")
    assert said.index("Why x?") < said.index("Because of y.") < said.index("And z.")
    assert said.index("Which?") < said.index("That.")
    before_the_answer = types("questions 02")
    assert "Why x?" in before_the_answer and "Because" not in before_the_answer


@pytest.mark.parametrize(
    "formula, read",
    [
        (r"$S_{t-1}$", "`S_(t-1)`"),
        (r"$(1 - 2)\,\kappa S$", "`(1 - 2) κ S`"),
        (r"$I - 2\kappa^\mathsf{T}\kappa$", "`I - 2κᵀκ`"),
        (r"$\mathrm{diag}(e^{w_t}) \to \infty$", "`diag(e^(w_t)) → ∞`"),
        ("`costs` 3", "`costs` 3"),
    ],
)
def test_a_terminal_shows_formulas_that_can_be_read(formula, read):
    assert without_latex(formula) == read


def test_every_lesson_has_its_questions_and_every_prediction_a_text():
    for stem in exercises.stems():
        assert len(review.questions(stem)) == (4 if stem.startswith("00") else 3), stem
        for cell in review._cells(stem):
            for what in re.findall(rf'^predict\("{stem}\.(\w+)"', "".join(cell["source"]), re.M):
                assert "?" in review.question_of(stem, what), f"{stem}.{what}"


def test_a_changed_copy_follows_its_lesson_to_another_number(course, types):
    types("start")
    mine = course / "work" / "02_banks.ipynb"
    mine.write_text(mine.read_text().replace("None", "12"))
    for stem in ("02_banks", "03_warps"):
        file = course / "notebooks" / f"{stem}.ipynb"
        new = f"1{stem[1:]}"
        file.write_text(file.read_text().replace(stem, new))
        file.rename(file.with_name(f"{new}.ipynb"))
    said = types("start")
    assert "moved    work/12_banks.ipynb" in said and "new      work/13_warps.ipynb" in said
    copies = {path.name: path.read_text() for path in (course / "work").glob("*.ipynb")}
    left = ("01_loads", "04_tiles", "05_copies", "12_banks", "13_warps")
    assert sorted(copies) == [f"{stem}.ipynb" for stem in left]
    cells = json.loads(copies["12_banks.ipynb"])["cells"]
    assert cells[2]["source"] == ['predict("12_banks.n", 12)']
    assert (course / "work" / "backups" / "02_banks.ipynb").exists()
    assert "kept     work/12_banks.ipynb" in types("start")
