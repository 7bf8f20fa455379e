"""A kernel with its surroundings exchanged: the same bytecode, other globals.

A traced run exchanges `while` loops, too.

A name in a kernel means what its module says. The CPU run keeps the bytecode and gives it a copy of
the globals in which `cuda` is the pretend one, constants are replaced, and device functions and
intrinsics have become Python functions.
"""

import math
import types

import numpy as np

from ..compiled.functions import Rebinder, codes_in, plain
from . import dialects
from .fake_cuda import PretendInteger
from .vectors import vector_class
from .while_loops import TURNS, with_turns


class Rebuilder:
    """Makes CPU forms of functions; each function once, so that recursion and sharing work."""

    def __init__(self, cuda, constants=None, wrap_twin=lambda twin: twin, extra_globals=()):
        self.cuda, self.constants = cuda, dict(constants or {})
        self.wrap_twin = wrap_twin
        added = dict(extra_globals)
        self.numbers_turns = TURNS in added
        self.function = Rebinder(self.named, self._code_of, {"round": rounded, **added})
        self.codes, self.replaced = set(), set()
        self.replacements = {}  # by id: a global, and what replaces it
        self.aliases = _aliases(cuda)

    def kernel(self, kernel):
        """The CPU form of `kernel`; ValueError when a constant's name occurs nowhere in it."""
        function = self.function(plain(kernel))
        for name in self.constants.keys() - self.replaced:
            raise ValueError(f"constants has {name!r}, which {function.__name__} does not use")
        return function

    def names(self):
        """Every name that the kernel and its device functions use."""
        return frozenset(name for code in self.codes for name in code.co_names)

    def _code_of(self, function):
        code = with_turns(function) if self.numbers_turns else function.__code__
        self.codes.update(codes_in(code))
        return code

    def named(self, name, value):
        if name in self.constants:
            self.replaced.add(name)
            return self.constants[name]
        return self.value(value)

    def value(self, value):
        """What replaces one global; a kernel asks again and again for those of a module."""
        if type(value) in NUMBERS:
            return value
        replaced = self.replacements.get(id(value))
        if replaced is None or replaced[0] is not value:
            replaced = self.replacements[id(value)] = value, self._value(value)
        return replaced[1]

    def _value(self, value):
        if isinstance(value, types.ModuleType):
            if dialects.is_cuda(value):
                return self.cuda
            part = value.__name__.rpartition("cuda.")[2]
            if part in PARTS and value.__name__.startswith(("numba.", "numba_cuda_mlir.")):
                return getattr(self.cuda, part)
            if value is math or value.__name__.endswith("libdevice"):
                return self.cuda.libdevice
            return PretendModule(value, self)
        if getattr(value, "__module__", None) == "math" or _of_libdevice(value):
            return getattr(self.cuda.libdevice, value.__name__)
        if any(value is function for function in EXPONENTIALS):
            return getattr(self.cuda.libdevice, value.__name__)
        for part in PARTS:
            if dialects.is_part(value, part) and hasattr(value, "__name__"):
                return getattr(getattr(self.cuda, part), value.__name__)
        if type(value).__name__ == "Bfloat16" and hasattr(value, "bitwidth"):
            return self.cuda.bf16.bfloat16
        if dialects.is_part(value, "_internal.cuda_bf16"):
            return getattr(self.cuda.bf16, value.__name__)
        if vector := dialects.vector_type(value):
            return vector_class(*vector)
        if integer := _integer_type(value):
            return PretendInteger(integer)
        twin = getattr(value, "in_python", None)
        if twin is not None:
            return self.wrap_twin(twin)
        if id(value) in self.aliases:
            return self.aliases[id(value)]
        if hasattr(value, "py_func") or isinstance(value, types.FunctionType):
            function = plain(value)
            if function.__name__ == "xoroshiro128p_next" and dialects.is_part(function, "random"):
                return next_random
            return self.function(function)
        return value


class PretendModule:
    """A module of which a kernel gets the CPU forms: `numba.cuda.grid`, `launch.load4`."""

    def __init__(self, module, rebuilder):
        self._module, self._rebuilder = module, rebuilder

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if self._module is np and isinstance(value, types.FunctionType):
            return value
        return self._rebuilder.named(name, value)


def rounded(x, digits=None):
    """Python's `round`: numpy's own rounds a float32 twice."""
    if not isinstance(x, np.floating):
        return round(x, digits) if digits is not None else round(x)
    value = round(float(x), digits) if digits is not None else round(float(x))
    return value if digits is None else type(x)(value)


NUMBERS = (int, float, bool, np.float64, np.float32)
PARTS = (
    "atomic",
    "bf16",
    "cg",
    "const",
    "fp16",
    "local",
    "shared",
)  # modules whose names a kernel uses
LOW_64 = 2**64 - 1


def next_random(states, index):
    """numba's `xoroshiro128p_next` in Python's integers, which have no 64th bit to lose."""
    s0, s1 = states[index]["s0"], states[index]["s1"]
    mixed = s0 ^ s1
    states[index]["s0"] = _rotated(s0, 55) ^ mixed ^ (mixed << 14 & LOW_64)
    states[index]["s1"] = _rotated(mixed, 36)
    return s0 + s1 & LOW_64


def _rotated(x, bits):
    return (x << bits | x >> 64 - bits) & LOW_64


EXPONENTIALS = (np.exp, np.exp2, np.expm1)


def _of_libdevice(value):
    return str(getattr(value, "__module__", "")).endswith("libdevice") and callable(value)


def _integer_type(value):
    """The numpy name of `numba.int32`, `np.uint8` and the like; None of anything else."""
    if isinstance(value, type) and issubclass(value, np.integer) and value is not np.timedelta64:
        return value.__name__
    if type(value).__name__ == "Integer" and type(value).__module__.endswith("types.scalars"):
        return value.name
    return None


def _aliases(pretend):
    """What `from numba.cuda import threadIdx` bound, by identity: it bypasses `cuda`."""
    names = [name for name in [*vars(pretend), *dir(type(pretend))] if not name.startswith("_")]
    real = [(module, n) for module in dialects.imported() for n in names if n != "laneid"]
    aliases = {id(getattr(module, n, None)): getattr(pretend, n) for module, n in real}
    return {key: value for key, value in aliases.items() if key != id(None)}
