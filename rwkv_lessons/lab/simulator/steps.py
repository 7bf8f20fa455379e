"""A limit to how long a learner's plain Python function may go on."""

import contextlib
import inspect
import sys

from .faults import EndlessLoop, Place

MOST_LINES = 100_000  # executed in a call; the lessons' own functions take up to 40,000


@contextlib.contextmanager
def unlimited():
    """While it lasts, lines are not counted: what runs is long, and not the learner's."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


@contextlib.contextmanager
def limited(function, lines=MOST_LINES):
    """While it lasts, `function` and its neighbours in the same file may execute so many lines.

    Does nothing under a debugger, or what else uses Python's trace.

    Raises:
        EndlessLoop: with the line that was about to be executed.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if sys.gettrace() is not None or code is None:
        yield
        return
    file, left = code.co_filename, lines

    def line(frame, event, _):
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                place = Place(frame.f_code, frame.f_lineno)
                raise EndlessLoop(f"still looping after {lines:,} lines", place)
        return line

    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename == file else None)
    try:
        yield
    finally:
        sys.settrace(None)
