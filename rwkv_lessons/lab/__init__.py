"""What the lessons teach with: check, trace, assembly, roofline, records, pictures."""

from .course.check import break_it, check, hint
from .course.modes import setup
from .course.predict import outcome, predict

__all__ = ["break_it", "check", "hint", "outcome", "predict", "setup"]
