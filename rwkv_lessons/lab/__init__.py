"""What the lessons teach with: check, trace, machine code, roofline, records, pictures."""

from .course.check import break_it, check, hint
from .course.modes import setup
from .course.predict import outcome, predict

# For kernels of one's own; from `kernels`, when they are first asked for: they import compilers.
OWN = ("banks", "machine_code", "occupancy", "races", "roofline", "timeline", "trace")

__all__ = ["break_it", "check", "hint", "outcome", "predict", "setup", *OWN]


def __getattr__(name):
    if name not in OWN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warplens import kernels

    return getattr(kernels, name)
