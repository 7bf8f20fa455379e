"""What the lessons teach with: check, trace, assembly, roofline, records, pictures."""

from .check import check, hint
from .modes import setup
from .predict import outcome, predict

__all__ = ["check", "hint", "outcome", "predict", "setup"]
