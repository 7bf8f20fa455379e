"""Finds a launch to trace: the first one that somebody's file makes, or one given as text.

The file runs as `python file.py` would, up to its first launch of the kernel. Without a GPU "cuda"
is the CPU, and launches before it run in the simulators, so that the file meets the numbers that it
expects. Where a launch is given, the file is only asked for its names: it launches nothing.
"""

import argparse
import ast
import codeop
import contextlib
import functools
import inspect
import io
import re
import sys
import traceback
import types
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np

from .architectures import ARCHITECTURES
from .command_line import at_least
from .compiled.assembly import what_is_missing
from .compiled.cubin import CompileError
from .compiled.functions import plain
from .faults import KernelFault
from .kernels import machine_code, on_cpu, trace
from .pretend_gpu import Compiled, pretend_gpu, real_devices


@dataclass
class SeenLaunch:
    """`kernel[grid](*args, **named)`; of numba, `args` begins with the block.

    Attributes:
        configuration: what was taken where `triton.autotune` would choose, in words, or None.
    """

    kernel: object
    grid: object
    args: tuple
    named: dict
    configuration: str | None = None

    def trace(self, **options):
        return trace(self.kernel, self.grid, *self.args, **self.named, **options)

    def machine_code(self, arch):
        numba = hasattr(self.kernel, "py_func")
        named = {} if numba else self.named
        args = map(on_cpu, self.args[numba:])
        return machine_code(self.kernel, *args, arch=arch, **named)


HOW = (
    "give a launch after the name, as an argument of its own: "
    "warplens trace FILE.py:KERNEL '[4, 256](rand(1024), zeros(1024))'"
)


NO_KERNELS = ("guvectorize", "vectorize", "reduce")  # decorators of numba


class _Found(BaseException):
    """Ends the file that runs: its launch is known."""


class _NotNeeded(BaseException):
    """Ends a statement of the file that would launch a kernel."""


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
    if not Path(file).is_file():
        raise LookupError(f"there is no file {file}")
    if decorator := _no_kernel(file, name):
        raise LookupError(
            f"{name} of {file} is a function of @{decorator}, not a kernel of @cuda.jit, "
            "@triton.jit or @gluon.jit"
        )
    if text is not None:
        return _as_text(file, name, text)
    launches = []

    def launched(kernel, grid, args, named, go, configuration=None):
        if plain(kernel).__name__ == name:
            launches.append(SeenLaunch(kernel, grid, args, named, configuration))
            raise _Found
        return go()

    try:
        with _watched(launched):
            module = _executed(file)
    except _Found:
        return launches[0]
    except Exception as error:
        if not re.search(rf"\b{re.escape(name)}\b", Path(file).read_text(encoding="utf-8")):
            raise LookupError(f"{file} has no kernel {name!r}") from error
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == Path(file)]
        at = f" at line {lines[-1]}" if lines else ""
        message = f"{file} stops before it launches {name}, {type(error).__name__}{at}: {error}"
        raise LookupError(f"{message}\n{_how(error)}") from error
    _kernel(vars(module), name, file)
    raise LookupError(f"{file} does not launch {name}\n{HOW}")


def _how(error):
    """What to do about an error before the launch."""
    package = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if package in ("numba", "triton", "torch"):
        extra = "numba" if package == "numba" else "triton"
        return f"{package} is not installed: pip install 'warplens[{extra}]'"
    return HOW


def _no_kernel(file, name):
    """The decorator of the function `name`, if it makes something of numba that is no kernel."""
    try:
        module = ast.parse(Path(file).read_text(encoding="utf-8"), str(file))
    except SyntaxError as error:
        raise LookupError(f"{file} is no Python at line {error.lineno}: {error.msg}") from None
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for decorator in node.decorator_list:
                while isinstance(decorator, ast.Call):
                    decorator = decorator.func
                if (called := ast.unparse(decorator)).split(".")[-1] in NO_KERNELS:
                    return called
    return None


def _executed(file):
    """The file as a module, run as a script; it finds its neighbours."""
    with _module(file, "__main__") as (module, text):
        exec(compile(text, module.__file__, "exec"), vars(module))
    return module


def _names(file):
    """(The names that the file makes, what went wrong meanwhile), without a launch of its own.

    A statement that launches, that fails, or that needs one of these, is left out.
    """
    errors = []

    def launched(*launch, **more):
        raise _NotNeeded

    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, _watched(launched), _module(file, Path(file).stem) as (module, text):
        compiled = codeop.Compile()  # it remembers imports from __future__
        for statement in ast.parse(text, module.__file__).body:
            code = compiled(ast.Module([statement], []), module.__file__, "exec")
            try:
                exec(code, vars(module))
            except _NotNeeded:
                continue
            except SystemExit:
                break
            except Exception as error:
                errors.append(f"line {statement.lineno}, {type(error).__name__}: {error}")
    return vars(module), errors


@contextlib.contextmanager
def _module(file, name):
    """(An empty module for the file, its text), while neighbours and arguments are a script's."""
    path = Path(file).resolve()
    module = types.ModuleType(name)
    module.__file__ = str(path)
    with patch.object(sys, "path", [str(path.parent), *sys.path]):
        with patch.object(sys, "argv", [str(path)]):
            yield module, path.read_text(encoding="utf-8")


def _kernel(namespace, name, file):
    kernels = [n for n, x in namespace.items() if hasattr(x, "py_func") or hasattr(x, "arg_names")]
    if name in kernels:
        return namespace[name]
    raise LookupError(f"{file} has no kernel {name!r}; it has {', '.join(kernels) or 'none'}")


def _as_text(file, name, text):
    """The launch in `text`, with the names of the file."""
    namespace, errors = _names(file)
    try:
        kernel = _kernel(namespace, name, file)
    except LookupError as error:
        raise LookupError("\n".join([str(error), *errors[:1]])) from None

    class LaunchCatcher:
        def __getitem__(self, sizes):
            def launch(*args, **named):
                grid, first = sizes, ()
                if hasattr(kernel, "py_func"):
                    if not isinstance(sizes, tuple) or len(sizes) < 2:
                        raise ValueError(f"a kernel of numba needs [grid, block], got [{sizes}]")
                    grid, block, *rest = sizes
                    first = (block,)
                    if rest[1:]:  # grid, block, stream, sharedmem
                        named["sharedmem"] = rest[1]
                    if rest[2:] and rest[2] not in (None, 1, (1, 1, 1)):
                        raise NotImplementedError(f"clusters, of {rest[2]}, are not simulated")
                return SeenLaunch(kernel, grid, (*first, *args), named)

            return launch

    names = _makers() | {"np": np} | namespace | {"kernel": LaunchCatcher()}
    try:
        with contextlib.nullcontext() if _has_gpu() else pretend_gpu():
            launch = eval(f"kernel{text}", names)
    except Exception as error:
        raise ValueError(f"the launch {text!r}: {type(error).__name__}: {error}") from error
    if not isinstance(launch, SeenLaunch):
        raise ValueError(f"the launch is {text!r}, needs to be like '[4, 256](rand(1024))'")
    if hasattr(kernel, "py_func"):
        return launch
    from .triton.configurations import choose

    chosen = choose(kernel, launch.args, launch.named)
    return SeenLaunch(chosen.kernel, launch.grid, launch.args, chosen.named, chosen.configuration)


@contextlib.contextmanager
def _watched(launched):
    """While it lasts, every launch is `launched(kernel, grid, args, named, go)`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Grid size .* will likely")  # numba: a small grid
        on_gpu = _has_gpu()
        stack.enter_context(contextlib.nullcontext() if on_gpu else pretend_gpu())
        _watch_numba(stack, launched, on_gpu)
        _watch_triton(stack, launched, on_gpu)
        yield


def _makers():
    """What a launch in words calls to make an array: torch's own names, or numpy's of the same."""
    try:
        import torch
    except ImportError:
        return {"rand": lambda *shape: np.random.rand(*shape).astype("f4")} | {
            name: functools.partial(getattr(np, name), dtype="f4") for name in ("zeros", "ones")
        }
    return vars(torch) | {"torch": torch}


def _has_gpu():
    if "torch" in sys.modules or find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return True
    try:
        from numba import cuda
    except ImportError:
        return False
    return cuda.is_available()


def _watch_numba(stack, launched, on_gpu):
    from .programs.launches import SETTINGS, ProgramKernel

    run = ProgramKernel.launch
    stack.enter_context(patch.object(SETTINGS, "races", False))

    def launch(self, grid, block, sharedmem, args):  # of numba-cuda-mlir
        named = {"sharedmem": sharedmem} if sharedmem else {}
        go = functools.partial(run, self, grid, block, sharedmem, args)
        return launched(self, grid, (block, *args), named, go)

    stack.enter_context(patch.object(ProgramKernel, "launch", launch))
    try:
        from numba.cuda.dispatcher import _LaunchConfiguration
    except ImportError:
        return
    own = _LaunchConfiguration.__call__

    def call(self, *args):
        kernel, named = self.dispatcher, {"sharedmem": self.sharedmem} if self.sharedmem else {}

        def go():
            if on_gpu:
                return own(self, *args)
            with real_devices():
                on_cpu = ProgramKernel(kernel.py_func)
                return run(on_cpu, self.griddim, self.blockdim, self.sharedmem, args)

        return launched(kernel, self.griddim, (self.blockdim, *args), named, go)

    stack.enter_context(patch.object(_LaunchConfiguration, "__call__", call))


def _watch_triton(stack, launched, on_gpu):
    try:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    from .triton.configurations import choose

    configurations = {}

    def tuned(self, *args, grid, warmup=False, **named):
        with contextlib.nullcontext() if on_gpu else real_devices():
            chosen = choose(self, args, named)
        configurations[chosen.kernel] = chosen.configuration
        return chosen.kernel.run(*args, grid=grid, warmup=warmup, **chosen.named)

    stack.enter_context(patch.object(Autotuner, "run", tuned))
    for kind in (JITFunction, InterpretedFunction):
        run = _triton_run(kind.run, launched, configurations, on_gpu)
        stack.enter_context(patch.object(kind, "run", run))


def _triton_run(own, launched, configurations, on_gpu):
    from .triton.run import run as run_triton

    def run(self, *args, grid, warmup, **named):
        if on_gpu and warmup:
            return own(self, *args, grid=grid, warmup=warmup, **named)

        def go():
            if on_gpu:
                return own(self, *args, grid=grid, warmup=warmup, **named)
            with real_devices():
                if "gluon" in type(self).__module__:
                    _run_gluon(self, grid, *args, **named)
                else:
                    run_triton(self, grid, *args, **named)

        seen_launch = (
            None if warmup else launched(self, grid, args, named, go, configurations.get(self))
        )
        return seen_launch or Compiled(self, args, named)

    return run


def _run_gluon(kernel, grid, *args, num_warps=4, **named):
    from .gluon import watch

    names = inspect.signature(plain(kernel)).parameters
    trace = watch(kernel, grid, dict(zip(names, args, strict=False)) | named, num_warps)
    if trace.faults:
        raise trace.faults[0]


EXAMPLES = """examples:
  warplens trace sum.py:add
  warplens trace sum.py:add '[4, 256](rand(1024), zeros(1024))'
  warplens trace sum.py:add --html add.html --arch sm_90
"""
ARCH = "sm_90"  # of the machine code on a page


def _code(launch, arch):
    """The machine code of a launch, or why there is none."""
    try:
        return what_is_missing(launch.kernel) or launch.machine_code(arch or ARCH)
    except CompileError as error:
        return f"{error}"
    except (TypeError, ValueError) as error:
        return f"The kernel does not compile: {error}"


REFUSED = (LookupError, OSError, TypeError, ValueError, NotImplementedError)
REFUSED += (CompileError, KernelFault)


def main(argv=None):
    """Traces a launch and prints it. Returns 0, 1 for a race or a fault, 2 for a wrong request."""
    top = argparse.ArgumentParser(
        prog="warplens trace",
        description="Count the memory accesses of a kernel and find its races, without a GPU.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("where", metavar="FILE.py:KERNEL", help="a file, and a kernel in it")
    text = "how to launch it, '[grid, block](args)'; without, FILE.py runs up to its first launch"
    top.add_argument("launch", nargs="?", metavar="LAUNCH", help=text)
    top.add_argument(
        "--blocks", type=at_least(1), metavar="N", help="of numba: trace only N blocks"
    )
    text = "show the machine code for it, too: " + ", ".join(ARCHITECTURES)
    top.add_argument("--arch", choices=list(ARCHITECTURES), metavar="sm_90", help=text)
    top.add_argument("--html", metavar="OUT.html", help="write all of it as a page, too")
    options = top.parse_args(argv)
    file, _, name = options.where.rpartition(":")
    try:
        if not file:
            raise ValueError(f"{options.where!r} is not like file.py:kernel")
        if options.html and not Path(options.html).absolute().parent.is_dir():
            raise LookupError(f"there is no folder {Path(options.html).parent} for the page")
        launch = launch_of(file, name, options.launch)
        trace = launch.trace(**({"blocks": options.blocks} if options.blocks else {}))
        if launch.configuration:
            print(launch.configuration)
        print(trace.table())
        if options.html:
            print(f"\nwritten: {trace.write_html(options.html, _code(launch, options.arch))}")
        if options.arch:
            print(f"\n{what_is_missing(launch.kernel) or launch.machine_code(options.arch)}")
    except BrokenPipeError:  # whoever reads has stopped; an OSError, too
        raise
    except REFUSED as error:
        print(f"trace: {error}", file=sys.stderr)
        return 2
    return int(bool(getattr(trace, "races", ()) or trace.faults))
