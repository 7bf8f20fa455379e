"""`lessons` alone: where you are, and the next exercise watched, with a key for each command."""

import contextlib
from collections.abc import Callable

from ..course import exercises
from ..course.outline import outline
from . import notebooks as workbook
from .keys import keys

KEYS = "[bold]h[/] hint  [bold]c[/] check  [bold]l[/] list  [bold]r[/] reset  [bold]q[/] quit"
QUIT = {"q", "Q", "\x03", "\x04", None}  # also Ctrl-C, Ctrl-D and the end of the input
SECONDS = 0.3  # between two looks at the notebook


def accompany(
    say: Callable,
    next_id: Callable,
    commands: dict[str, Callable],
    check: Callable,
    solved: Callable,
) -> None:
    """Watches the next exercise until somebody quits or all are solved.

    Args:
        say: prints a line.
        next_id: the first exercise that is not solved, or None.
        commands: key → what it does, called with the exercise's id.
        check: id → whether it is solved now.
        solved: called once it is.
    """
    with keys() as pressed, contextlib.suppress(KeyboardInterrupt):
        while (id := next_id()) and _watch(id, say, pressed, commands, check):
            solved()


def _watch(id, say, pressed, commands, check):
    """True once the exercise is solved, False where somebody quits."""
    path = workbook.notebook_of(id.partition(".")[0])
    text, saved = workbook.text_above(id), _saved(path)
    say(f"\nWatching {id} in {workbook.relative(path)}: it is checked whenever you save it.")
    say(KEYS)
    exercises.solutions(id.partition(".")[0])  # imports torch and more, before it is needed
    while (key := pressed(SECONDS)) not in QUIT:
        key = key.lower()
        if key == "r":
            say(f"Start all exercises of {id.partition('.')[0]} afresh? [bold]y[/] n")
            key = "r" if pressed(60) in ("y", "Y") else "n"
        if key in commands:
            commands[key](id)
        changed = _saved(path) != saved
        saved, before, text = _saved(path), text, workbook.text_above(id) if changed else text
        if key == "c" or (changed and text != before and key != "r"):
            if check(id):
                return True
            say(KEYS)
        elif key:
            say(KEYS)
    return False


def _saved(path):
    return path.stat().st_mtime_ns if path.exists() else None


def first_unsolved(noted: dict) -> str | None:
    """The first exercise, in the lessons' order, without a pass among what is noted."""
    ids = (exercise.id for exercise in outline())
    return next((id for id in ids if not noted.get(id, {}).get("passed")), None)
