"""The packages that a kernel's `cuda` comes from: numba-cuda, or its successor numba-cuda-mlir.

They share their names, and neither needs the other. What belongs to a kernel is told by its name
and its module's, so that nothing is imported that the program has not got.
"""

import functools
import importlib
import re
import sys

MODULES = ("numba.cuda", "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda")
PARTS = ("", ".stubs", ".simulator")  # where the names of a `cuda` module are defined


def imported():
    """The `cuda` modules that the program has imported."""
    return [sys.modules[name] for name in MODULES if name in sys.modules]


def cuda():
    """The `cuda` module that the program uses."""
    for name in MODULES:
        if name in sys.modules:
            return sys.modules[name]
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    message = "numba is not installed: pip install 'warplens[numba]'"
    raise ModuleNotFoundError(message, name="numba")


def submodule(name):
    """A module beside the program's `cuda`, say its `libdevicefuncs`."""
    where = cuda().__name__
    for parent in dict.fromkeys([where, *(module.__name__ for module in imported())]):
        try:
            return importlib.import_module(f"{parent}.{name}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"{where} has no {name}", name=f"{where}.{name}")


def is_cuda(module):
    return module.__name__ in MODULES


def is_part(value, part):
    """Whether `value` was defined in the module `part` of a `cuda`, say in its `cg`."""
    where = str(getattr(value, "__module__", ""))
    return where.endswith(f"cuda.{part}") and where.startswith(("numba.", "numba_cuda_mlir."))


@functools.cache
def libdevice_functions():
    """Result and parameters of every function of libdevice."""
    functions = submodule("libdevicefuncs").functions
    return {name.removeprefix("__nv_"): kind for name, kind in functions.items()}


VECTOR = re.compile(r"(u?int|float)(8|16|32|64)x([1-4])")


def vector_type(value):
    """("float32", 4) of `cuda.float32x4`; None of anything else."""
    if not is_part(value, "stubs") and type(value).__name__ != "VectorType":
        return None
    match = VECTOR.fullmatch(getattr(value, "__name__", None) or str(value))
    return (match[1] + match[2], int(match[3])) if match else None
