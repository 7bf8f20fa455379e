"""Finds a launch to trace: the first one that somebody's file makes, or one given as text.

The file runs as `python file.py` would, but where it launches a kernel, the launch is looked at.
Without a GPU the launches before it run in the simulators, so that the file meets the numbers that
it expects, and what numba copies to the GPU stays where it is.
"""

import argparse
import contextlib
import inspect
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from .kernels import machine_code, trace
from .machine_code.assembly import available
from .machine_code.cubin import CompileError, plain
from .simulator.cuda.run import run as run_cuda
from .simulator.faults import KernelFault
from .simulator.triton.run import run as run_triton


@dataclass
class Launch:
    """`kernel[grid](*args, **named)`; of numba, `args` begins with the block."""

    kernel: object
    grid: object
    args: tuple
    named: dict

    def trace(self, **options):
        return trace(self.kernel, self.grid, *self.args, **self.named, **options)

    def machine_code(self, arch):
        numba = hasattr(self.kernel, "py_func")
        named = {} if numba else self.named
        return machine_code(self.kernel, *self.args[numba:], arch=arch, **named)


HOW = "give a launch after the name, as in '[4, 256](rand(1024), zeros(1024))'"


class _Found(BaseException):
    """Ends the file that runs: its launch is known."""


def launch_of(file, name, text=None):
    """The launch of the kernel `name` in `file`.

    Args:
        file: a path.
        name: of a kernel, as the file has it.
        text: the launch as one writes it after the kernel, "[4, 256](rand(1024), zeros(1024))".
            It may use the names of the file, of numpy as np, and torch's own (zeros, rand, …).
            Without it, the file runs, and its first launch of the kernel is taken.

    Raises:
        LookupError: the file has no such kernel, or does not launch it.
    """
    if text is not None:
        with _watched(lambda kernel, grid, args, named, go: go()):
            known = vars(_executed(file, Path(file).stem))
        return _as_text(_kernel(known, name, file), text, known)
    found = []

    def launched(kernel, grid, args, named, go):
        if plain(kernel).__name__ == name:
            found.append(Launch(kernel, grid, args, named))
            raise _Found
        return go()

    try:
        with _watched(launched):
            module = _executed(file, "__main__")
    except _Found:
        return found[0]
    except Exception as error:
        what = f"{file} stops before it launches {name}, {type(error).__name__}: {error}"
        raise LookupError(f"{what}\n{HOW}") from error
    _kernel(vars(module), name, file)
    raise LookupError(f"{file} does not launch {name}\n{HOW}")


def _executed(file, name):
    """The file as a module, run; it finds its neighbours as a script does."""
    path = Path(file).resolve()
    module = types.ModuleType(name)
    module.__file__ = str(path)
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    with patch.object(sys, "path", [str(path.parent), *sys.path]):
        with patch.object(sys, "argv", [str(path)]):
            exec(code, vars(module))
    return module


def _kernel(known, name, file):
    kernels = [n for n, x in known.items() if hasattr(x, "py_func") or hasattr(x, "arg_names")]
    if name in kernels:
        return known[name]
    raise LookupError(f"{file} has no kernel {name!r}; it has {', '.join(kernels) or 'none'}")


def _as_text(kernel, text, known):
    import torch

    class Launcher:
        def __getitem__(self, sizes):
            def launch(*args, **named):
                grid, first = sizes, ()
                if hasattr(kernel, "py_func"):
                    grid, block, *rest = sizes
                    first = (block,)
                    if rest[1:]:  # grid, block, stream, sharedmem
                        named["sharedmem"] = rest[1]
                return Launch(kernel, grid, (*first, *args), named)

            return launch

    names = vars(torch) | {"np": np, "torch": torch} | known | {"kernel": Launcher()}
    try:
        launch = eval(f"kernel{text}", names)
    except Exception as error:
        raise ValueError(f"the launch {text!r}: {type(error).__name__}: {error}") from error
    if not isinstance(launch, Launch):
        raise ValueError(f"the launch is {text!r}, needs to be like '[4, 256](rand(1024))'")
    return launch


@contextlib.contextmanager
def _watched(launched):
    """While it lasts, every launch is `launched(kernel, grid, args, named, go)`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Grid size .* will likely")  # numba: a small grid
        _watch_numba(stack, launched)
        _watch_triton(stack, launched)
        yield


def _watch_numba(stack, launched):
    try:
        from numba import cuda
        from numba.cuda.dispatcher import _LaunchConfiguration
    except ImportError:
        return
    own = _LaunchConfiguration.__call__
    on_gpu = cuda.is_available()

    def call(self, *args):
        kernel, named = self.dispatcher, {"sharedmem": self.sharedmem} if self.sharedmem else {}

        def go():
            if on_gpu:
                return own(self, *args)
            return run_cuda(kernel, self.griddim, self.blockdim, *args, **named)

        return launched(kernel, self.griddim, (self.blockdim, *args), named, go)

    stack.enter_context(patch.object(_LaunchConfiguration, "__call__", call))
    if not on_gpu:
        for name, stands in IN_PLACE.items():
            stack.enter_context(patch.object(cuda, name, stands))


class _Here(np.ndarray):
    """Stands for an array of numba on a GPU."""

    def copy_to_host(self, array=None):
        if array is None:
            return np.array(self)
        array[...] = self
        return array

    def copy_to_device(self, array):
        self[...] = array


def _to_device(array, stream=0, copy=True, to=None):
    if to is None:
        return np.array(array).view(_Here)
    to[...] = array
    return to


def _device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    array = np.full(shape, 0, dtype, order)
    array.view(np.uint8).fill(0xFF)  # NaN: a GPU's fresh memory holds anything
    return array.view(_Here)


IN_PLACE = {
    "to_device": _to_device,
    "device_array": _device_array,
    "device_array_like": lambda array, stream=0: _device_array(array.shape, array.dtype),
    "synchronize": lambda: None,
}


def _watch_triton(stack, launched):
    try:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    for kind in (JITFunction, InterpretedFunction):
        stack.enter_context(patch.object(kind, "run", _triton_run(kind.run, launched)))


def _triton_run(own, launched):
    def run(self, *args, grid, warmup, **named):
        def go():
            if any(getattr(x, "is_cuda", False) for x in args):
                return own(self, *args, grid=grid, warmup=warmup, **named)
            if "gluon" in type(self).__module__:
                return _run_gluon(self, grid, *args, **named)
            return run_triton(self, grid, *args, **named)

        return launched(self, grid, args, named, go)

    return run


def _run_gluon(kernel, grid, *args, num_warps=4, **named):
    from .simulator.gluon import watch

    names = inspect.signature(plain(kernel)).parameters
    seen = watch(kernel, grid, dict(zip(names, args, strict=False)) | named, num_warps)
    if seen.faults:
        raise seen.faults[0]


def main(argv=None):
    """Traces a launch and prints it. Returns 0, 1 for a race or a fault, 2 for a wrong request."""
    top = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.lab.trace",
        description="Count what a kernel asks of memory, and find its races, without a GPU.",
    )
    top.add_argument("where", metavar="FILE.py:KERNEL")
    text = "how to launch it, '[grid, block](args)'; without, FILE.py runs up to its first launch"
    top.add_argument("launch", nargs="?", metavar="LAUNCH", help=text)
    top.add_argument("--blocks", type=int, metavar="N", help="of numba: trace only N blocks")
    top.add_argument("--arch", metavar="sm_90", help="show the machine code for it, too")
    options = top.parse_args(argv)
    file, _, name = options.where.rpartition(":")
    try:
        if not file:
            raise ValueError(f"{options.where!r} is not like file.py:kernel")
        launch = launch_of(file, name, options.launch)
        seen = launch.trace(**({"blocks": options.blocks} if options.blocks else {}))
        print(seen.table())
        if options.arch:
            print(f"\n{available(launch.kernel) or launch.machine_code(options.arch)}")
    except (LookupError, OSError, TypeError, ValueError, CompileError, KernelFault) as error:
        print(f"trace: {error}", file=sys.stderr)
        return 2
    return int(bool(getattr(seen, "races", ()) or seen.faults))
