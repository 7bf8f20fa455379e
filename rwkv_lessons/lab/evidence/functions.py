"""The evidence for plain functions: called on copies, for so many lines, and shown with its inputs.

A learner's function is called by position, so that its parameters may have any names, and it any
decorator that keeps them.
"""

import inspect
import operator

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..course.check import FAILED, PASSED, Row
from ..course.hints import HINTS
from ..simulator.faults import KernelFault, NeverEnding
from ..simulator.steps import limited
from .cuda import Difference, compare


class ChangedInput(Difference):
    """A function wrote into what it was given."""


class WrongCall(Difference):
    """A function takes or returns so many things, and not what it is asked for."""


class TooWide(Difference):
    """A function computes in float64."""


class NoInteger(Difference):
    """A function returned a float where only an integer will do."""


SYMPTOMS = {ChangedInput: "changed input", NeverEnding: "endless", NoInteger: "integers"}
SYMPTOMS |= {WrongCall: None, TooWide: "float64"}


def called(function, *arguments, **named):
    """What `function` returns for copies of the arguments.

    Raises:
        ChangedInput: it changed one of them.
        WrongCall: it takes other arguments.
        TooWide: it computes in float64 what came in less.
        NeverEnding: it goes on and on.
    """
    _takes(function, arguments, named)
    copies = tree_map(_copy, (arguments, named))
    with limited(function), _Widths() as widths:
        got = function(*copies[0], **copies[1])
    names = [*inspect.signature(function).parameters, *named]
    pairs = zip(names, (*arguments, *named.values()), (*copies[0], *copies[1].values()))  # noqa: B905
    for name, before, after in pairs:
        if isinstance(before, torch.Tensor) and not torch.equal(_bits(before), _bits(after)):
            raise ChangedInput(f"the function changed its input {name}")
    given = {x.dtype for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)}
    if widths.float64 and torch.float64 not in given:
        raise TooWide(f"{widths.float64} computes in float64; the inputs have fewer bits")
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, got)


def _takes(function, arguments, named):
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        parameters = list(inspect.signature(function).parameters.values())
        count = len(arguments) + len(named)
        raise WrongCall(
            f"{function.__name__} takes ({', '.join(map(str, parameters))}) "
            f"and is called with {count} arguments"
        ) from None


def _copy(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def _bits(x):
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
    """A call as text: numbers as they are, tensors by their shapes."""
    parts = [_text(x) for x in arguments] + [f"{n}={_text(x)}" for n, x in (named or {}).items()]
    return f"{getattr(function, '__name__', 'function')}({', '.join(parts)})"


def _text(x):
    if isinstance(x, torch.Tensor):
        return str(list(x.shape))
    return repr(x) if isinstance(x, (int, float, tuple, list)) else "…"


def failed(name, trouble, exercise, symptom, call=""):
    """The row of a function that is wrong in the case `name`: the call, the reason, and a hint."""
    if isinstance(trouble, KernelFault) or type(trouble) in SYMPTOMS:
        symptom = SYMPTOMS.get(type(trouble))
    hint = exercise.symptoms.get(symptom) or HINTS.get(symptom)
    reason = str(trouble).replace("never written (NaN)", "NaN").splitlines()
    lines = [*([call] if call else []), *reason, *([f"hint: {hint}"] if hint else [])]
    return Row("answer", FAILED, name, tuple(lines))


def several(got, count):
    """What a function returned, as a tuple of `count`: it may be a list, or one tensor alone."""
    got = tuple(got) if isinstance(got, (tuple, list)) else (got,)
    if len(got) != count:
        raise WrongCall(f"returns {len(got)} {'things' if len(got) > 1 else 'thing'}, want {count}")
    return got


def function_cases(*cases, whole=False):
    """Calls a function on each case: (what it tests, arguments, what it has to return).

    Args:
        whole: what it returns has to be integers, as for a grid or a range.
    """

    def answer(function, exercise):
        for name, arguments, want in cases:
            try:
                want = want() if callable(want) else want
                got = called(function, *arguments)
                compare(got, want, letters="abcd"[: np.ndim(want)])
                if whole:
                    _integers(got)
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, name, shown(function, arguments))
        return Row("answer", PASSED, f"{len(cases)} cases")

    answer.kind = "answer"
    return answer


def _integers(got):
    for x in got if isinstance(got, (tuple, list)) else [got]:
        try:
            operator.index(x)
        except TypeError:
            raise NoInteger(f"returned {x}, a {type(x).__name__}: needs an integer") from None
