"""What the lessons teach with: check, trace, assembly, roofline, records, pictures."""

from .check import break_it, check, hint
from .modes import setup
from .predict import outcome, predict

__all__ = ["break_it", "check", "hint", "outcome", "predict", "setup"]
