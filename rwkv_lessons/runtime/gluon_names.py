"""Gluon's older names, where a newer Triton took them away.

Triton 3.9 calls asynchronous copies `async_load` and `async_store`, and a tile's `_reinterpret`
`reinterpret`; Triton 3.6 and 3.7 have the older names alone. The arguments that these kernels
give are the same.
"""

from triton.experimental.gluon.language import shared_memory_descriptor
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

NEWER = (
    (tma, "async_copy_global_to_shared", "async_load"),
    (tma, "async_copy_shared_to_global", "async_store"),
    (async_copy, "async_copy_global_to_shared", "async_load"),
    (shared_memory_descriptor, "_reinterpret", "reinterpret"),
)


def restore_older_names():
    """Gives the older names their functions again; with Triton before 3.8 it changes nothing."""
    for place, older, newer in NEWER:
        if hasattr(place, newer):
            setattr(place, older, getattr(place, newer))
