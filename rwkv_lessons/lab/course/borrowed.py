"""What ran in place of a learner's own answer: the library's functions, the solution, a solver."""

import contextlib
import functools
import inspect
import re
import sys
import threading
from pathlib import Path

from warplens.compiled.functions import named
from warplens.faults import Place

from ...operations import OPERATIONS
from ...records.fingerprint import plain
from . import exercises

PACKAGE = str(Path(__file__).resolve().parents[2])
LAB = tuple(f"{PACKAGE}/lab/{room}/" for room in ("evidence", "course", "commands", "lessons"))
ROOMS = {operation.package for operation in OPERATIONS.values()} | {"models", "interop"}
ANSWERS = tuple(f"{PACKAGE}/{room}/" for room in ROOMS)
SOLVER = re.compile(r"inv(?!ert)|solve|lstsq")
NUMERIC = re.compile(r"\b(numpy|scipy)/linalg/")


@contextlib.contextmanager
def watched(function, exercise):
    """While it lasts, notes what of this project `function` runs; yields a list of a row's lines.

    However it was reached, by a name, by importlib or out of a table, it runs, and the learner's
    function is behind it on the stack. What the solution names is anybody's. Kernels are not
    watched, but looked at by `in_kernel`.
    """
    calls = []
    own = code_of(function)
    if own is None or not inspect.isfunction(exercise.reference):
        yield calls
        return
    free = set(_codes(exercise.reference))
    if not own.co_filename.startswith(PACKAGE):  # the solution itself may be judged
        free.add(id(own))

    def enters(frame, event, _):
        code = frame.f_code
        if event != "call" or id(code) in free or code.co_name == "<module>":
            return
        if _is_ours(code, exercise) and (code is own or (line := _line_of(own, frame))):
            calls.append(detail_lines(code.co_name, *([] if code is own else [line])))

    with _profiled(enters):
        yield calls


@contextlib.contextmanager
def solvers():
    """While it lasts, notes functions of torch, numpy and scipy that solve or invert; their names.

    Those that this package's own functions call are left out.
    """
    names = []

    def enters(frame, event, builtin):
        code = frame.f_code
        if event == "c_call" and not code.co_filename.startswith(PACKAGE):
            name = getattr(builtin, "__name__", "")
            if SOLVER.search(name):
                names.append(name)
        elif event == "call" and NUMERIC.search(code.co_filename) and SOLVER.search(code.co_name):
            names.append(code.co_name)

    with _profiled(enters):
        yield names


@contextlib.contextmanager
def _profiled(function):
    """Calls `function` at every event of Python's profiler, in place of the profiler before."""
    before = sys.getprofile()
    sys.setprofile(function)
    threading.setprofile(function)  # of threads that are started meanwhile
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


def unwatched():
    """While it lasts, nothing is noted: what runs is long, and not the learner's."""
    return _profiled(None)


def detail_lines(name, *line):
    """The lines of a row."""
    return (
        f"it calls {name}, which is this library's own answer",
        *line,
        "hint: what that function does is what this exercise asks you to write.",
    )


def in_kernel(kernel, exercise):
    """Kernels of this library, or the solution, that a learner's kernel calls by any name."""
    own, free = _codes(kernel), _codes(exercise.reference)
    return [own[n].co_name for n in own.keys() - free.keys() if _is_ours(own[n], exercise)]


def _codes(function):
    """The code of all functions that a function names, by its identity."""
    codes = map(code_of, named(plain(function)).values())
    return {id(code): code for code in codes if code}


def code_of(value):
    """The code of a function under any decorators; None of what has none."""
    while isinstance(value, functools.partial):
        value = value.func
    try:
        return plain(inspect.unwrap(value)).__code__
    except (TypeError, ValueError):
        return None


def _is_ours(code, exercise):
    """Whether it answers: a function of this package, or the solution of the exercise."""
    file, (stem, _, name) = code.co_filename, exercise.id.partition(".")
    if file.startswith(LAB):  # of its classes, learners are handed objects
        return "." not in code.co_qualname
    if file.startswith(ANSWERS):
        return not code.co_name.startswith("__")
    return code.co_name == name and file in (
        f"<{exercise.id}>",
        str(exercises.SOLUTIONS / f"{stem}.py"),
    )


def _line_of(own, frame):
    """The line outside of this package that called it, with `own` behind it; else None."""
    place = None
    while (frame := frame.f_back) is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) or code.co_name == "<module>":
            return None
        place = place or str(Place(code, frame.f_lineno))
        if code is own:
            return place
    return place  # in a thread that `own` started
