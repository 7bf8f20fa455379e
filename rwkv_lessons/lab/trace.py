"""Counts what a kernel asks of memory, on a CPU."""

from .faults import (
    DivergentBarrier,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    UninitialisedRead,
)
from .simulator import run

__all__ = [
    "DivergentBarrier",
    "KernelFault",
    "MisalignedAccess",
    "OutOfBounds",
    "UninitialisedRead",
    "run",
]
