"""A `cuda` for the CPU: what a kernel finds under that name when it runs without a GPU."""

import math
from types import SimpleNamespace

import numpy as np

from .. import libdevice
from ..architectures import FULL_WARP
from ..faults import Unsupported
from . import dialects
from .checked_array import GuardedArray, poisoned
from .half import BrainFloat, HalfPrecision, bfloat16


class PretendCuda:
    """The part of `numba.cuda` a kernel uses; the rest comes from the real module, if it can."""

    warpsize = FULL_WARP

    def __init__(self, machine):
        self._machine = machine
        self.threadIdx, self.blockIdx = machine.thread_index, machine.block_index
        self.blockDim, self.gridDim = machine.block_dim, machine.grid_dim
        self.shared = SimpleNamespace(array=machine.shared_array)
        self.local = SimpleNamespace(array=machine.local_array)
        self.const = SimpleNamespace(array_like=machine.const_array)
        self.atomic = Atomic()
        self.libdevice = PretendMath(machine)
        self.cg = Groups(machine)
        self.fp16, self.bf16 = HalfPrecision(), BrainFloat()
        for scope in ("threadfence", "threadfence_block", "threadfence_system"):
            setattr(self, scope, machine.fence)

    @property
    def laneid(self):
        return self._machine.lane

    def grid(self, ndim):
        return _axes(
            ndim,
            [
                getattr(self.blockIdx, axis) * getattr(self.blockDim, axis)
                + getattr(self.threadIdx, axis)
                for axis in "xyz"
            ],
        )

    def gridsize(self, ndim):
        sizes = [getattr(self.gridDim, axis) * getattr(self.blockDim, axis) for axis in "xyz"]
        return _axes(ndim, sizes)

    # Barriers of the block: every thread waits for every other.
    def syncthreads(self):
        self._machine.wait("block", lambda values: None)

    def syncthreads_count(self, predicate):
        return self._machine.wait("block", lambda values: sum(map(bool, values)), predicate)

    def syncthreads_and(self, predicate):
        return self._machine.wait("block", lambda values: int(all(values)), predicate)

    def syncthreads_or(self, predicate):
        return self._machine.wait("block", lambda values: int(any(values)), predicate)

    # Warp operations: the lanes in `mask` meet; each gets a value from all of theirs.
    def syncwarp(self, mask=0xFFFFFFFF):
        self._meet(mask, None, lambda lane, values: None)

    def shfl_sync(self, mask, value, source):
        return self._meet(mask, value, lambda lane, values: values.get(source % 32, value))

    def shfl_up_sync(self, mask, value, delta):
        return self._meet(mask, value, lambda lane, values: values.get(lane - delta, value))

    def shfl_down_sync(self, mask, value, delta):
        return self._meet(mask, value, lambda lane, values: values.get(lane + delta, value))

    def shfl_xor_sync(self, mask, value, lanemask):
        return self._meet(mask, value, lambda lane, values: values.get(lane ^ lanemask, value))

    def all_sync(self, mask, predicate):
        return self._meet(mask, predicate, lambda lane, values: all(values.values()))

    def any_sync(self, mask, predicate):
        return self._meet(mask, predicate, lambda lane, values: any(values.values()))

    def eq_sync(self, mask, predicate):
        equal = self._meet(
            mask, bool(predicate), lambda lane, values: len(set(values.values())) == 1
        )
        return equal

    def ballot_sync(self, mask, predicate):
        return self._meet(
            mask, predicate, lambda lane, values: sum(1 << n for n, p in values.items() if p)
        )

    def match_any_sync(self, mask, value):
        return self._meet(
            mask, value, lambda lane, values: sum(1 << n for n, v in values.items() if v == value)
        )

    def _meet(self, mask, value, answer):
        return self._machine.wait("warp", answer, value, mask)

    # Arithmetic.
    @staticmethod
    def fma(a, b, c):
        """a·b + c rounded once; the product of two float32 is exact in float64."""
        kind = np.result_type(*(x for x in (a, b, c) if hasattr(x, "dtype")), np.float16)
        return kind.type(np.float64(a) * np.float64(b) + np.float64(c))

    @staticmethod
    def selp(condition, a, b):
        return a if condition else b

    @staticmethod
    def popc(x):
        return int(x).bit_count()

    @staticmethod
    def cbrt(x):
        return np.cbrt(x)

    # Bits.
    @staticmethod
    def brev(x):
        bits = 64 if getattr(x, "itemsize", 4) == 8 or int(x) >> 32 not in (0, -1) else 32
        return int(f"{int(x) & ((1 << bits) - 1):0{bits}b}"[::-1], 2)

    @staticmethod
    def clz(x):
        bits = 64 if getattr(x, "itemsize", 4) == 8 or int(x) >> 32 not in (0, -1) else 32
        return bits - (int(x) & ((1 << bits) - 1)).bit_length()

    @staticmethod
    def ffs(x):
        return (int(x) & -int(x)).bit_length()

    # Warps.
    def activemask(self):
        """Of lanes that have not returned: the simulator cannot say which others are here."""
        return self._machine.living_lanes()

    def lanemask_lt(self):
        return (1 << self._machine.lane) - 1

    def match_all_sync(self, mask, value):
        def answer(lane, values):
            equal = len(set(values.values())) == 1
            return (mask if equal else 0), equal

        return self._meet(mask, value, answer)

    def nanosleep(self, ns):
        """Time does not pass here."""

    # Hints to the caches, which are not simulated.
    @staticmethod
    def ldca(array, i):
        return array[i]

    ldcg = ldcs = ldlu = ldcv = ldca

    @staticmethod
    def stcg(array, i, value):
        array[i] = value

    stcs = stwb = stwt = stcg

    def __getattr__(self, name):
        value = getattr(dialects.cuda(), name)
        kinds = {base.__name__ for base in getattr(value, "__mro__", ())}
        if ("Stub" in kinds and not dialects.vector_type(value)) or name in NOT_HERE:
            raise Unsupported(f"cuda.{name} is not simulated")
        return self._machine.rebuilder.value(value)


NOT_HERE = ("inline_ptx", "carray", "farray", "tensor_map")


def _axes(ndim, values):
    if ndim not in (1, 2, 3):
        raise ValueError(f"ndim is {ndim!r}; it must be 1, 2 or 3")
    return values[0] if ndim == 1 else tuple(values[:ndim])


class Groups:
    """`cuda.cg`, of which the grid is simulated."""

    def __init__(self, machine):
        self.this_grid = lambda: Grid(machine)

    def __getattr__(self, name):
        raise Unsupported(
            f"cuda.cg.{name} is not simulated: the grid is the only cooperative group here"
        )


class Grid:
    """`cg.this_grid()`: the blocks of a cooperative launch."""

    def __init__(self, machine):
        self._machine = machine

    def sync(self):
        self._machine.wait("grid", lambda values: 0)


class Atomic:
    """`cuda.atomic`: nothing else runs between the read and the write of one of these."""

    @staticmethod
    def _update(array, index, change):
        if not isinstance(array, GuardedArray):
            raise TypeError("an atomic needs an array as its first argument")
        array.machine.unlocked(array, index)
        return array.update(index, change)

    def add(self, array, index, value):
        return self._update(array, index, lambda old: old + value)

    def sub(self, array, index, value):
        return self._update(array, index, lambda old: old - value)

    def max(self, array, index, value):
        return self._update(array, index, lambda old: max(old, value))

    def min(self, array, index, value):
        return self._update(array, index, lambda old: min(old, value))

    def nanmax(self, array, index, value):
        return self._update(array, index, lambda old: np.fmax(old, value))

    def nanmin(self, array, index, value):
        return self._update(array, index, lambda old: np.fmin(old, value))

    def exch(self, array, index, value):
        return self._update(array, index, lambda old: value)

    def and_(self, array, index, value):
        return self._update(array, index, lambda old: old & value)

    def or_(self, array, index, value):
        return self._update(array, index, lambda old: old | value)

    def xor(self, array, index, value):
        return self._update(array, index, lambda old: old ^ value)

    def inc(self, array, index, value):
        return self._update(array, index, lambda old: 0 if old >= value else old + 1)

    def dec(self, array, index, value):
        return self._update(array, index, lambda old: value if old == 0 or old > value else old - 1)

    def cas(self, array, index, old, value):
        before = self._update(array, index, lambda now: value if now == old else now)
        if before == old != value:
            array.machine.locked(array, index)
        return before

    def compare_and_swap(self, array, old, value):
        return self.cas(array, 0, old, value)


class PretendMath:
    """`math` and `libdevice` with the rounding of a GPU: float32 in, float32 out; no exceptions."""

    _NUMPY = {"pow": "power", "fabs": "abs", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
    _NUMPY |= {"atan2": "arctan2", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
    _NUMPY |= {"fmod": "fmod", "copysign": "copysign", "hypot": "hypot", "ldexp": "ldexp"}
    _NUMPY |= {name: name for name in "exp exp2 expm1 log log1p log2 log10 sqrt cbrt".split()}
    _NUMPY |= {name: name for name in "sin cos tan sinh cosh tanh fmax fmin".split()}

    _EXPONENTIALS = frozenset("exp exp2 exp10 expm1 pow".split())

    def __init__(self, machine):
        self._machine = machine

    def __getattr__(self, name):
        if name not in vars(math) and name in dialects.libdevice_functions():
            return self._of_libdevice(name)
        plain = name.removeprefix("fast_")
        if not hasattr(math, plain) and plain.endswith("f"):  # libdevice.expf, fast_expf
            plain = plain.removesuffix("f")
        function = self._function(plain)
        if plain in self._EXPONENTIALS:
            function = self._counted(function)
        setattr(self, name, function)
        return function

    def _of_libdevice(self, name):
        """A function of libdevice, its arguments and its result of the types that it has."""
        function = libdevice.function(name)
        result, parameters = dialects.libdevice_functions()[name]
        kinds = [np.dtype(str(p.ty)).type for p in parameters if not p.is_ptr]

        def typed(*args):
            with np.errstate(over="ignore"):
                value = function(*(np.array(x).astype(k) for k, x in zip(kinds, args, strict=True)))
            if isinstance(value, tuple):
                return tuple(
                    kinds[0](x) if np.asarray(x).dtype.kind == "f" else int(x) for x in value
                )
            value = np.asarray(value).astype(str(result))
            return int(value) if value.dtype.kind in "iu" else value[()]

        if "exp" in name and "frexp" not in name:
            typed = self._counted(typed)
        setattr(self, name, typed)
        return typed

    def _counted(self, function):
        def counted(*args):
            self._machine.exponentials += 1
            return function(*args)

        return counted

    def _function(self, plain):
        if plain == "rsqrt":
            return lambda x: 1 / np.sqrt(x)
        if plain == "exp10":
            return lambda x: np.power(type(x)(10), x)
        if plain == "fma":
            return PretendCuda.fma
        if plain in self._NUMPY:
            return getattr(np, self._NUMPY[plain])
        exact = getattr(math, plain)
        if not callable(exact) or plain in ("floor", "ceil", "trunc"):
            return exact

        def rounded(*args):
            result = exact(*args)
            single = type(result) is float and any(type(x) is np.float32 for x in args)
            return np.float32(result) if single else result

        return rounded


class PretendInteger:
    """An integer type as kernels see it: a cast keeps its low bits, sums of it have 64 bits."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)

    def __call__(self, value=0):
        low = int(value) & ((1 << 8 * self.dtype.itemsize) - 1)
        return int(np.array(low, f"u{self.dtype.itemsize}").view(self.dtype))


def dtype_of(dtype):
    """A numpy dtype from a numba type or anything numpy takes."""
    if isinstance(dtype, PretendInteger):
        return dtype.dtype
    if str(dtype) in ("bfloat16", "__nv_bfloat16"):
        return np.dtype(bfloat16())
    if type(dtype).__name__ == "Record":  # of numba
        return dtype.dtype
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype).replace("boolean", "bool"))


def fresh(shape, dtype):
    return poisoned(shape, dtype_of(dtype))
