"""The gaps of an exercise in a learner's text: which are open, and how to judge one by itself."""

import linecache
from collections.abc import Callable

from ...records.fingerprint import plain
from . import exercises


class Parted:
    """A learner's text, parted at the lines that the exercise gives.

    Args:
        exercise: whose text around the gaps must still be there, in order.
        text: the learner's.

    Raises:
        LookupError: a given line is missing, so that nobody knows where a gap ends.
    """

    def __init__(self, exercise: exercises.Exercise, text: str):
        pieces = exercises.REGION.split(exercise.source + "\n")
        fixed, self.answers = pieces[::3], pieces[2::3]
        self.lines = text.splitlines()
        self.spans, at = [], 0
        for n, piece in enumerate(fixed):
            code_lines = _code(piece)
            first = self._find(code_lines[0], at) if code_lines else len(self.lines)
            if n:
                self.spans.append((at, first))
            for line in code_lines:
                at = self._find(line, at) + 1

    def _find(self, line, start):
        for n in range(start, len(self.lines)):
            if self.lines[n].strip() == line:
                return n
        raise LookupError(f"this given line is not there any more: {line}")

    def text(self, gap: int) -> str:
        """What stands in a gap; they are counted from 1."""
        return "\n".join(self.lines[slice(*self.spans[gap - 1])])

    @property
    def open(self) -> tuple[int, ...]:
        """The gaps that nothing was written into yet."""
        numbers = range(1, len(self.spans) + 1)
        return tuple(n for n in numbers if _is_open(self.text(n)))

    def line(self, gap: int) -> int:
        """In which line of the text a gap begins."""
        return self.spans[gap - 1][0] + 1

    def with_solution_in(self, gaps) -> str:
        """The text with the solution in these gaps, and the learner's lines in the others."""
        lines = list(self.lines)
        for gap in sorted(gaps, reverse=True):
            lines[slice(*self.spans[gap - 1])] = self.answers[gap - 1].splitlines()
        return "\n".join(lines)


def _code(text):
    """The lines of a text that say something, without indentation; comments may be changed."""
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def _is_open(text):
    code = _code(text)
    return not code or any(line.startswith("raise NotImplementedError") for line in code)


def completed(exercise, function: Callable, gaps) -> Callable:
    """The learner's function with the solution in these `gaps`, counted from 1."""
    text = Parted(exercise, exercises.source_of(function)).with_solution_in(gaps)
    tree = exercises.parsed(text)
    file = f"<{exercise.id}, the solution in {', '.join(map(str, gaps))}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    stem = exercise.id.partition(".")[0]
    namespace = vars(exercises.solutions(stem)) | plain(function).__globals__
    exec(compile(tree, file, "exec"), namespace)
    return namespace[tree.body[-1].name]
