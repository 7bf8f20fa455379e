"""A limit to how long a learner's plain Python function may go on."""

import contextlib
import functools
import inspect
import sys
import sysconfig
from pathlib import Path

from .faults import STILL, EndlessLoop, Place
from .time_limit import StillRunning, TooLarge, time_limit, uncounted

MOST_LINES = 100_000  # executed in a call; the lessons' own functions take up to 40,000
# Where code lies that no learner wrote; a course adds its own folder.
LIBRARIES = [
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")},
    str(Path(__file__).parent),
    "<frozen ",
    "<string>",
]
INSTALLED = {"site-packages", "dist-packages"}


@functools.cache
def is_own(file):
    """Whether what a file's name says is a learner's: a cell's, say, and no library's."""
    return not (file.startswith(tuple(LIBRARIES)) or INSTALLED & set(Path(file).parts))


@contextlib.contextmanager
def unlimited():
    """While it lasts, nothing is counted: what runs is long, and not the learner's."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        with uncounted():
            yield
    finally:
        sys.settrace(trace)


@contextlib.contextmanager
def limited(function, lines=MOST_LINES):
    """While it lasts, `function` and all that is no library's may execute so many lines together.

    And nothing may go on for long, or take more and more memory. Under a debugger, or what else
    uses Python's trace, lines are not counted; what is yielded says whether they are.

    Raises:
        EndlessLoop: with the line that was about to be executed.
    """
    try:
        with time_limit(), _counted(function, lines) as counted:
            yield counted
    except TooLarge as error:
        raise EndlessLoop(f"{STILL}, with more and more memory", place_of(error)) from None
    except StillRunning as error:
        raise EndlessLoop(f"{STILL} after many seconds", place_of(error)) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            reason = "it asks for more memory than a check gives it"
            raise EndlessLoop(f"{STILL}, or far too large: {reason}", place_of(error)) from None
        raise


@contextlib.contextmanager
def _counted(function, lines):
    if sys.gettrace() is not None or getattr(inspect.unwrap(function), "__code__", None) is None:
        yield False
        return
    remaining = lines

    def line(frame, event, _):
        nonlocal remaining
        if event == "line":
            remaining -= 1
            if remaining < 0:
                sys.settrace(None)
                place = Place(frame.f_code, frame.f_lineno)
                raise EndlessLoop(f"{STILL} after {lines:,} lines", place)
        return line

    sys.settrace(lambda frame, *_: line if is_own(frame.f_code.co_filename) else None)
    try:
        yield True
    finally:
        sys.settrace(None)


def place_of(error):
    """The innermost line of a learner that an exception went through."""
    place, step = None, error.__traceback__
    while step is not None:
        frame, line = step.tb_frame, step.tb_lineno
        if step.tb_next is None and not is_own(frame.f_code.co_filename) and frame.f_back:
            frame, line = frame.f_back, frame.f_back.f_lineno  # it came while a line was counted
        if is_own(frame.f_code.co_filename):
            place = Place(frame.f_code, line)
        step = step.tb_next
    return place
