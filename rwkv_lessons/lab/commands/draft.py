"""A new lesson's three files, with an exercise that can be solved: a draft to be written over."""

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ..course import exercises
from . import signposts

SOLUTION = '''"""What this lesson is about, in one line."""

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.functions import function_cases


def running_sums(x):
    """The sums of x[0], of x[0] and x[1], and so on: a list as long as x."""
    sums, total = [], 0
    ### BEGIN SOLUTION
    for value in x:
        total += value
        sums.append(total)
    ### END SOLUTION
    return sums


EXERCISES = {
    "running_sums": Exercise(
        minutes=5,
        difficulty=1,
        hints=(
            "Where to look: which number does each sum have that the one before it lacks?",
            "What to do: keep a total, and note it after every value.",
            "Nearly the line: total += value, then sums.append(total).",
        ),
        evidence=(
            function_cases(
                ("one value", ([3.0],), [3.0]),
                ("three values", ([1.0, 2.0, -4.0],), [1.0, 3.0, -1.0]),
            ),
        ),
        symptoms={"one value": "The first sum is the first value."},
        afterwards=Afterwards(
            why={"total += value": "One addition a value: the sum before is not made again."},
            instead={"sum(x[: i + 1]) for each i": "T² additions where T are enough."},
            stretch="Do it in log2(T) steps, all values at once.",
        ),
    ),
}
'''

WRONG = '''"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

running_sums = wrong(
    right_for_one=(
        "Each value is noted, not the sum.",
        edit("sums.append(total)", "sums.append(value)"),
    ),
    right_but_for_the_last=(
        "A value is noted before it is added.",
        edit(
            """
            total += value
            sums.append(total)
            """,
            """
            sums.append(total)
            total += value
            """,
        ),
    ),
)
'''

HEADINGS = (
    ("Where we are", "What the lesson before left open."),
    ("The idea", "One idea and its formula, $s_t = s_{t-1} + x_t$."),
    ("Predict", "What will the last sum of 1, 2, 3, 4 be?"),
    ("Memory accesses", "A picture of it: `rwkv_lessons.lab.pictures` has some for every family."),
    ("Write it", "What is given, and what is asked for."),
    ("Check", "What the check looks at."),
    ("Measure", "What came out, beside the prediction."),
    ("What the numbers say", "And what they do not explain."),
    ("Break it", "This one looks right. What is wrong with it?"),
    ("Recap", "Three questions with folded answers."),
)


def write(stem: str) -> list[Path]:
    """Writes notebook, solution and wrong answers of the lesson `stem`, "22_delta_rule".

    Raises:
        ValueError: that is no name of a lesson, or a lesson has this number already.
    """
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", stem):
        raise ValueError(f"{stem!r} is no name of a lesson; one is 22_delta_rule")
    if same_number := [existing for existing in exercises.stems() if existing[:2] == stem[:2]]:
        raise ValueError(f"number {stem[:2]} is taken by {same_number[0]}")
    solution = exercises.SOLUTIONS / f"{stem}.py"
    wrong = exercises.SOLUTIONS / "wrong" / f"{stem}.py"
    wrong.parent.mkdir(exist_ok=True)
    solution.write_text(SOLUTION, encoding="utf-8")
    wrong.write_text(WRONG, encoding="utf-8")
    lesson = exercises.NOTEBOOKS / f"{stem}.ipynb"
    notebook = _notebook(stem)
    signposts.derive(notebook, lesson)
    nbformat.write(notebook, lesson)
    return [lesson, solution, wrong]


def _notebook(stem):
    id, guess = f"{stem}.running_sums", f"{stem}.last"
    imports = "from rwkv_lessons.lab import break_it, check, hint, outcome, predict, setup"
    code = {
        "Predict": [f'predict("{guess}", None)'],
        "Write it": [exercises.stub(id)],
        "Check": [f'result = check("{id}", running_sums)'],
        "Measure": [f'outcome("{guess}", result.kernel([1, 2, 3, 4])[-1])'],
        "Break it": [f'break_it("{id}", "right_for_one")'],
    }
    metadata = {
        "Write it": {"exercise": id},
        "Check": {"check": id},
        "Break it": {"tags": ["depends-on-python-text"]},
    }
    words = stem[3:].replace("_", " ").capitalize()
    cells = [
        new_markdown_cell(f"# {stem[:2]} · {words}\n\nWhat you can say after it.\n\n*30 minutes*"),
        new_code_cell(f"{imports}\n\nsetup()", metadata={"tags": ["nbval-ignore-output"]}),
    ]
    for heading, text in HEADINGS:
        cells.append(new_markdown_cell(f"## {heading}\n\n{text}"))
        for source in code.get(heading, ()):
            cells.append(new_code_cell(source, metadata=metadata.get(heading, {})))
    for n, cell in enumerate((c for c in cells if c.cell_type == "code"), 1):
        cell.execution_count = n
    for n, cell in enumerate(cells):
        cell.id = f"cell-{n}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return new_notebook(cells=cells, metadata=about)
