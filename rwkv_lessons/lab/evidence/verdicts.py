"""Verdicts on what is wrong: its lines, and the hint for its cause.

A cause that shows by itself (a fault, a race, an answer with its axes swapped) has a hint of its
own. A number that is wrong says less than the case in which it is wrong, whose hint then stands.
"""

from warplens.cuda.races import Race
from warplens.faults import (
    DivergentBarrier,
    EndlessLoop,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    UninitialisedRead,
)
from warplens.triton.checked_memory import ProgramRace

from ..course.check import FAILED, Row
from ..course.hints import HINTS, of_error
from .compare import ClearMistake, Difference, NeverWritten, NotANumber

FAULTS = {EndlessLoop: "endless", DivergentBarrier: "divergent", MisalignedAccess: "alignment"}
# Cases of these say no more than an axis does: the first wrong batch row, head or token.
GENERAL = ("by hand", "state", "head", "batch")


def failed(name, trouble, exercise, symptom=None, call="", **cause):
    """The row "answer" of what is wrong in the case `name`.

    Args:
        trouble, exercise, symptom, cause: as for `explained`.
        call: how it was called, as text.
    """
    details = explained(trouble, exercise, symptom, **cause)
    return Row("answer", FAILED, name, (call, *details) if call else details)


def explained(trouble, exercise, symptom=None, outside="mask", by_axes=False):
    """What is wrong, in lines, with the hint for its cause; most plain Python errors have none.

    Args:
        trouble: an exception or a race, or text that only says what was counted.
        symptom: of the case in which it showed.
        outside: the symptom of an access out of bounds.
        by_axes: whether the axis of a first wrong number says more than a general case.
    """
    symptom = _cause(trouble, exercise, symptom, outside, by_axes)
    hint = exercise.symptoms.get(symptom) or HINTS.get(symptom) or of_error(trouble)
    notes = getattr(trouble, "__notes__", ())
    return (*str(trouble).splitlines(), *notes, *([f"hint: {hint}"] if hint else []))


def _cause(trouble, exercise, symptom, outside, by_axes):
    """The symptom that `trouble` shows by itself, else that of its case."""
    own = getattr(trouble, "symptom", None)
    if isinstance(trouble, Race):
        return "order" if trouble.space == "shared" else "owner"
    if isinstance(trouble, ProgramRace):
        return "programs"
    if isinstance(trouble, UninitialisedRead):
        return "filled" if trouble.space == "shared" else "unset"
    if isinstance(trouble, OutOfBounds):
        return own or outside
    if isinstance(trouble, KernelFault):
        return FAULTS.get(type(trouble), own)
    if isinstance(trouble, NeverWritten) and symptom == "own blocks":
        return symptom  # right for small sizes: that says why
    if isinstance(trouble, ClearMistake):
        return own
    if isinstance(trouble, NotANumber) and "not a number" in exercise.symptoms:
        return "not a number"
    if isinstance(trouble, Difference):
        return own if own and by_axes and symptom in GENERAL else symptom
    return own or symptom
