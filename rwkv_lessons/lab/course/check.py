"""One check, several kinds of evidence, honest about which of them this machine could gather."""

import dataclasses
import traceback
from collections.abc import Callable

from . import exercises

PASSED, FAILED, ABSENT = "passed", "FAILED", "not available here"


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of evidence: what it is, what came of it, and why."""

    kind: str
    verdict: str
    text: str = ""
    details: tuple[str, ...] = ()

    def __str__(self):
        first = f"  {self.kind:<13} {self.verdict:<7} {self.text}".rstrip()
        return "\n".join([first, *(" " * 24 + line for line in self.details)])


@dataclasses.dataclass(frozen=True)
class Result:
    """What `check` found. `kernel` is the learner's if it passed, else the reference answer."""

    id: str
    rows: tuple[Row, ...]
    attempted: bool
    kernel: Callable

    @property
    def passed(self) -> bool:
        verdicts = [row.verdict for row in self.rows]
        return self.attempted and PASSED in verdicts and FAILED not in verdicts

    def __str__(self):
        if not self.attempted:
            return f"{self.id}: not attempted yet. The lesson goes on with the reference answer."
        lines = [self.id, *map(str, self.rows)]
        if not self.passed:
            lines.append(f"  Not yet. hint({self.id!r}) helps; the lesson goes on without you.")
        return "\n".join(lines)


def evaluate(id: str, function: Callable) -> Result:
    """Gathers the evidence for `function`; prints nothing."""
    exercise = exercises.load(id)
    try:
        attempted = exercises.attempted(function)
    except (OSError, TypeError, SyntaxError):
        attempted = callable(function)  # no source to read: let the evidence speak
    if not attempted:
        return Result(id, (), False, exercise.reference)
    rows = []
    for gather in exercise.evidence:
        kind = getattr(gather, "kind", "answer")
        # Traffic may explain a wrong answer (a race, say); machine code does not.
        explains = getattr(gather, "explains_wrong_answers", kind in ("answer", "traffic"))
        if not explains and FAILED in [row.verdict for row in rows]:
            break
        try:
            row = gather(function, exercise)
        except Exception as error:  # a lesson never stops on a learner's mistake
            row = Row(kind, FAILED, _first_line(error), _where(error))
        rows.append(row)
    result = Result(id, tuple(rows), True, function)
    return result if result.passed else dataclasses.replace(result, kernel=exercise.reference)


def check(id: str, function: Callable) -> Result:
    """Prints the evidence for your `function` and returns it. Never raises on a wrong answer.

    Args:
        id: the exercise, 'NN_idea.name'.
        function: your kernel or function, as defined in the notebook.

    Returns:
        A `Result`: `.passed`, `.rows`, and `.kernel`, yours if it passed and the reference if not.
    """
    from . import progress

    result = evaluate(id, function)
    print(result)
    if result.attempted:
        progress.note_check(id, result.passed, _text_of(function))
    return result


def hint(id: str) -> None:
    """Prints the next of three hints."""
    from . import progress

    tier = progress.note_hint(id)
    hints = exercises.load(id).hints
    print(f"Hint {min(tier, len(hints))} of {len(hints)}: {hints[min(tier, len(hints)) - 1]}")


def _text_of(function):
    try:
        return exercises.source_of(function)
    except (OSError, TypeError):  # made by exec, or built in
        return repr(function)


def _first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _where(error):
    """The learner's own line, if the traceback has one: notebooks' cells have no file of ours."""
    ours = str(exercises.ROOT / "rwkv_lessons")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if ours not in f.filename]
    own = [f for f in frames if "site-packages" not in f.filename and f.line]
    return (f"in line {own[-1].lineno}: {own[-1].line}",) if own else ()


def break_it(id: str, name: str) -> None:
    """Shows a wrong answer to an exercise and what the check says of it, hints left out.

    Args:
        id: the exercise, 'NN_idea.name'.
        name: which of its wrong answers.

    Raises:
        ValueError: there is no such exercise or wrong answer; the message says which there are.
    """
    from .wrong_answers import wrong_answer

    wrong = wrong_answer(id, name)
    print(wrong.source, "\n")
    for row in evaluate(id, wrong.function).rows:
        details = tuple(line for line in row.details if not line.startswith("hint"))
        print(dataclasses.replace(row, details=details))
