"""What a learner is asked again: predictions that were wrong, and the three questions of a lesson.

A wrong prediction comes back two lessons later: once the learner has begun the second lesson after
the one in which it was last asked. Whoever is right then has it behind them; whoever is not sees
it again two lessons on.
"""

import dataclasses
import json
import re

from ..course import exercises, progress
from ..course.predict import close

LESSONS_LATER = 2
QUESTION = re.compile(
    r"^\*\*\d\.\*\* (.+?)\n\n<details><summary>Answer</summary>\n\n(.+?)\n\n</details>", re.S | re.M
)


@dataclasses.dataclass(frozen=True)
class Review:
    """A prediction to make again. `name` is its key in the progress file."""

    name: str
    stem: str  # of the lesson that asked
    question: str
    guess: float
    outcome: float
    unit: str


def due() -> list[Review]:
    """The wrong predictions that are to be made again now, the oldest lesson first."""
    stems = {progress.name_of(stem): n for n, stem in enumerate(exercises.stems())}
    at, questions = _furthest(stems), []
    for name, note in progress.load()["predictions"].items():
        lesson = name.partition(".")[0]
        last = stems.get(note.get("asked_in", lesson))
        outcome = note.get("outcome")
        if last is None or lesson not in stems or outcome is None or note.get("known"):
            continue
        if at < last + LESSONS_LATER or close(note["value"], outcome) and "asked_in" not in note:
            continue
        stem = exercises.stems()[stems[lesson]]
        if question := question_of(stem, name.partition(".")[2]):
            questions.append(Review(name, stem, question, note["value"], outcome, note["unit"]))
    return sorted(questions, key=lambda review: (stems[progress.name_of(review.stem)], review.name))


def answered(review: Review, value: float) -> bool:
    """Notes how it went; whether the number is right now."""
    right = close(value, review.outcome)
    stems = {progress.name_of(stem): n for n, stem in enumerate(exercises.stems())}
    progress.note_review(review.name, right, exercises.stems()[_furthest(stems)])
    return right


def _furthest(stems):
    """The number of the last lesson in which something was tried or predicted, -1 before."""
    noted = progress.load()
    names = [name for name, entry in noted["exercises"].items() if entry["attempts"]]
    names += noted["predictions"]
    return max((stems.get(name.partition(".")[0], -1) for name in names), default=-1)


def question_of(stem: str, name: str) -> str:
    """The text above the cell that asks for a prediction, without headings; "" if it is gone."""
    text = ""
    for cell in _cells(stem):
        if cell["cell_type"] == "markdown":
            text = re.sub(r"^#+ .*\n*", "", "".join(cell["source"]), flags=re.M).strip()
        elif f'predict("{stem}.{name}"' in "".join(cell["source"]):
            return text
    return ""


def questions(stem: str) -> list[tuple[str, str]]:
    """(question, answer) of the end of a lesson, as the notebook has them."""
    texts = ["".join(c["source"]) for c in _cells(stem) if c["cell_type"] == "markdown"]
    return QUESTION.findall("\n\n".join(texts))


def _cells(stem):
    path = exercises.NOTEBOOKS / f"{stem}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
