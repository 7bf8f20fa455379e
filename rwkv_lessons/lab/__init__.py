"""What the lessons teach with: check, trace, machine code, roofline, records, pictures."""

from pathlib import Path

from warplens import steps
from warplens.compiled import targets

from .course.check import break_it, check, hint
from .course.modes import setup
from .course.predict import outcome, predict

# For kernels of one's own: warplens, which imports compilers when they are first asked for.
OWN = ("banks", "machine_code", "occupancy", "races", "timeline", "trace")

__all__ = ["break_it", "check", "hint", "outcome", "predict", "roofline", "setup", *OWN]


def _own_target(target):
    from rwkv_lessons.runtime import compile_triton

    return compile_triton.own_target(target)


targets.OWN["rwkv_lessons"] = _own_target
steps.LIBRARIES.append(str(Path(__file__).parents[1]))


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "roofline":
        from .recorded_roof import roofline

        return roofline
    import warplens

    return getattr(warplens, name)
