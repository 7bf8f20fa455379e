"""Registers, spills, SASS and occupancy, without a GPU.

The room can be called, as the other tools for kernels of one's own: `machine_code(kernel, *args)`
is `machine_code.assembly.assembly(kernel, *args)`.
"""

import sys
import types


class _Room(types.ModuleType):
    def __call__(self, kernel, *args, **named):
        from .assembly import assembly

        return assembly(kernel, *args, **named)


sys.modules[__name__].__class__ = _Room
