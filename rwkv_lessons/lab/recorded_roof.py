"""The least time of a launch on a GPU whose ceilings were measured and recorded here."""

import warplens
from rwkv_lessons.records import lookup

from .pictures.roofline import ceiling


def roofline(seen=None, *, flops, bytes=None, dtype="float32", gpu=lookup.GPU):
    """`warplens.roofline` with the recorded ceilings of a GPU.

    Args:
        seen, flops, bytes, dtype: as there.
        gpu: by the driver's name.

    Raises:
        LookupError: nobody recorded that GPU's ceilings.
        ValueError: neither a whole trace nor bytes.
    """
    measured = ceiling(dtype, gpu)
    return warplens.roofline(seen, flops=flops, bytes=bytes, dtype=dtype, ceiling=measured)
