"""One check, several kinds of evidence, honest about which of them this machine could gather."""

import dataclasses
import re
import traceback
from collections.abc import Callable

from warplens.faults import STILL

from . import borrowed, definition, exercises, gaps
from .hints import of_error
from .language import say, wrapped
from .terminal import FAINT, GREEN, RED, WIDTH, busy, in_notebook, paint, width

PASSED, FAILED, ABSENT = "passed", "FAILED", "not available here"
MARKS = {PASSED: ("✓", GREEN), FAILED: ("✗", RED), ABSENT: ("·", FAINT)}
INDENT = " " * 19  # of a row's text


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of evidence: what it is, what came of it, and why."""

    kind: str
    verdict: str
    text: str = ""
    details: tuple[str, ...] = ()

    def __str__(self):
        mark, colour = MARKS[self.verdict]
        text = say(self.text or (ABSENT if self.verdict == ABSENT else ""))
        lines = [
            *wrapped(text, width() - len(INDENT)),
            *(line for x in self.details for line in _detail(say(x))),
        ]
        first, *more = lines or [""]
        first = f"  {paint(mark, colour)} {self.kind:<14} {first}".rstrip()
        return "\n".join([first, *(INDENT + line for line in more)])


def _detail(line):
    """Its lines: a notebook would break a long one inside a word."""
    return detail_lines(line) if in_notebook() else [line]


def detail_lines(line):
    """A detail's lines in a notebook; later ones are further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    first, *more = wrapped(line.strip(), WIDTH - len(INDENT), indent) or [indent]
    return [first[2:], *more]


@dataclasses.dataclass(frozen=True)
class Result:
    """What `check` found.

    Attributes:
        rows: the evidence.
        attempted: whether anything was written at all.
        kernel: the learner's, if its answers are right; else the reference answer.
        open: gaps that nothing was written into yet; the solution's lines stood there.
        judged: the only gap that was asked about, if it was one.
    """

    id: str
    rows: tuple[Row, ...]
    attempted: bool
    kernel: Callable
    open: tuple[int, ...] = ()
    judged: int | None = None

    @property
    def passed(self) -> bool:
        return self.attempted and not self.open and self.judged is None and self.right

    @property
    def right(self) -> bool:
        """Whether the evidence speaks for what was written, be it all of it or not."""
        verdicts = [row.verdict for row in self.rows]
        return PASSED in verdicts and FAILED not in verdicts

    @property
    def stands_in(self) -> bool:
        """Whether the learner wrote something, and `kernel` is the reference all the same."""
        return self.attempted and self.kernel is exercises.load(self.id).reference

    def __str__(self):
        if not self.attempted:
            waits = "not attempted yet. The lesson goes on with the reference answer."
            return say(f"{self.id}: {waits}")
        return "\n".join([self.id, *map(str, self.rows), *_verdict(self)])


def _verdict(result):
    """What it comes to, and what is next."""
    exercise = exercises.load(result.id)
    if result.open or result.judged:
        exercise = exercise.guided or exercise
    if result.passed:
        solved = say(f"✓ Solved: {result.id}. {_next(result.id)}")
        return [paint(solved, GREEN), *_afterwards(exercise)]
    failed = [row.kind for row in result.rows if row.verdict == FAILED]
    wrong = f"Not yet: {', '.join(failed)}." if failed else ""
    if result.judged or result.open:
        filled = result.open or [n + 1 for n in range(exercise.gaps) if n + 1 != result.judged]
        open_gaps = sorted(set(range(1, exercise.gaps + 1)) - set(filled))
        gaps = f"gap{'s' if len(open_gaps) > 1 else ''} {_list(open_gaps)}"
        lines = [_coloured(failed, wrong or f"So far so good: {gaps}, with the solution's lines "
                           f"in {_list(filled)}.")]  # fmt: skip
        if result.open:
            are = "are" if len(result.open) > 1 else "is"
            lines.append(f"  {len(result.open)} of {exercise.gaps} gaps {are} still open: "
                         f"{_list(result.open)}.")  # fmt: skip
    else:
        lines = [_coloured(failed, wrong or "Nothing could be checked here.")]
        if exercise.gaps > 1:
            lines.append(f"  To check one of its {exercise.gaps} gaps alone: check(…, gap=1).")
    if failed:
        lines.append(
            f"  Fix the first ✗ and run the cell again; hint({result.id!r}) helps."
            if in_notebook()
            else f"  Fix the first ✗ and save; `lessons hint {result.id}` helps."
        )
    whose = "the reference answer, not yours" if result.stands_in else "your answer"
    lines.append(f"  The cells below trace and measure {whose}.")
    return [lines[0], *map(say, lines[1:])]


def _coloured(failed, text):
    return paint(f"✗ {say(text)}", RED) if failed else paint(f"· {say(text)}", FAINT)


def _list(numbers):
    return ", ".join(map(str, numbers))


def _next(id):
    ids = exercises.ids(id.partition(".")[0])
    after = ids[ids.index(id) + 1 :]
    return (
        f"Next: {after[0].partition('.')[2]}."
        if after
        else "That was this lesson's last one: read on."
    )


def _afterwards(exercise):
    """The solution explained, other ways, and a challenge."""
    if not (afterwards := exercise.afterwards):
        return []
    lines = [_section("Why it works")]
    for line, why in afterwards.why.items():
        lines += [f"    {line}", *_wrapped(say(why), 8)]
    lines.append(_section("Another way, and what it costs"))
    for way, cost in afterwards.instead.items():
        lines += _wrapped(say(f"{way}: {cost}"), 4)
    return [*lines, _section("Further"), *_wrapped(say(afterwards.stretch), 4)]


def _section(title):
    return f"  {paint(say(title), '1')}"


def _wrapped(text, indent):
    return wrapped(text, width() - 4, " " * indent)


def evaluate(id: str, function: Callable, gap: int | None = None) -> Result:
    """Gathers the evidence for `function`; prints nothing that stays.

    Args:
        id: the exercise.
        function: the learner's.
        gap: judge this one alone, counted from 1: the solution's lines stand in the others.

    Raises:
        ValueError: the exercise has no such gap.
    """
    exercise = _as_asked(exercises.load(id), function, gap)
    if gap is not None and not 1 <= gap <= exercise.gaps:
        raise ValueError(
            f"gap is {gap}, needs a number from 1 to {exercise.gaps}, the gaps of {id}"
        )
    mine, open_ = function, ()
    try:
        open_, mine = _completed(exercise, function, gap)
    except (OSError, TypeError):
        attempted = callable(function)  # no source to read: let the evidence speak
    except (LookupError, SyntaxError) as error:
        attempted = exercises.attempted(function)
        if attempted and gap is not None:
            row = Row("definition", FAILED, str(error))
            return Result(id, (row,), True, exercise.reference, judged=gap)
    else:
        attempted = len(open_) < exercise.gaps and gap not in open_
    if not attempted:
        return Result(id, (), False, exercise.reference)
    result = Result(id, tuple(rows_of(exercise, mine)), True, function, open_, gap)
    answers = [row.verdict for row in result.rows if row.kind in ("answer", "definition")]
    # A compiler that gave up in its own process would give up in this one, at a launch.
    answers += [row.verdict for row in result.rows if row.text == "does not compile"]
    if FAILED in answers or not (result.right or PASSED in answers) or open_ or gap:
        result = dataclasses.replace(result, kernel=exercise.reference)
    return result


def _as_asked(exercise, function, gap):
    """The guided version, if one of its gaps is asked about or left open in the learner's text."""
    guided = exercise.guided
    if guided is None or gap is not None:
        return guided or exercise
    try:
        follows = not exercises.attempted(function)
        follows = follows and gaps.Parted(guided, exercises.source_of(function)).open
    except (LookupError, OSError, TypeError, SyntaxError):
        return exercise
    return guided if follows else exercise


def _completed(exercise, function, gap):
    """The open gaps, and the function to judge: one without gaps."""
    text = exercises.source_of(function)
    if exercise.gaps < 2:
        return (() if exercises.attempted(function) else (1,)), function
    if gap is None and exercises.attempted(function):
        return (), function
    open_ = gaps.Parted(exercise, text).open
    filled = open_ if gap is None else [n for n in range(1, exercise.gaps + 1) if n != gap]
    if len(open_) == exercise.gaps:
        return open_, function
    return open_, gaps.completed(exercise, function, filled)


def rows_of(exercise, function):
    """The rows of a check, one after the other, as they are gathered: stop where you know enough.

    Args:
        exercise: the `Exercise`.
        function: to judge, without gaps.
    """
    if trouble := definition.trouble(function, exercise):
        yield Row("definition", FAILED, trouble[0], trouble[1:])
        return
    rows = []
    for gather in exercise.evidence:
        kind = getattr(gather, "kind", "answer")
        # Traffic may explain a wrong answer (a race, say); machine code does not.
        explains = getattr(gather, "explains_wrong_answers", kind in ("answer", "traffic"))
        if not explains and FAILED in [row.verdict for row in rows]:
            break
        try:
            with busy(f"{exercise.id}: {kind}"), borrowed.watched(function, exercise) as ran:
                gathered = gather(function, exercise)
        except Exception as error:  # a lesson never stops on a learner's mistake
            lines = [*_where(error), *getattr(error, "__notes__", ())]
            lines += [f"hint: {hint}" for hint in [of_error(error)] if hint]
            gathered = Row(kind, FAILED, _first_line(error), tuple(lines))
        if ran:
            gathered = Row("definition", FAILED, ran[0][0], ran[0][1:])
        for row in [gathered] if isinstance(gathered, Row) else gathered:
            if row.verdict == FAILED:
                details = tuple(map(_plainer, row.details))
                row = dataclasses.replace(row, text=_plainer(row.text), details=details)
            if row.verdict != FAILED or _fault(row) not in map(_fault, rows):  # told once
                rows.append(row)
                yield row
            if row.verdict == FAILED and any(STILL in line for line in row.details):
                return  # it would not end in the next one either


def _fault(row):
    """What went wrong, whatever the sizes and threads were."""
    lines = [line for line in row.details if not line.startswith(("hint", "block", "  block"))]
    return row.verdict, re.sub(r"\d+", "#", "\n".join(lines) or row.text)


def check(id: str, function: Callable, gap: int | None = None) -> Result:
    """Prints the evidence for your `function` and returns it. Never raises on a wrong answer.

    Args:
        id: the exercise, 'NN_idea.name'.
        function: your kernel or function, as defined in the notebook.
        gap: of an exercise with several, judge this one alone: 1, 2, …

    Returns:
        A `Result`: `.passed`, `.rows`, and `.kernel`, yours if its answers are right and the
        reference if not.
    """
    from . import progress, stand_in

    if old := definition.stale(function):
        row = Row("definition", FAILED, old[0], old[1:])
        result = Result(id, (row,), True, exercises.load(id).reference)
    else:
        result = evaluate(id, function, gap)
        if result.attempted and gap is None and not result.open:
            progress.note_check(id, result.passed, _text_of(function))
    print(result)
    if result.stands_in:
        stand_in.stands_in(id, result.kernel)
    else:
        stand_in.stands_back(exercises.load(id).reference)
    return result


def hint(id: str) -> None:
    """Prints the next of three hints.

    Raises:
        ValueError: there is no such exercise.
    """
    from . import progress
    from .outline import outline

    lesson = {exercise.id: exercise for exercise in outline(id.partition(".")[0])}
    if id not in lesson:
        exercises.load(id)  # says what there is
    hints, tier = lesson[id].hints, progress.note_hint(id)
    tier = min(tier, len(hints))
    print(say(f"Hint {tier} of {len(hints)}: {hints[tier - 1]}"))
    if tier >= len(hints) and lesson[id].more:
        guided = exercises.load(id).guided
        gapped = say("With gaps, to go on from; check looks at each by itself, too:")
        print(f"\n{gapped}\n\n{guided.stub}")
    if tier >= len(hints):
        print(say("That was the last hint."))


def _text_of(function):
    try:
        return exercises.source_of(function)
    except (OSError, TypeError):  # made by exec, or built in
        return repr(function)


# What Python says of this project's own objects → what a learner can make of it.
PLAINER = (
    (r"\bMachine\.(\w+\(\))", r"\1"),
    (r"'Machine' object has no attribute '(\w+)'", r"gl.\1 is not known to this simulator"),
)


def _plainer(line):
    for pattern, plain in PLAINER:
        line = re.sub(pattern, plain, line)
    return line


def _first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _where(error):
    """The learner's own line, if the traceback has one: notebooks' cells have no file of ours."""
    ours = tuple(str(exercises.ROOT / room) for room in ("rwkv_lessons", "warplens"))
    steps = traceback.extract_tb(error.__traceback__)
    frames = [f for f in steps if not f.filename.startswith(ours)]
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
