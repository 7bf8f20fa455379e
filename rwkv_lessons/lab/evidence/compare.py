"""An answer against float64: where they differ first, and what that says."""

import contextlib
import itertools

import numpy as np

# Float32 against float64: N·T roundings of 6e-8 each, of either sign, stay below 1e-5 of the
# largest output, while a single wrong term is 1e-2 or more.
TOLERANCE = 1e-5
FRESH = np.uint32(0x7FC5EED0)  # the bits of a NaN that no arithmetic makes
COMPUTED = "a NaN that was computed"
UNWRITTEN = "never written (NaN in fresh memory)"


class Difference(AssertionError):
    """Two arrays that should agree and do not; says where first.

    Attributes:
        symptom: "unset" if a NaN was computed: a thread's own memory starts with them; "batch",
            "head" or "state" if only later batch rows, heads or tokens differ; "by hand" if the
            first token does; None where the axes do not tell.
        unwritten: whether nobody has stored the first element that differs.
    """

    symptom, unwritten = None, False


class NotANumber(Difference):
    """An answer is NaN, and was stored."""


class ClearMistake(Difference):
    """A mistake that is known for what it is, in whatever case it shows; `symptom` names it."""


class WrongResult(ClearMistake):
    """What was returned is of another shape or type, so that no number can be compared."""


class SwappedAxes(ClearMistake):
    """Every number is right, and stands at the place that two axes the other way round have."""

    symptom = "axes"


class NeverWritten(ClearMistake):
    """An output has elements that nobody has stored."""

    symptom, unwritten = "never written", True


class AddsToMemory(ClearMistake):
    """An output would be right if its memory had been zero before."""

    symptom = "adds to memory"


class ChangedInput(ClearMistake):
    """An input was written to."""

    symptom = "changed input"


@contextlib.contextmanager
def about(name, by_axes=True):
    """Puts a name before what is said of it.

    Args:
        by_axes: whether the axis of a first difference tells anything of this array.
    """
    try:
        yield
    except Difference as difference:
        named = type(difference)(f"{name}: {difference}")
        named.symptom, named.unwritten = difference.symptom, difference.unwritten
        if not by_axes and not isinstance(difference, ClearMistake):
            named.symptom = None
        raise named from None


def fresh(shape):
    """A float32 array to write to, full of a NaN that is told from one that was computed."""
    return np.full(shape, FRESH, np.uint32).view(np.float32)


def compare(
    got, want, letters="bthj", scale=None, tolerance=TOLERANCE, untouched=False, by_how_much=False
):
    """Raises `Difference` at the first element of `got` further than `tolerance` from `want`.

    Args:
        scale: of what was added up, if `want` is what remains of larger numbers; else its largest.
        tolerance: over the scale.
        untouched: whether `got` was `fresh`, so that a NaN in it tells where it comes from.
        by_how_much: whether to say so; then all of `got` is known to have been written.
    """
    if got is None:
        raise nothing_returned()
    if str(getattr(got, "dtype", "")) == "torch.bfloat16":
        raise WrongResult("got bfloat16, with 8 bits of each number; want float32")
    numbers = f"got {got}, want {want}" if isinstance(want, tuple) else None
    stored = np.asarray(got)
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise _wrong_shape(got.shape, want.shape)
    limit = tolerance * max(np.abs(want).max(initial=0) if scale is None else scale, 1e-30)
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(got - want) <= limit)  # a NaN is off too
    if not off.any():
        return
    if numbers or not want.shape:
        raise Difference(numbers or f"got {got:.10g}, want {want:.10g}")
    first = tuple(int(n) for n in np.argwhere(off)[0])
    value = _value(stored, first, untouched)
    differing = f"{off.sum()} of {off.size} differ"
    where = f"first difference at [{place(letters, first)}]"
    if by_how_much and np.isnan(got[first]):
        raise NotANumber(f"{where}: NaN was computed, want {want[first]:.6g}; {differing}")
    if untouched and (stored.view(np.uint32) == FRESH).all():
        raise NeverWritten(f"none of its {off.size} elements is ever written")
    times = _times(got, want, off, limit) if by_how_much else ""
    message = f"{where}: {value}, want {want[first]:.6g}; {differing}{times}"
    if swapped := _swapped(got, want, limit):
        axes = " and ".join(letters[n] if n < len(letters) else str(n) for n in swapped)
        raise SwappedAxes(f"{message}\nWith its axes {axes} swapped it is right.")
    difference = Difference(message)
    difference.symptom = "unset" if value == COMPUTED else _symptom(off, letters)
    difference.unwritten = value == UNWRITTEN
    raise difference


def nothing_returned():
    """The mistake of a function without a return."""
    mistake = WrongResult("nothing was returned")
    mistake.symptom = "nothing"
    return mistake


def compare_each(results, tolerance=TOLERANCE):
    """`compare` for each (name, got, want, letters)."""
    for name, got, want, letters in results:
        with about(name):
            compare(got, want, letters, tolerance=tolerance)


def place(letters, index):
    """ "b=0, t=3"."""
    return ", ".join(f"{letter}={n}" for letter, n in zip(letters, index, strict=False))


def _wrong_shape(got, want):
    wrong = WrongResult(f"shape {list(got)}, want {list(want)}")
    if sorted(got) == sorted(want):
        wrong.symptom = "axes"
    elif len(got) < len(want) and got == want[len(want) - len(got) :]:
        wrong.symptom = "leading axes"
    else:
        wrong.symptom = "shape"
    return wrong


def _swapped(got, want, limit):
    """Two axes that make `got` right if its memory is read with them swapped; or None."""
    if not np.isfinite(got).all():
        return None
    for a, b in itertools.combinations(range(want.ndim), 2):
        if min(want.shape[a], want.shape[b]) > 1:
            shape = list(want.shape)
            shape[a], shape[b] = shape[b], shape[a]
            if (np.abs(got.reshape(shape).swapaxes(a, b) - want) <= limit).all():
                return a, b


def _times(got, want, off, limit):
    """By powers of ten: a last digit differs from one machine to the next."""
    error = np.abs(got - want)[off & np.isfinite(got)].max(initial=0) / limit
    if not error:
        return ""
    times = f"{10 ** int(np.log10(error)):,} times" if error >= 10 else "a few times"
    return f", by up to {times} what rounding explains"


def _value(stored, index, untouched):
    if not np.isnan(stored[index]):
        return f"{stored[index]:.6g}"
    if not untouched:
        return "NaN"
    if stored[index].view(np.uint32) == FRESH:
        return UNWRITTEN
    return COMPUTED


def _symptom(off, letters):
    """What is right before the first difference: all of a batch row, of a head, or a token."""
    if "t" not in letters:
        return None
    first, axes = {}, list(letters)
    for letter in "bht":
        if letter in axes:
            axis = axes.index(letter)
            other_axes = tuple(n for n in range(off.ndim) if n != axis)
            first[letter] = int(np.argmax(off.any(axis=other_axes)))
            off = off.take(first[letter], axis)
            axes.remove(letter)
    kinds = ("batch", "b"), ("head", "h"), ("state", "t")
    later = [symptom for symptom, letter in kinds if first.get(letter)]
    return later[0] if later else "by hand"
