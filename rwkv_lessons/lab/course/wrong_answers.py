"""Wrong answers: a solution with a few lines changed, each of which a check has to refuse.

The file solutions/wrong/<lesson>.py holds them, under the name of the exercise. To add one, give it
a name, say in a sentence what is wrong, and which text of the solution becomes which:

    kernel = wrong(
        decay_too_late=(
            "The new product is decayed together with the old state.",
            edit("decay[h, i] * s[i] + kv", "decay[h, i] * (s[i] + kv)"),
        ),
    )

Edits see the solution without its docstring and markers, and take place one after another. The text
that one looks for has to stand there exactly once: when a solution changes, an edit that no longer
fits says so.

A name says where the mistake lies. If a notebook asks the learner to find it, the name only says
how the wrong answer gets away with it: `right_for_64`.
"""

import ast
import dataclasses
import re
import textwrap
from collections.abc import Callable

from . import exercises

LINE = re.compile(r"^( *).*\n", re.M)
LEFT_EMPTY = re.compile(r"^ +\n", re.M)


@dataclasses.dataclass(frozen=True)
class Edit:
    old: str
    new: str

    def apply(self, text):
        start, end, indent = _place(text, self.old)
        text = text[:start] + self.new.replace("\n", "\n" + indent) + text[end:]
        return text if self.new else LEFT_EMPTY.sub("", text)


@dataclasses.dataclass(frozen=True)
class Move:
    lines: str
    before: str

    def apply(self, text):
        text = Edit(self.lines, "").apply(text)
        at, _, indent = _place(text, self.before)
        start = text.rfind("\n", 0, at) + 1
        return text[:start] + textwrap.indent(self.lines, indent) + "\n" + text[start:]


@dataclasses.dataclass(frozen=True)
class Instead:
    body: str

    def apply(self, text):
        first = ast.parse(text).body[0].body[0].lineno
        head = text.splitlines(keepends=True)[: first - 1]
        return "".join(head) + textwrap.indent(self.body, "    ") + "\n"


def edit(old: str, new: str = "") -> Edit:
    """`new` in place of `old`: a part of a line, or several lines.

    Lines come in triple quotes, indented among themselves as in the solution, and as a whole as it
    suits. A line that is left empty is dropped.
    """
    return Edit(_block(old), _block(new))


def move(lines: str, before: str) -> Move:
    """Takes whole lines to above the line that has `before` in it, and indents them as that is."""
    return Move(_block(lines), before)


def instead(body: str) -> Instead:
    """Another body of the function, for what shares little with the solution."""
    return Instead(_block(body))


def wrong(**answers: tuple) -> dict[str, tuple]:
    """The wrong answers to an exercise: name=(what is wrong in a sentence, edit, edit, …).

    An edit is made by `edit`, `move` or `instead`.
    """
    return answers


@dataclasses.dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer to the exercise `id`, with the text that its edits make of the solution."""

    id: str
    name: str
    what: str
    source: str

    @property
    def function(self) -> Callable:
        """What the text defines; faults and tracebacks give line numbers of the text."""
        return exercises.defined(self.id, self.source, f"<{self.id}, {self.name}>")


def wrong_answers(id: str) -> dict[str, WrongAnswer]:
    """The wrong answers to the exercise 'NN_idea.name', by their names.

    Raises:
        ValueError: there is no such exercise, or an edit does not fit the solution.
    """
    exercise, (stem, _, name) = exercises.load(id), id.partition(".")
    file = exercises.SOLUTIONS / "wrong" / f"{stem}.py"
    answers = getattr(exercises.module(file), name, {}) if file.exists() else {}
    return {
        answer: WrongAnswer(id, answer, mistake, _edited(exercise, answer, edits))
        for answer, (mistake, *edits) in answers.items()
    }


def wrong_answer(id: str, name: str) -> WrongAnswer:
    """The wrong answer to an exercise that has this name.

    Raises:
        ValueError: there is none; the message says which there are.
    """
    answers = wrong_answers(id)
    if name not in answers:
        names = ", ".join(answers) or "none"
        raise ValueError(f"{id} has no wrong answer {name!r}; it has {names}")
    return answers[name]


def _edited(exercise, answer, edits):
    text = _without_docstring(exercise.solution)
    for change in edits:
        try:
            text = change.apply(text)
        except _NoPlace as error:
            raise ValueError(f"{exercise.id}, wrong answer {answer!r}: {error}") from None
    return text.rstrip("\n")


def _without_docstring(text):
    body = ast.parse(text).body[0].body
    lines = text.splitlines(keepends=True)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del lines[body[0].lineno - 1 : body[0].end_lineno]
    return "".join(lines) + "\n"


class _NoPlace(Exception):
    """A text to change stands in the solution never, or more than once."""


def _place(text, old):
    """Where `old` starts and ends in `text`, and how far the line is indented."""
    matches = [
        (*match.span(), line[1])
        for line in LINE.finditer(text)
        for match in re.finditer(re.escape(old.replace("\n", "\n" + line[1])), text)
        if line.start() <= match.start() < line.end()
    ]
    if len(matches) != 1:
        times = "does not stand" if not matches else f"stands {len(matches)} times, not once,"
        raise _NoPlace(f"this {times} in the solution:\n{old}")
    return matches[0]


def _block(text):
    return textwrap.dedent(text).strip("\n") if "\n" in text else text
