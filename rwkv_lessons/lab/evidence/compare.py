"""An answer against float64: where they differ first, and what that says."""

import contextlib

import numpy as np

# Float32 against float64: N·T roundings of 6e-8 each, of either sign, stay below 1e-5 of the
# largest output, while a single wrong term is 1e-2 or more.
TOLERANCE = 1e-5
FRESH = np.uint32(0x7FC5EED0)  # the bits of a NaN that no arithmetic makes
COMPUTED = "a NaN that was computed"


class Difference(AssertionError):
    """Two arrays that should agree and do not; says where first.

    Attributes:
        symptom: "unset" if a NaN was computed: a thread's own memory starts with them; "batch",
            "head" or "state" if only later batch rows, heads or tokens differ; "by hand" if the
            first token does; None where the axes do not tell.
    """

    symptom = None


class WrongResult(Difference):
    """What was returned is of another shape or type, so that no number can be compared."""


@contextlib.contextmanager
def about(name):
    """Puts a name before what is said of it."""
    try:
        yield
    except Difference as difference:
        named = type(difference)(f"{name}: {difference}")
        named.symptom = difference.symptom
        raise named from None


def fresh(shape):
    """A float32 array to write to, full of a NaN that is told from one that was computed."""
    return np.full(shape, FRESH, np.uint32).view(np.float32)


def compare(got, want, letters="bthj", scale=None, tolerance=TOLERANCE, untouched=False):
    """Raises `Difference` at the first element of `got` further than `tolerance` from `want`.

    Args:
        scale: of what was added up, if `want` is what remains of larger numbers; else its largest.
        tolerance: over the scale.
        untouched: whether `got` was `fresh`, so that a NaN in it tells where it comes from.
    """
    if got is None:
        raise WrongResult("nothing was returned")
    if str(getattr(got, "dtype", "")) == "torch.bfloat16":
        raise WrongResult("got bfloat16, with 8 bits of each number; want float32")
    numbers = f"got {got}, want {want}" if isinstance(want, tuple) else None
    given = np.asarray(got)
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise WrongResult(f"shape {list(got.shape)}, want {list(want.shape)}")
    limit = tolerance * max(np.abs(want).max(initial=0) if scale is None else scale, 1e-30)
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(got - want) <= limit)  # a NaN is off too
    if off.any() and (numbers or not want.shape):
        raise Difference(numbers or f"got {got:.10g}, want {want:.10g}")
    if off.any():
        first = tuple(int(n) for n in np.argwhere(off)[0])
        place = ", ".join(f"{a}={n}" for a, n in zip(letters, first, strict=False))
        value = _value(given, first, untouched)
        difference = Difference(
            f"first difference at [{place}]: {value}, want {want[first]:.6g}; "
            f"{off.sum()} of {off.size} differ"
        )
        computed = value == COMPUTED
        difference.symptom = "unset" if computed else _symptom(off, letters)
        raise difference


def _value(given, index, untouched):
    if not np.isnan(given[index]):
        return f"{given[index]:.6g}"
    if not untouched:
        return "never written (NaN)"
    if given[index].view(np.uint32) == FRESH:
        return "never written (NaN in fresh memory)"
    return COMPUTED


def _symptom(off, letters):
    """What is right before the first difference: all of a batch row, of a head, or a token."""
    if "t" not in letters:
        return None
    where, axes = {}, list(letters)
    for letter in "bht":
        if letter in axes:
            axis = axes.index(letter)
            others = tuple(n for n in range(off.ndim) if n != axis)
            where[letter] = int(np.argmax(off.any(axis=others)))
            off = off.take(where[letter], axis)
            axes.remove(letter)
    found = [s for s, a in (("batch", "b"), ("head", "h"), ("state", "t")) if where.get(a)]
    return found[0] if found else "by hand"
