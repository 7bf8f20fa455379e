"""A number is committed before the run, kept, and shown beside the outcome."""

from . import progress
from .language import say


def predict(id: str, value: float | None = None) -> None:
    """Notes your prediction. With None nothing is noted, and the lesson goes on.

    Args:
        id: what is predicted, 'NN_idea.what'.
        value: your number, in the unit the question names; at least 0.
    """
    if value is None:
        waits = "No prediction yet: put a number in place of None, then run this cell again."
        print(say(waits))
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"value must be a number of at least 0, got {value!r}")
    progress.note_prediction(id, value)
    print(say(f"Noted: {value:,}. You will see how close it is."))


def outcome(id: str, value: float, unit: str = "", source: str = "counted") -> None:
    """Shows what came out beside what you predicted, with the factor between them."""
    print(say(f"{source}: {show(value)} {unit}".rstrip()))
    guess = progress.prediction(id)
    if guess is not None:
        progress.note_outcome(id, value if isinstance(value, int) else float(value), unit)
        came = f"{show(guess)} {unit}".rstrip()
        print(say(f"predicted: {came} ({factor(guess, value)})"))


def close(guess: float, value: float) -> bool:
    """Whether a guess counts as right: at most a quarter off."""
    return abs(guess - value) <= abs(value) / 4


def factor(guess: float, value: float) -> str:
    """How far a guess is off, in words."""
    if guess == value:
        return "exactly"
    if not guess or not value:
        return "no factor: one of them is 0"
    ratio = guess / value
    return f"{ratio:.3g}× too high" if ratio > 1 else f"{1 / ratio:.3g}× too low"


def show(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
