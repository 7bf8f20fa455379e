"""Gluon kernels as written: asynchronous copies and products, fences, registers."""

from .registers import GluonFault
from .run import Machine, OnCPU

__all__ = ["GluonFault", "Machine", "OnCPU"]
