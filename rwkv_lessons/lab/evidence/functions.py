"""The evidence for plain functions: called on copies, for so many lines, and shown with its inputs.

A learner's function is called by position, so that its parameters may have any names, and it any
decorator that keeps them.
"""

import copy
import functools
import inspect
import operator

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from warplens.faults import KernelFault
from warplens.steps import limited

from ..course.check import PASSED, Row
from .compare import TOLERANCE, ChangedInput, ClearMistake, Difference, compare, nothing_returned
from .verdicts import failed

SHOWN = 60  # characters of an input


class WrongCall(ClearMistake):
    """A function takes or returns so many things, and not what it is asked for."""


class TooWide(ClearMistake):
    """A function computes in float64."""

    symptom = "float64"


class NoInteger(ClearMistake):
    """A function returned a float where only an integer will do."""

    symptom = "integers"


def function_cases(*cases, more=(), whole=False, tensor=False):
    """Calls a function on each case: (what it tests, arguments, what it has to return).

    Args:
        cases: what it has to return may be a function that makes it.
        more: further arguments, for which the solution says what is expected.
        whole: what it returns has to be integers, as for a grid or a range.
        tensor: what it returns has to be a tensor, because a model goes on with it.
    """

    def answer(function, exercise):
        further = [("many sizes", x, exercise.reference(*copy.deepcopy(x))) for x in more]
        for name, arguments, want in (*cases, *further):
            want = want() if callable(want) else want
            try:
                got = called(function, *arguments)
                if isinstance(want, tuple):
                    got = several(got, len(want))
                if tensor and not isinstance(got, torch.Tensor) and got is not None:
                    raise WrongCall(f"returns a {type(got).__name__}, needs a tensor of torch")
                if np.ndim(want) == 0 and np.ndim(got) and got is not None:
                    raise WrongCall(f"got {_text(got)}, want one number, {want:.10g}")
                letters = "bthj" if np.ndim(want) == 4 else "abcd"[: np.ndim(want)]
                compare(got, want, letters, tolerance=_tolerance(want))
                if whole:
                    _integers(got)
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, name, shown(function, arguments))
        return Row("answer", PASSED, f"{len(cases) + len(further):,} cases")

    answer.kind = "answer"
    return answer


def _tolerance(want):
    """Counts are exact, but for a division on the way, of float64s; other numbers are float32s."""
    counts = want if isinstance(want, tuple) else (want,)
    return 1e-12 if all(isinstance(x, int) for x in counts) else TOLERANCE


def called(function, *arguments, **named):
    """What `function` returns for copies of the arguments.

    Raises:
        ChangedInput: it changed one of them.
        WrongCall: it takes other arguments.
        TooWide: it computes in float64 what came in less, as tensors.
        EndlessLoop: it goes on and on.
    """
    _takes(function, arguments, named)
    copies, named_copies = tree_map(_copy, (arguments, named))
    _import_torch()
    with limited(function), _Widths() as widths:
        try:
            got = function(*copies, **named_copies)
        except KernelFault:
            raise
        except Exception as error:
            error.add_note(f"called as {shown(function, arguments, named)}")
            raise
    names = [*_names(function, arguments), *named]
    pairs = zip((*arguments, *named.values()), (*copies, *named_copies.values()), strict=True)
    for name, (before, after) in zip(names, pairs, strict=False):
        if not _same(before, after):
            raise ChangedInput(f"the function changed its input {name}")
    widths_given = {x.dtype for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)}
    if widths.float64 and torch.float64 not in widths_given:
        raise TooWide(f"{widths.float64} computes in float64; the inputs have fewer bits")
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, got)


@functools.cache
def _import_torch():
    """What torch imports at the first operation that is watched: a limit must not cut it off."""
    with _Widths():
        torch.ones(1)


def _takes(function, arguments, named):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built in: it says itself what it takes
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        parameters = ", ".join(map(str, signature.parameters.values()))
        raise WrongCall(
            f"{function.__name__} takes ({parameters}) "
            f"and is called with {len(arguments) + len(named)} arguments"
        ) from None


def _names(function, arguments):
    """The parameters that take the positional arguments."""
    numbered = [f"input {n + 1}" for n in range(len(arguments))]
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return numbered
    return names[: len(arguments)] if len(names) >= len(arguments) else numbered


def _copy(x):
    if isinstance(x, torch.Tensor):
        return x.clone()
    return x.copy() if isinstance(x, np.ndarray) else x


def _same(a, b):
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.equal(_numbers(a), _numbers(b))
    if hasattr(a, "shape"):
        return a.shape == b.shape and np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a is b or a == b or a != a


def _numbers(x):
    return x.nan_to_num() if x.is_floating_point() else x


class _Widths(TorchDispatchMode):
    """Remembers the first operation that made a float64 tensor with axes."""

    float64 = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.dim():
                self.float64 = self.float64 or function._schema.name.removeprefix("aten::")
        return out


def shown(function, arguments, named=None):
    """A call as text, flops(B=1, T=1): numbers as they are, tensors by their shapes."""
    named_inputs = zip(_names(function, arguments), arguments, strict=True)
    inside = ", ".join(f"{n}={_text(x)}" for n, x in (*named_inputs, *(named or {}).items()))
    return f"{getattr(function, '__name__', 'the function')}({inside})"


def _text(x):
    if hasattr(x, "shape") and np.ndim(x):
        return str(list(x.shape))
    literals = (int, float, str, tuple, list, dict, type(None))
    text = repr(x) if isinstance(x, literals) else "…"
    text = f"{x:.6g}" if isinstance(x, float) else text
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def several(got, count, names=()):
    """What a function returned, as a tuple of `count`: it may be a list, or one tensor alone."""
    if got is None:
        raise nothing_returned()
    got = tuple(got) if isinstance(got, (tuple, list)) else (got,)
    if len(got) != count:
        things = f"{len(got)} thing{'s' if len(got) > 1 else ''}"
        listed = f": {', '.join(names)}" if names else ""
        raise WrongCall(f"returns {things}, want {count}{listed}")
    return got


def _integers(got):
    for x in got if isinstance(got, (tuple, list)) else [got]:
        try:
            operator.index(x)
        except TypeError:
            raise NoInteger(f"returned {x}, a {type(x).__name__}: needs an integer") from None
