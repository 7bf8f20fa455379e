"""Analyse GPU kernels on any computer: traffic, races, machine code and limits, without a GPU.

    from warplens import banks, machine_code, occupancy, races, roofline, timeline, trace

For numba.cuda, Triton and Gluon kernels. Importing it does not import a compiler.

PYTEST_DONT_REWRITE: with WARPLENS=1, this is imported before pytest could rewrite its asserts.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["banks", "machine_code", "occupancy", "races", "roofline", "timeline", "trace"]

if TYPE_CHECKING:
    from .kernels import banks, machine_code, occupancy, races, roofline, timeline, trace
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import kernels

        return getattr(kernels, name)
