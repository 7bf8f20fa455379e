"""The evidence for plain functions: what they return, and that they leave their inputs alone."""

import copy
import inspect
import numbers
import sys
import traceback

import numpy as np

from ..course.check import FAILED, PASSED, Row
from ..course.exercises import ROOT
from ..simulator.time_limit import StillRunning, time_limit
from .compare import Difference, compare

SHOWN = 60  # characters of an input


def function_answer(*cases, more=(), whole=False):
    """Calls a plain function, each time with inputs of its own.

    Args:
        cases: (what it tests, arguments, expected value, or a function that makes it) each.
        more: further arguments, for which the solution says what is expected.
        whole: whether the result has to be an integer: a launch takes no other.
    """

    def answer(function, exercise):
        further = [
            ("many sizes", given, exercise.reference(*copy.deepcopy(given))) for given in more
        ]
        for name, arguments, want in (*cases, *further):
            want = want() if callable(want) else want
            try:
                got = called(function, arguments)
                if whole and not isinstance(got, numbers.Integral):
                    raise Difference(f"got {got!r}, want an integer, {want}: a launch needs one")
                if np.ndim(want) == 0 and not _is_number(got) and got is not None:
                    raise Difference(f"got {_short(got)}, want one number, {want:.10g}")
                compare(got, want, letters="bthj"[: np.ndim(want)])
            except (Difference, Endless) as error:
                symptom = exercise.symptoms.get(name)
                hints = (f"hint: {symptom}",) if symptom else ()
                details = (*str(error).splitlines(), f"called as {call(function, arguments)}")
                return Row("answer", FAILED, name, (*details, *hints))
        return Row("answer", PASSED, f"{len(cases) + len(further)} cases")

    answer.kind = "answer"
    return answer


class Endless(AssertionError):
    """A function that did not return in its time."""


def called(function, arguments):
    """What `function` returns for copies of the arguments.

    Raises:
        Difference: it changed its inputs.
        Endless: it did not come to an end.
    """
    given, before = copy.deepcopy(arguments), copy.deepcopy(arguments)
    try:
        with time_limit():
            got = function(*given)
    except StillRunning as error:
        raise Endless(f"{_line(error)}still looping after 20 s of computing") from None
    for name, now, then in zip(_names(function, arguments), given, before, strict=True):
        if not _same(now, then):
            raise Difference(f"the function changed its input {name}")
    return got


def call(function, arguments):
    """A call as text: flops(B=1, T=1, H=1, N=64)."""
    named = zip(_names(function, arguments), arguments, strict=True)
    inside = ", ".join(f"{name}={_short(value)}" for name, value in named)
    return f"{getattr(function, '__name__', 'the function')}({inside})"


def _names(function, arguments):
    try:
        names = [p.name for p in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        names = []
    return (
        names if len(names) == len(arguments) else [f"input {n + 1}" for n in range(len(arguments))]
    )


def _short(value):
    text = (
        f"an array {list(value.shape)}"
        if hasattr(value, "shape") and np.ndim(value)
        else str(value)
    )
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _is_number(value):
    return np.ndim(value) == 0 and not isinstance(value, (str, dict, set))


def _same(a, b):
    if hasattr(a, "shape"):
        return a.shape == b.shape and np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is not type(b) or not hasattr(a, "__eq__") or a == b or a != a


def _line(error):
    """ "line 4: while True: " of the innermost line that is not this package's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((str(ROOT / "rwkv_lessons"), sys.prefix))]
    return f"line {own[-1].lineno}: {own[-1].line}\n" if own else ""
