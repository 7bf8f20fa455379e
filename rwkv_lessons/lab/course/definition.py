"""What is wrong with how a function was defined, before anybody runs it."""

import ast
import inspect
import re
import sys
from collections.abc import Callable

from warplens.compiled.functions import named

from ...records.fingerprint import plain
from . import borrowed, exercises

DECORATORS = {"py_func": "@cuda.jit", "fn": "@triton.jit"}
ARRAY = re.compile(r"\b(local|shared)\.array$")


def trouble(function: Callable, exercise: exercises.Exercise) -> tuple[str, ...]:
    """Lines that name what is wrong with the definition; none where nothing is.

    A forgotten decorator, another number of parameters than the launch passes, and a local or
    shared array whose size is not a constant: run on a CPU they would be a riddle, or no mistake.
    A handler of every exception: what should end an endless loop would end there. And a kernel
    that calls one of the library's, or the solution.
    """
    for look in (_decorator, _parameters, _array_sizes, _handlers):
        if lines := look(function, exercise.reference):
            return lines
    return _borrowed(function, exercise)


def _decorator(function, reference):
    for attribute, decorator in DECORATORS.items():
        required = hasattr(reference, attribute)
        there = hasattr(function, attribute) and _is_kernel(function)
        if required and _is_gluon(reference):
            if _is_gluon(function):
                continue
            decorator, there = "@gluon.jit", False
        if required and not there:
            if _is_kernel(function):
                return (f"it is a kernel of another kind: {decorator} goes above its `def`",)
            return (f"it is a plain Python function: {decorator} is missing above its `def`",)
        if there and not required:
            return (f"it is to be a plain Python function: take {decorator} away",)
    return ()


def _is_gluon(function):
    return type(function).__name__ == "GluonJITFunction"


def _is_kernel(function):
    """Whether it is for a GPU: a function under `numba.njit` may stand for a plain one."""
    return type(function).__module__.startswith(("numba.cuda", "triton"))


def _parameters(function, reference):
    own, expected = (_signature(f).parameters for f in (function, reference))
    kinds = {parameter.kind for parameter in own.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return ()
    needed = [p for p in own.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if len(needed) <= len(expected) <= len(own):
        return ()
    return (
        f"it takes {len(own)} arguments, and is called with {len(expected)}",
        f"takes:  {', '.join(own) or 'none'}",
        f"called: {', '.join(expected)}",
    )


def _signature(function):
    try:
        return inspect.signature(plain(function))
    except TypeError:  # a functools.partial, or an object that can be called
        return inspect.signature(function)


def _parsed(function):
    """Its source; empty where there is none."""
    try:
        return exercises.parsed(exercises.source_of(function))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _handlers(function, reference):
    """What catches everything also catches what stops a function that does not end."""
    if not inspect.isfunction(function):
        return ()  # a kernel has no handlers
    helpers = [f for f in named(function).values() if inspect.isfunction(f)]
    own = [f for f in helpers if f.__module__ == function.__module__]
    for f in (function, *own):
        for node in ast.walk(_parsed(f)):
            if isinstance(node, ast.ExceptHandler) and _catches_all(node):
                return (
                    "it catches every exception, also the one that stops a loop without an end",
                    f"line {node.lineno} of {f.__name__}: {ast.unparse(node).splitlines()[0]}",
                    "hint: name the exception that you expect, as in `except ValueError:`.",
                )
    return ()


def _catches_all(handler):
    names = ast.unparse(handler.type) if handler.type else "BaseException"
    again = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return "BaseException" in names and not again


def _array_sizes(function, reference):
    """numba has to know the size of such an array when it compiles."""
    local = set(getattr(borrowed.code_of(function), "co_varnames", ()))
    for call in ast.walk(_parsed(function)):
        if not isinstance(call, ast.Call) or not ARRAY.search(ast.unparse(call.func)):
            continue
        shape = next((k.value for k in call.keywords if k.arg == "shape"), None)
        shape = shape or (call.args[0] if call.args else None)
        names = {n.id for n in ast.walk(shape) if isinstance(n, ast.Name)} if shape else set()
        if varying := sorted(names & local):
            return (
                f"the size of an array is known only when the kernel runs: {varying[0]}",
                f"line {call.lineno}: {ast.unparse(call)}",
                "hint: it must be a number, or a constant from outside the function, as N is.",
            )
    return ()


def _borrowed(function, exercise):
    """A kernel calls what its names say; what a function runs is seen when it runs."""
    if _is_kernel(function) and (names := borrowed.in_kernel(function, exercise)):
        return borrowed.detail_lines(names[0])
    return ()


def stale(function: Callable) -> tuple[str, ...]:
    """Lines that say why `function` is older than the cell that should define it; else none.

    In a notebook, a cell that cannot run leaves the function of its last good run behind. What was
    typed since then is in IPython's history.
    """
    if "IPython" not in sys.modules or (shell := sys.modules["IPython"].get_ipython()) is None:
        return ()
    name = getattr(function, "__name__", "")
    try:
        text = exercises.source_of(function)
    except (OSError, TypeError):
        return ()
    history = [cell for cell in shell.user_ns.get("In", ()) if _defines(cell, name)]
    if not history or text in history[-1]:
        return ()
    since = f"the last cell that defines {name} did not run; {name} is still the one before it"
    return (since, _why(shell, history[-1]), "Fix that cell, run it, and then run this one.")


def _defines(cell, name):
    return re.search(rf"^[ \t]*def {re.escape(name)}\b", cell, re.M) is not None


def _why(shell, cell):
    try:
        ast.parse(shell.transform_cell(cell))
    except SyntaxError as error:
        return f"{type(error).__name__}, line {error.lineno}: {error.msg}"
    return "its error stands below it"
