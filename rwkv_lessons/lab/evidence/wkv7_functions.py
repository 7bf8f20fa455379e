"""The evidence for torch functions of WKV-7: called on float32 tensors, held against float64."""

from collections.abc import Callable

import torch

from warplens.compiled.functions import with_values
from warplens.faults import KernelFault

from ..course.borrowed import solvers
from ..course.check import FAILED, PASSED, Row
from .chunks import count
from .compare import TOLERANCE, Difference, compare_each
from .functions import called, several, shown
from .verdicts import explained, failed
from .wkv7 import inputs


def one_head(T, K, V, **choice):
    """r, w, k, v, a, b of one head, `[T, K or V]`, and a state `[K, V]`, float32.

    Args:
        choice: of `inputs`.
    """
    return tuple(x[0] for x in heads(1, T, K, V, **choice))


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
            arguments = make()
            want = several(exact(*(x.double() for x in arguments)), len(returns))
            try:
                got = called(function, *arguments)
                got = several(got, len(returns), [name for name, _ in returns])
                named = zip(returns, got, want, strict=True)
                results = [(name, x, y, axes[-y.dim() :]) for (name, axes), x, y in named]
                compare_each(results, tolerance)
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, symptom, shown(function, arguments))
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    gather.kind = "answer"
    return gather


def few_calls(make: Callable, most: int, text: str, side: int = 0, **stand_ins: Callable):
    """Counts the operations of torch in one call: a loop over tokens has too many.

    Args:
        make: () → its arguments.
        most: operations allowed.
        text: what `make` gives.
        side: rows and columns that one of its matrix products has to have at least.
        stand_ins: functions by the names that the learner's calls them by: their own may be slow.
    """

    def gather(function, exercise):
        with solvers() as used:
            counted = count(with_values(function, stand_ins) if stand_ins else function, *make())
        message = f"{counted.calls} operations of torch for {text}"
        if counted.calls > most:
            details = explained(f"at most {most} are needed", exercise, "loop over tokens")
            return Row("work", FAILED, message, details)
        if used:
            message = f"{used[0]} solves the system, which a kernel has to do with products"
            symptom = "solver" if "solver" in exercise.symptoms else "products"
            return Row("work", FAILED, message, explained("", exercise, symptom))
        if not counted.products:
            details = explained("no matrix product is among them", exercise, "products")
            return Row("work", FAILED, message, details)
        if counted.side < side:
            small = f"the largest product is of blocks of {counted.side}, want {side}"
            return Row("work", FAILED, small, explained(message, exercise, "products"))
        return Row("work", PASSED, f"{message}, {counted.products} matrix products")

    gather.kind = "work"
    return gather


def no_solver(make: Callable):
    """One call, in which nothing may solve a system or invert a matrix.

    Args:
        make: () → its arguments.
    """

    def gather(function, exercise):
        with solvers() as used:
            called(function, *make())
        if used:
            message = f"{used[0]} solves a system or inverts a matrix"
            return Row("work", FAILED, message, explained("", exercise, "solver"))
        return Row("work", PASSED, "no solver, no matrix inverse")

    gather.kind = "work"
    return gather


def heads(H, C, K, V, **choice):
    """r, w, k, v, a, b `[H, C, K or V]` and a state `[H, K, V]`, float32.

    Args:
        choice: of `inputs`.
    """
    arrays = inputs((1, C, H, K, V), **choice)
    tokens = [arrays[x][0].transpose(0, 1).float().contiguous() for x in "rwkvab"]
    return *tokens, arrays["s0"][0].float()


def readings(C, N=32, alike=False):
    """(A,): how much a of each token reads of the earlier tokens' b, `[2, C, C]`, without decay.

    Args:
        alike: all tokens have nearly the same key, and replace what it answers: all of A is near
            −1, and the numbers of Pascal's triangle are in its powers.
    """
    arrays = inputs((1, C, 2, N, N), alike=alike)
    a, b = (arrays[x][0].transpose(0, 1) for x in "ab")
    return ((a @ b.mT).tril(-1).float(),)


def in_a_row(C):
    """(A,): each token reads only the one before it, `[2, C, C]`.

    A product of two such matrices is exact in float32, and every power below C is as large as A.
    """
    return (torch.diag_embed(torch.tensor([1.0, -1.0])[:, None].expand(2, C - 1), -1),)


def unit_triangular_inverse(A):
    """(I − A)⁻¹."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    return torch.linalg.solve_triangular(eye - A, eye.expand_as(A), upper=False, unitriangular=True)
