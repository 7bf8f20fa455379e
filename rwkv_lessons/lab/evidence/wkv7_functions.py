"""The evidence for torch functions of WKV-7: called on float32 tensors, held against float64."""

from collections.abc import Callable

import torch

from ..course.check import FAILED, PASSED, Row
from ..simulator.faults import KernelFault
from .chunks import count
from .cuda import TOLERANCE, Difference, compare, explained
from .functions import called, failed, several, shown
from .wkv7 import problem


def one_head(names: str, shape, **choice):
    """Tensors of the first head of a `problem`, float32: tokens `[T, K or V]`, a state `[K, V]`.

    Args:
        names: separated by spaces; "s" is s0.
        shape: T, K, V.
        choice: of `problem`.
    """
    T, K, V = shape
    known = problem((1, T, 1, K, V), **choice)
    found = [known["s0" if name == "s" else name].float() for name in names.split()]
    return [x[0, :, 0].contiguous() if x.shape[1] == T and x.dim() == 4 and x.shape[2] == 1
            and x.shape[1:3] == (T, 1) else x[0, 0].contiguous() for x in found]  # fmt: skip


def exact_loop(r, w, k, v, a, b, s):
    """o and the last state of one head, token by token; also with axes in front."""
    o = []
    for t in range(r.shape[-2]):
        z = a[..., t, None, :] @ s
        s = w[..., t, :, None].exp() * s + b[..., t, :, None] * z
        s = s + k[..., t, :, None] * v[..., t, None, :]
        o.append(r[..., t, None, :] @ s)
    return torch.cat(o, -2), s


def calls(exact: Callable, returns, *cases, tolerance=TOLERANCE):
    """Calls the function on each case: (what it tests, symptom, () → float32 tensors).

    Args:
        exact: the answers for the same tensors in float64, one tensor or several.
        returns: ((name, a letter per axis), …) of what the function returns.
    """

    def gather(function, exercise):
        for name, symptom, make in cases:
            given = make()
            want = several(exact(*(x.double() for x in given)), len(returns))
            try:
                got = several(called(function, *given), len(returns))
                for (result, letters), x, y in zip(returns, got, want, strict=True):
                    _compare(result, x, y, letters, tolerance)
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, symptom, shown(function, given))
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    gather.kind = "answer"
    return gather


def _compare(name, got, want, letters, tolerance):
    try:
        compare(got, want, letters[-want.dim() :], tolerance=tolerance)
    except Difference as difference:
        raise Difference(f"{name}: {difference}") from None


def few_calls(make: Callable, most: int, text: str):
    """Counts the operations of torch in one call: a loop over tokens has too many.

    Args:
        make: () → its arguments.
        most: operations allowed.
        text: what `make` gives.
    """

    def gather(function, exercise):
        found = count(function, *make())
        said = f"{found.calls} operations of torch for {text}"
        if found.calls > most:
            details = explained(f"at most {most} are needed", exercise, "loop over tokens")
            return Row("work", FAILED, said, details)
        if not found.products:
            details = explained("no matrix product is among them", exercise, "products")
            return Row("work", FAILED, said, details)
        return Row("work", PASSED, f"{said}, {found.products} matrix products")

    gather.kind = "work"
    return gather
