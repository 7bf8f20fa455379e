"""`cuda.fp16`: arithmetic of half precision, each result rounded to it once."""

import math
import re

import numpy as np

from ..faults import Unsupported


class HalfPrecision:
    """The functions of `cuda.fp16` by their names there; computed in float64, then rounded."""

    round = np.float16

    def __getattr__(self, name):
        function = FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(f"cuda.fp16 and cuda.bf16 have no {name!r} here")

        def rounded(*args):
            with np.errstate(all="ignore"):
                return self.round(function(*map(np.float64, args)))

        return COMPARISONS.get(name, rounded)


FUNCTIONS = {
    "hadd": np.add,
    "hsub": np.subtract,
    "hmul": np.multiply,
    "hdiv": np.divide,
    "hfma": lambda a, b, c: a * b + c,
    "hneg": np.negative,
    "habs": np.abs,
    "hsin": np.sin,
    "hcos": np.cos,
    "htanh": np.tanh,
    "htanh_approx": np.tanh,
    "hlog": np.log,
    "hlog2": np.log2,
    "hlog10": np.log10,
    "hexp": np.exp,
    "hexp2": np.exp2,
    "hexp10": lambda x: np.power(10.0, x),
    "hsqrt": np.sqrt,
    "hrsqrt": lambda x: 1 / np.sqrt(x),
    "hrcp": lambda x: 1 / x,
    "hceil": np.ceil,
    "hfloor": np.floor,
    "htrunc": np.trunc,
    "hrint": np.rint,
    "hmax": np.fmax,
    "hmin": np.fmin,
}
COMPARISONS = {
    "heq": lambda a, b: a == b,
    "hne": lambda a, b: a != b,
    "hge": lambda a, b: a >= b,
    "hgt": lambda a, b: a > b,
    "hle": lambda a, b: a <= b,
    "hlt": lambda a, b: a < b,
}
FUNCTIONS |= COMPARISONS


# bfloat16, whose numbers are those of the package ml_dtypes, where that is installed.
def has_bfloat16():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def bfloat16():
    """The type of bfloat16 numbers."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise Unsupported("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None
    return bfloat16


class BrainFloat(HalfPrecision):
    """The functions of `cuda.bf16`."""

    round = staticmethod(lambda x: bfloat16()(x))

    def __getattr__(self, name):
        if name == "bfloat16":
            return bfloat16()
        if name in MORE:
            return lambda *args: self.round(MORE[name](*map(float, args)))
        if name in FUNCTIONS:
            return super().__getattr__(name)
        if TO.fullmatch(name):
            return self.round
        if name in ("bfloat16_to_float32", "bfloat162float"):
            return np.float32
        if match := FROM.fullmatch(name):
            kind, way = np.dtype(match[1]), WAYS[match[2]]
            return lambda x: int(kind.type(way(float(x))))
        raise Unsupported(f"cuda.bf16.{name} is not simulated")


TO = re.compile(r"(float|u?int)(8|16|32|64)_to_bfloat16(_rn)?")  # rounded to the nearest
FROM = re.compile(r"bfloat16_to_(u?int(?:8|16|32|64))_(r[nzdu])")
WAYS = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}
MORE = {
    "fabs": abs,
    "hadd_sat": lambda a, b: min(max(a + b, 0), 1),
    "hsub_sat": lambda a, b: min(max(a - b, 0), 1),
    "hmul_sat": lambda a, b: min(max(a * b, 0), 1),
    "hfma_sat": lambda a, b, c: min(max(a * b + c, 0), 1),
    "hfma_relu": lambda a, b, c: max(a * b + c, 0),
}
