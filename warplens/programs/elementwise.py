"""`@vectorize(target="cuda")` and `cuda.reduce`, element by element."""

import functools

import numpy as np

from ..cuda import dialects
from . import arrays
from .launches import jit


class CudaUfunc:
    """A function of numbers, over arrays that are broadcast against each other."""

    def __init__(self, function, signatures):
        self.py_func, self.signatures = function, signatures
        functools.update_wrapper(self, function)
        self.nin = function.__code__.co_argcount
        self.kernel = None

    def __call__(self, *args, out=None, stream=0):
        if len(args) != self.nin:
            raise TypeError(f"{self.__name__} takes {self.nin} arguments, got {len(args)}")
        on_gpu = any(isinstance(x, arrays.DeviceArray) for x in (*args, out))
        plain = [x.data if isinstance(x, arrays.DeviceArray) else np.asarray(x) for x in args]
        result, kinds = self._types([x.dtype for x in plain])
        plain = [x.astype(kind) for x, kind in zip(plain, kinds, strict=True)]
        shaped = np.broadcast_arrays(*plain)
        values = np.empty(shaped[0].shape, result)
        if values.size:
            flat = [np.ascontiguousarray(x).reshape(-1) for x in shaped]
            self._launch(flat, values.reshape(-1))
        if out is not None:
            (out.data if isinstance(out, arrays.DeviceArray) else out)[...] = values
            return out
        return arrays.DeviceArray(values) if on_gpu else values[()]

    def _launch(self, flat, out):
        if self.kernel is None:
            names = [f"a{n}" for n in range(self.nin)]
            text = (
                f"def {self.__name__}(out, {', '.join(names)}):\n"
                "    i = cuda.grid(1)\n    if i < out.size:\n"
                f"        out[i] = function({', '.join(f'{n}[i]' for n in names)})\n"
            )
            scope = {"cuda": dialects.cuda(), "function": self.py_func}
            exec(compile(text, f"<vectorized {self.__name__}>", "exec"), scope)
            self.kernel = jit(scope[self.__name__])
        self.kernel[-(-out.size // 256), 256](out, *flat)

    def _types(self, dtypes):
        """Of the result, and of the arguments: the first signature that loses nothing."""
        for result, kinds in self.signatures:
            if all(np.can_cast(a, b, "safe") for a, b in zip(dtypes, kinds, strict=True)):
                return result, kinds
        for result, kinds in self.signatures:
            if all(np.can_cast(a, b, "same_kind") for a, b in zip(dtypes, kinds, strict=True)):
                return result, kinds
        if self.signatures:
            raise TypeError(f"no matching signature of {self.__name__} for {dtypes}")
        result = np.asarray(self.py_func(*(kind.type(1) for kind in dtypes))).dtype
        return result, dtypes


def vectorize(own, default="cpu"):
    """numba's `vectorize`, of which target="cuda" is simulated."""

    def vectorize(ftylist_or_function=(), **options):
        if options.get("target", default) != "cuda":
            return own(ftylist_or_function, **options)
        if callable(ftylist_or_function):
            return CudaUfunc(ftylist_or_function, [])
        signatures = ftylist_or_function
        signatures = [signatures] if isinstance(signatures, str) else list(signatures)
        return lambda function: CudaUfunc(function, [_signature(x) for x in signatures])

    return vectorize


def _signature(text):
    arguments, result = dialects.submodule("core.sigutils").normalize_signature(text)
    return np.dtype(str(result)), [np.dtype(str(kind)) for kind in arguments]


class Reduce:
    """`cuda.reduce`: a function of two numbers folded over an array."""

    def __init__(self, functor):
        self.functor = functor
        functools.update_wrapper(self, functor)

    def __call__(self, arr, size=None, res=None, init=0, stream=0):
        if arr.ndim != 1:
            raise TypeError("only support 1D array")
        data = arr.data if isinstance(arr, arrays.DeviceArray) else arr
        size = len(data) if size is None else size
        if not 0 <= size <= len(data):
            raise ValueError(f"size is {size}: the array has {len(data)} elements")
        function = getattr(self.functor, "py_func", self.functor)
        value = functools.reduce(function, data[:size], data.dtype.type(init))
        if res is None:
            return value
        (res.data if isinstance(res, arrays.DeviceArray) else res)[:1] = value
        return None
