"""`cuda.float32x4` and its like: two to four numbers under the names x, y, z, w."""

import functools

import numpy as np

from ..faults import Unsupported


class Vector:
    """Made of as many numbers as it has, or of smaller vectors that have them together."""

    __slots__ = tuple("xyzw")
    kind, length = np.float32, 4  # of each class that `vector_class` makes, its own

    def __init__(self, *parts):
        values = []
        for part in parts:
            values.extend(part if isinstance(part, Vector) else (part,))
        if len(values) != self.length:
            name = type(self).__name__
            raise TypeError(f"{name} is made of {len(values)} numbers, needs {self.length}")
        for name, value in zip("xyzw", values, strict=False):
            setattr(self, name, value)

    def __iter__(self):
        return (getattr(self, name) for name in "xyzw"[: self.length])

    def __setattr__(self, name, value):
        object.__setattr__(self, name, self.kind(value))

    def __add__(self, other):
        raise Unsupported(f"arithmetic of {type(self).__name__}: compute with its x, y, z, w")

    __sub__ = __mul__ = __truediv__ = __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __add__


@functools.cache
def vector_class(kind, length):
    name = f"{kind}x{length}"
    number = np.dtype(kind).type
    return type(name, (Vector,), {"kind": number, "length": length, "__slots__": ()})
