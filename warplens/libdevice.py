"""libdevice on a CPU: the functions that numba and Triton have of NVIDIA's library, over numpy.

`function("expf")` takes numbers or arrays of the types that the GPU's function takes, and leaves
rounding to them. What has no form here says so by its name.
"""

import math
import re

import numpy as np


class NotSimulated(NotImplementedError):
    """A kernel uses something that a GPU has and the simulators have not; the message says what."""


CONVERSION = re.compile("(?:float|double|u?int|u?ll)2(?:float|double|u?int|u?ll)_r(.)")


def function(name):
    """The CPU form of libdevice's `name`, without its "__nv_".

    Raises:
        NotSimulated: there is none.
    """
    if name in EXACT_NAMES:
        return EXACT_NAMES[name]
    if conversion := CONVERSION.fullmatch(name):
        return _converted(name, conversion[1])
    if nearest := re.fullmatch(r"[fd]?(add|sub|mul|div|rcp|sqrt|rsqrt|fmaf?)_rn", name):
        return ROUNDED[nearest[1]]
    stem = name.removeprefix("fast_")
    for candidate in (stem, *(stem.removesuffix(end) for end in ("f", "d", "ll"))):
        if candidate in BY_STEM:
            return BY_STEM[candidate]
    raise NotSimulated(f"libdevice's {name} is not simulated: compute it from functions that are")


def _converted(name, mode):
    """Integers from floating-point numbers, rounded as the name says; the rest is a cast."""
    toward = {"n": np.rint, "z": np.trunc, "d": np.floor, "u": np.ceil}
    if name.startswith(("float", "double")) and "2float" not in name:
        return toward[mode]
    if mode == "n":
        return lambda x: x
    raise NotSimulated(f"libdevice's {name} is not simulated: use the one that ends in _rn")


def _fma(x, y, z):
    """One rounding: the product of two float32 is exact in float64, that of two float64 is not."""
    kind = np.result_type(x, y, z)
    exact = np.float64 if kind.itemsize < 8 else np.longdouble
    return (exact(x) * exact(y) + exact(z)).astype(kind)


def _each(scalar):
    """A function of Python's numbers over numpy's, of the type that they have."""

    def over(*args):
        results = np.frompyfunc(lambda *x: _number(scalar, x), len(args), 1)(*args)
        return np.asarray(results, np.float64).astype(np.result_type(*args))

    return over


def _number(scalar, args):
    try:
        return scalar(*(float(x) for x in args))
    except (ValueError, OverflowError):  # a GPU has no exceptions
        return math.nan if any(map(math.isnan, args)) or args[0] < 0 else math.inf


def _of_torch(name):
    def over(x):
        import torch

        special = getattr(torch.special, name)
        return (
            special(torch.from_numpy(np.array(x, np.float64))).numpy().astype(np.asarray(x).dtype)
        )

    return over


_erfc, _ndtri = _each(math.erfc), _of_torch("ndtri")


def _away_from_zero(x):
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


def _bits(x):
    """The bits of an integer, as one without sign, and how many they are."""
    x = np.asarray(x)
    return x.view(f"u{x.itemsize}").astype(np.uint64), 8 * x.itemsize


def _leading_zeros(x):
    value, bits = _bits(x)
    return np.asarray(np.frompyfunc(lambda v: bits - int(v).bit_length(), 1, 1)(value), np.int32)


def _first_set(x):
    value, _ = _bits(x)
    first = np.frompyfunc(lambda v: (int(v) & -int(v)).bit_length(), 1, 1)
    return np.asarray(first(value), np.int32)


def _reversed_bits(x):
    value, bits = _bits(x)
    turned = np.frompyfunc(lambda v: int(f"{int(v):0{bits}b}"[::-1], 2), 1, 1)(value)
    return np.asarray(turned, np.uint64).astype(f"u{bits // 8}").view(np.asarray(x).dtype)


def _set_bits(x):
    value, _ = _bits(x)
    return np.asarray(np.frompyfunc(lambda v: int(v).bit_count(), 1, 1)(value), np.int32)


def _high_half(x, y):
    x, y = np.asarray(x), np.asarray(y)
    high = np.frompyfunc(lambda a, b: (int(a) * int(b)) >> 8 * x.itemsize, 2, 1)(x, y)
    return np.asarray(high, x.dtype)


def _average(round_up):
    def average(x, y):
        x = np.asarray(x)
        return ((x.astype(np.int64) + np.asarray(y).astype(np.int64) + round_up) >> 1).astype(
            x.dtype
        )

    return average


def _low_24(x, y):
    low = [np.left_shift(np.asarray(n), 8) >> 8 for n in (x, y)]
    return low[0] * low[1]


def _same_bits(kind):
    return lambda x: np.asarray(x).view(kind)


ROUNDED = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "fma": _fma,
    "fmaf": _fma,
}

EXACT_NAMES = {
    "float_as_int": _same_bits(np.int32),
    "float_as_uint": _same_bits(np.uint32),
    "int_as_float": _same_bits(np.float32),
    "uint_as_float": _same_bits(np.float32),
    "double_as_longlong": _same_bits(np.int64),
    "longlong_as_double": _same_bits(np.float64),
    "float2half_rn": lambda x: np.asarray(x, np.float16).view(np.int16),
    "half2float": lambda x: np.asarray(x).view(np.float16).astype(np.float32),
    "hadd": _average(0),
    "uhadd": _average(0),
    "rhadd": _average(1),
    "urhadd": _average(1),
}

# By the name that a function has for float64, or for 32-bit integers.
SAME_NAME = """
    exp exp2 expm1 log log1p log2 log10 sqrt cbrt sin cos tan sinh cosh tanh floor ceil trunc rint
    fmax fmin fmod copysign hypot ldexp nextafter signbit isnan isinf isfinite
"""
ARCS = "asin acos atan asinh acosh atanh"
BY_STEM = {name: getattr(np, name) for name in SAME_NAME.split()}
BY_STEM |= {name: getattr(np, "arc" + name[1:]) for name in ARCS.split()}
BY_STEM |= {name: np.abs for name in ("abs", "fabs", "llabs")}
BY_STEM |= {name: np.maximum for name in ("max", "umax", "llmax", "ullmax")}
BY_STEM |= {name: np.minimum for name in ("min", "umin", "llmin", "ullmin")}
BY_STEM |= {name: _high_half for name in ("mulhi", "umulhi", "mul64hi", "umul64hi")}
BY_STEM |= {name: _of_torch(f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")}
BY_STEM |= {
    "atan2": np.arctan2,
    "pow": np.power,
    "powi": np.power,
    "scalbn": np.ldexp,
    "nearbyint": np.rint,
    "llrint": np.rint,
    "round": _away_from_zero,
    "llround": _away_from_zero,
    "remainder": _each(math.remainder),
    "finite": np.isfinite,
    "fma": _fma,
    "fdim": lambda x, y: np.where(x > y, x - y, x * 0 + y * 0),
    "fdivide": np.divide,
    "saturate": lambda x: np.fmin(np.fmax(x, x * 0), x * 0 + 1),
    "exp10": lambda x: np.power(np.asarray(x).dtype.type(10), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "sincos": lambda x: (np.sin(x), np.cos(x)),
    "sincospi": lambda x: (np.sin(np.pi * np.fmod(x, 2)), np.cos(np.pi * np.fmod(x, 2))),
    "frexp": np.frexp,
    "modf": np.modf,
    "logb": lambda x: np.frexp(x)[1] - 1,
    "ilogb": lambda x: np.frexp(x)[1] - 1,
    "erf": _each(math.erf),
    "erfc": _erfc,
    "erfcx": _of_torch("erfcx"),
    "tgamma": _each(math.gamma),
    "lgamma": _each(math.lgamma),
    "normcdf": lambda x: _erfc(-x * math.sqrt(0.5)) / 2,
    "normcdfinv": _ndtri,
    "erfinv": lambda x: _ndtri((x + 1) / 2) * math.sqrt(0.5),
    "erfcinv": lambda x: -_ndtri(x / 2) * math.sqrt(0.5),
    "cyl_bessel_i0": _of_torch("i0"),
    "cyl_bessel_i1": _of_torch("i1"),
    "norm3d": lambda x, y, z: np.sqrt(x * x + y * y + z * z),
    "rnorm3d": lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "clz": _leading_zeros,
    "ffs": _first_set,
    "popc": _set_bits,
    "brev": _reversed_bits,
    "mul24": _low_24,
    "umul24": _low_24,
    "sad": lambda x, y, z: np.abs(x - y) + z,
    "usad": lambda x, y, z: np.where(x > y, x - y, y - x) + z,
}
