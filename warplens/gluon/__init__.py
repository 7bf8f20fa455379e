"""Gluon kernels as written: asynchronous copies and products, fences, registers."""

from .faults import GluonFault
from .run import Machine, OnCPU, trace, watch

__all__ = ["GluonFault", "Machine", "OnCPU", "trace", "watch"]
