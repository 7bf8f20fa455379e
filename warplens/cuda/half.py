"""`cuda.fp16`: arithmetic of half precision, each result rounded to it once."""

import numpy as np


class HalfPrecision:
    """The functions of `cuda.fp16` by their names there; computed in float64, then rounded."""

    def __getattr__(self, name):
        function = FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(f"cuda.fp16 has no {name!r}")

        def rounded(*args):
            with np.errstate(all="ignore"):
                return np.float16(function(*map(np.float64, args)))

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
