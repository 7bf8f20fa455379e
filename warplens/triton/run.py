"""Runs an unmodified Triton kernel on the CPU, watched: one program after another, as numpy arrays.

    run(kernel, grid, *tensors, T=17, BK=4)            a launch; tensors are changed in place
    seen = trace(kernel, grid, *tensors, T=17, BK=4)   the same on copies, counted: a `TritonTrace`

It is Triton's own interpreter, without TRITON_INTERPRET: kernels compile in the same process, so
one check can do both. In front of its memory stands a guard. A GPU reads and writes outside of a
tensor and says nothing; here an unmasked lane outside is an `OutOfBounds` that names the tensor,
the program and the line. What differs from a GPU: no warps or layouts, programs take turns, and
products of float32 operands keep all their bits unless `run` is told `tf32=True`. A masked load
that does not say what its masked lanes hold gets NaN there, as a GPU may leave anything. A loop
that goes round more often than the tensors have numbers is a `EndlessLoop`.
"""

import contextlib
import dataclasses
import itertools
import re
import traceback

import numpy as np

from ..compiled import from_triton as cubin_triton
from ..compiled.functions import is_kernel_function, named, plain
from ..faults import (
    STILL,
    EndlessLoop,
    KernelFault,
    Unsupported,
    WrongType,
    place_of,
)
from ..time_limit import StillRunning, time_limit
from .checked_memory import Watched
from .configurations import choose
from .data_flow import DataFlow, mark
from .language import called, language
from .trace import TritonTrace

__all__ = ["KernelFault", "TritonTrace", "run", "trace", "what_is_missing"]

# A program has no reason to go round more often than there are numbers in all its tensors. The
# bounds keep tiny launches from being called endless, and endless ones from taking minutes.
FEWEST_ROUNDS, MOST_ROUNDS = 1000, 20_000

what_is_missing = cubin_triton.missing  # None, or what is missing here, in one sentence


def run(kernel, grid, *args, reverse=False, tf32=False, **named):
    """Runs `kernel[grid](*args, **named)` on the CPU; tensors are changed in place.

    Args:
        kernel: what `triton.jit` made, in any mode; the functions it calls come along.
        grid: programs, an integer or a tuple of up to three.
        args, named: CPU tensors, numbers and constexprs, by position or by name; num_warps and the
            like are taken and ignored.
        reverse: programs from the last to the first; a correct kernel does not notice.
        tf32: cut the operands of float32 products to TF32, as tensor cores do, unless the kernel
            asks for another `input_precision`.

    Returns:
        A `Watched`: what was written, in which arithmetic, and which programs met.

    Raises:
        KernelFault: with the source line and the program: `OutOfBounds`, or any exception.
        TypeError: the arguments do not fit.
    """
    launch = InterpretedLaunch(kernel, grid, args, named, keep=True, tf32=tf32)
    launch.go(reverse)
    return launch.memory


def trace(kernel, grid, *args, **named):
    """Runs `kernel[grid](*args, **named)` on copies of the tensors and counts; as for `run`.

    Returns:
        A `TritonTrace`. A fault ends the run and is in its `faults`, with the counts up to there.
    """
    args = [_copy(x) for x in args]
    named = {name: _copy(x) for name, x in named.items()}
    launch = InterpretedLaunch(kernel, grid, args, named, keep=True)
    faults, flow = [], DataFlow(launch.memory.place)
    try:
        launch.go(flow=flow)
    except Unsupported:
        raise
    except KernelFault as fault:
        faults.append(fault)
    name = plain(launch.kernel).__name__
    notes = launch.configuration, flow.depends
    return TritonTrace(name, launch.grid, launch.memory, faults, *notes)


def _copy(x):
    """A tensor or a descriptor with memory of its own; anything else as it is."""
    if hasattr(x, "block_shape"):
        return dataclasses.replace(x, base=x.base.clone())
    return x.clone() if hasattr(x, "data_ptr") else x


class InterpretedLaunch:
    """A kernel, its grid and its arguments; `memory` sees every access.

    Attributes:
        configuration: what `triton.autotune` was replaced by, in words, or None.
    """

    def __init__(self, kernel, grid, args, named, keep=False, tf32=False):
        if missing := what_is_missing():
            raise RuntimeError(missing)
        chosen = choose(kernel, args, named)
        kernel, self.configuration = chosen.kernel, chosen.configuration
        arguments, constants = _bind(kernel, args, chosen.named)
        grid = grid(arguments) if callable(grid) else grid
        grid = (grid,) if isinstance(grid, int) else tuple(grid)
        if not 1 <= len(grid) <= 3 or any(n < 1 for n in grid):
            raise ValueError(f"grid is {grid}, needs one to three numbers of at least 1")
        self.kernel, self.arguments, self.constants = kernel, arguments, constants
        self.grid = grid + (1,) * (3 - len(grid))
        self.memory = Watched(arguments, _files(kernel), keep, tf32)
        numbers = sum(region.elements for region in self.memory.regions)
        self.rounds = min(max(numbers, FEWEST_ROUNDS), MOST_ROUNDS)

    def go(self, reverse=False, flow=None):
        """Runs all programs; see `run`. `flow`: a `DataFlow` that follows its numbers."""
        try:
            with time_limit():
                self._go(reverse, flow)
        except StillRunning as error:
            message = f"program {self.memory.program}: {STILL} after many seconds"
            raise EndlessLoop(message, self._place(error)) from None

    def _go(self, reverse, flow):
        from triton.runtime import interpreter

        builder = interpreter.interpreter_builder
        function = called(cubin_triton._jit(self.kernel, {}).fn, self._tick)
        programs = list(itertools.product(*(range(n) for n in reversed(self.grid))))
        follow = flow.followed(builder) if flow else contextlib.nullcontext()
        with language(), self.memory.between(builder), follow, np.errstate(all="ignore"):
            builder.set_grid_dim(*self.grid)
            addresses = self.memory.stand_ins
            arguments = {
                name: x if name in self.constants else _as_tensor(x, addresses.get(name))
                for name, x in self.arguments.items()
            }
            for z, y, x in reversed(programs) if reverse else programs:
                builder.set_grid_idx(x, y, z)
                self.memory.program, self.left = (x, y, z), self.rounds
                try:
                    function(**arguments)
                except KernelFault:
                    raise
                except NotImplementedError as error:
                    raise Unsupported(_unsupported(error), self._place(error)) from error
                except AttributeError as error:
                    if error.obj is builder:
                        raise Unsupported(_unsupported(error), self._place(error)) from error
                    raise self._explain(error) from error
                except Exception as error:
                    raise self._explain(error) from error

    def _tick(self):
        """Called whenever a loop of the kernel goes round."""
        self.left -= 1
        if self.left < 0:
            raise EndlessLoop(
                f"program {self.memory.program}: {STILL} after {self.rounds:,} rounds",
                self.memory.place(),
            )

    def _place(self, error):
        """Where in the kernel an exception comes from."""
        return place_of(error, lambda code: code.co_filename in self.memory.files)

    def _explain(self, error):
        """An exception of the kernel as a fault with its place."""
        message = f"{type(error).__name__}: {str(error) or _asserted(error)}".removesuffix(": ")
        kind = WrongType if re.search(r"\bdtypes?\b", str(error)) else KernelFault
        fault = kind(f"{message}, in program {self.memory.program}", self._place(error))
        fault.symptom = "operands" if "Both operands must be same dtype" in message else None
        return fault


def _asserted(error):
    """What Triton's source asserts where an AssertionError has no text; "" for any other error."""
    last = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return last.removeprefix("assert ") if isinstance(error, AssertionError) else ""


def _unsupported(error):
    """What a kernel uses and the interpreter has not, by the language's own name for it."""
    if isinstance(error, AttributeError):
        name = error.name.removeprefix("create_").removeprefix("get_")
        return f"tl.{name} is not simulated; docs/own_kernels.md has what is not, and what to do"
    text = str(error)
    names = {"inline_asm": "tl.inline_asm_elementwise", "extern_elementwise": "tl.core.extern"}
    name = next((names[key] for key in names if key in text), None)
    return f"{name} is not simulated: write it with functions of tl" if name else text


def _bind(kernel, args, named):
    """({parameter: argument}, names of constexprs); options of a launch are dropped."""
    parameters, _, _ = cubin_triton.prepare(kernel, args, {}, dict(named))
    names = list(parameters)
    defaults = {p.name: p.default for p in cubin_triton._jit(kernel, {}).params if p.has_default}
    arguments = defaults | dict(zip(names, args, strict=False))
    arguments |= {name: x for name, x in named.items() if name in names}
    constants = {p.name for p in cubin_triton._jit(kernel, {}).params if p.is_constexpr}
    return {name: arguments[name] for name in names}, constants


def _as_tensor(x, stand_in=None):
    """A pointer or an integer as the interpreter's tensor of one, a descriptor as its descriptor.

    Anything else as it is.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_semantic

    if hasattr(x, "block_shape"):
        return interpreter_semantic.make_tensor_descriptor(
            _as_tensor(x.base, stand_in),
            [_as_tensor(int(n)) for n in x.shape],
            [*(_as_tensor(int(n)) for n in x.strides[:-1]), tl.constexpr(1)],
            [tl.constexpr(n) for n in x.block_shape],
            getattr(x, "padding", "zero"),
        )
    if stand_in:
        kind, value, bits = tl.str_to_ty(stand_in.kind, None), stand_in.address, np.uint64
    elif isinstance(x, int) and not isinstance(x, bool):
        small = -(2**31) <= x < 2**31
        kind, value, bits = (tl.int32, x, np.int32) if small else (tl.int64, x, np.int64)
    else:
        return x
    handle = TensorHandle(np.array([value], bits), kind)
    mark(handle)
    return tl.tensor(handle, kind)


def _files(kernel):
    """The files of a kernel and of the functions that it calls: where its lines are."""
    functions, waiting = set(), [plain(kernel)]
    while waiting:
        function = waiting.pop()
        if function not in functions:
            functions.add(function)
            values = named(function).values()
            waiting += [plain(x) for x in values if is_kernel_function(x)]
    return {function.__code__.co_filename for function in functions}
