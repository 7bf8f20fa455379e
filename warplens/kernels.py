"""The public functions, for any numba.cuda, Triton or Gluon kernel, without a GPU.

    from warplens import banks, machine_code, occupancy, races, roofline, timeline, trace

`trace` runs a launch on the CPU and counts its memory accesses. `races` and `banks` analyse the
same run, and `timeline` shows what a Gluon kernel has in flight. `machine_code` compiles for a GPU
that need not be present. `roofline` computes the least possible time. docs/own_kernels.md has an
example of each.
"""

import dataclasses
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .compiled.assembly import assembly as machine_code
from .compiled.functions import plain
from .compiled.occupancy import occupancy
from .faults import UninitialisedRead, Unsupported
from .least_time import Ceiling, LeastWork, Roof, data_sheet, roof_over

if TYPE_CHECKING:  # a simulator is imported with the first kernel of its language
    from .cuda.trace import Trace
    from .gluon.trace import GluonTrace
    from .pictures.style import Picture
    from .triton.trace import TritonTrace

    AnyTrace: TypeAlias = Trace | TritonTrace | GluonTrace

__all__ = ["banks", "machine_code", "occupancy", "races", "roofline", "timeline", "trace"]

Size: TypeAlias = int | tuple[int, ...]
Op: TypeAlias = Literal["load", "store", "atomic"]


def trace(kernel: object, grid: Size, *args: Any, **named: Any) -> "AnyTrace":
    """Runs one launch on the CPU, on copies of its arguments, and counts its accesses.

    Args:
        kernel: the result of `cuda.jit`, `triton.jit` or `gluon.jit`, or a plain function (numba).
        grid: the number of blocks or programs, an integer or a tuple of up to three.
        args, named: the arguments of the launch. `kernel[grid, block](*args)` of numba becomes
            `trace(kernel, grid, block, *args)`; `kernel[grid](*args, **constants)` of Triton
            becomes `trace(kernel, grid, *args, **constants)`. Arrays can be numpy's, torch's or on
            a GPU, from where they are copied. For numba, `named` are the options of
            `warplens.cuda.trace.trace`: `blocks=4` traces only four blocks,
            `constants={"TILE": 8}` replaces globals, `sharedmem=` is the launch's.

    Returns:
        A `Trace` (numba), `TritonTrace` or `GluonTrace`. Print it to see the counts by source line,
        in requests and 32-byte sectors, or the steps of a Gluon kernel with the work in flight.
        `races` and `faults` list what is wrong with the kernel. `write_html(path)` writes
        everything as a page, and a notebook shows a short form of it.

    Raises:
        TypeError: the kernel cannot be simulated, or the arguments do not fit it.
    """
    args = [on_cpu(x) for x in args]
    named = {name: on_cpu(x) for name, x in named.items()}
    simulator = _simulator(kernel)
    grid = (grid,) if isinstance(grid, int) else grid
    if simulator.__name__ == CUDA:
        function = plain(kernel)
        if not args:
            raise TypeError(f"block is missing: a launch of {function.__name__} has a grid and one")
        inspect.signature(function).bind(*args[1:])
    try:
        return simulator.trace(kernel, grid, *args, **named)
    except Unsupported as fault:
        raise TypeError(str(fault)) from None


def races(kernel: object, *launch: Any, **named: Any) -> "Races":
    """Finds accesses to one address that no barrier orders, at least one of them a write.

    For a Triton kernel, these are elements that one program writes and another reads or writes. A
    Gluon kernel stops at the first one, as a fault.

    Args:
        kernel: a kernel, followed by `launch` and `named` as for `trace`; or a trace.

    Returns:
        A list of races, empty if there is none. Print it to see their lines and threads.

    Raises:
        KernelFault: no race was seen, but the run stopped at this fault, so there may be others.
        TypeError: a Gluon kernel, whose compiler adds the barriers; see the trace's `faults`.
    """
    launch_trace = _trace_of(kernel, launch, named)
    if _of_gluon(launch_trace):
        message = f"{launch_trace.kernel} is a Gluon kernel, whose compiler adds the barriers: "
        raise TypeError(message + "its own faults are in trace(…).faults")
    ends = [fault for fault in launch_trace.faults if not isinstance(fault, UninitialisedRead)]
    pairs = getattr(launch_trace, "races", [])
    if ends and not pairs:
        raise ends[0]
    return Races(pairs)


class Races(list[Any]):
    """The races of a launch."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no race"

    __str__ = __repr__


def banks(
    kernel: object,
    *launch: Any,
    line: int | None = None,
    array: str | None = None,
    op: Op | None = None,
    nth: int = 0,
    **named: Any,
) -> "Picture":
    """Draws one warp's access to shared memory: the 32 banks, and a row for each wavefront.

    Args:
        kernel: a numba kernel, followed by `launch` and `named` as for `trace`; or its `Trace`.
        line, array, op: which access to draw: a source line, an array's name, and "load", "store"
            or "atomic". By default, the line with the most conflicts.
        nth: which of its requests, in the order of execution, from 0.

    Returns:
        A `Picture`; its text has the lanes, the wavefronts and the conflicts.

    Raises:
        TypeError: a Triton or Gluon kernel; Triton's compiler chooses the layout of shared memory.
        ValueError: the kernel has no such access to shared memory.
    """
    launch_trace = _trace_of(kernel, launch, named)
    if not _is(launch_trace, CUDA):
        message = (
            f"{launch_trace.kernel} is not a numba kernel, so its compiler lays out shared memory: "
        )
        raise TypeError(message + "see LDS, STS and LDSM of machine_code(…)")
    if line is array is op is None:
        shared = [row for row in launch_trace.rows if row.space == "shared"]
        if not shared:
            raise ValueError(f"{launch_trace.kernel} does not access shared memory")
        worst = max(shared, key=lambda row: row.conflicts)
        line, array, op = worst.line, worst.array, worst.op
    pictures = _pictures("traces")
    return pictures.banks(launch_trace, line, array=array, op=op, nth=nth)


def timeline(
    kernel: object,
    *launch: Any,
    program: int = 0,
    steps: tuple[int, int] | None = None,
    **named: Any,
) -> "Picture":
    """Draws the copies and products that a Gluon kernel has in flight at each step of a program.

    Args:
        kernel: a Gluon kernel, followed by `launch` and `named` as for `trace`; or its trace.
        program: which program, from 0.
        steps: (first, last) step to show; all by default.

    Returns:
        A `Picture`; its text counts the asynchronous operations, those that overlap with other
        work, and the waits.

    Raises:
        TypeError: a numba or Triton kernel.
    """
    launch_trace = _trace_of(kernel, launch, named)
    if not _of_gluon(launch_trace):
        raise TypeError(f"{launch_trace.kernel} is not a Gluon kernel: timeline draws nothing else")
    return _pictures("in_flight").timeline(launch_trace, program, steps)


def roofline(
    seen: "AnyTrace | None" = None,
    *,
    flops: float,
    bytes: float | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    gpu: str = "H200",
    ceiling: Ceiling | None = None,
) -> Roof:
    """The least time that a launch can take on a GPU, and whether memory or arithmetic sets it.

    Args:
        seen: a trace. Its bytes are those of the distinct elements (numba: 32-byte sectors): each
            is read once, written once, or both if atomics update it.
        flops: floating-point operations of the whole launch; an addition is one. Count them from
            the definition, such as 2·M·N·K for a matrix product.
        bytes: used instead of the traced bytes, for a launch that is too large to trace.
        dtype: of the arithmetic: "float32" on ordinary units, "float16" or "bfloat16" on tensor
            cores.
        gpu: the GPU whose data sheet to use, a key of `roofline.DATA_SHEETS`.
        ceiling: a `Ceiling` that you measured, instead of a data sheet.

    Returns:
        A `Roof` with `floor_ms`, `bound` and `share(ms)` of a time that you measured; print it.

    Raises:
        LookupError: there is no such GPU in the table.
        ValueError: neither a whole trace nor bytes were given.
    """
    if bytes is None:
        if _of_gluon(seen):
            raise ValueError("a Gluon trace does not count distinct elements: pass bytes=")
        if seen is None or getattr(seen, "scale", 1) != 1:
            raise ValueError("only some blocks were traced: pass bytes= of the whole launch")
        moved = {op: seen.least_bytes(op=op) for op in ("load", "store", "atomic")}
        bytes = moved["load"] + moved["store"] + 2 * moved["atomic"]
    ceiling = ceiling or data_sheet(gpu, dtype)
    return dataclasses.replace(roof_over(LeastWork(bytes, flops), ceiling), of=ceiling.source)


CUDA, GLUON = f"{__package__}.cuda.trace", f"{__package__}.gluon.trace"


def _simulator(kernel):
    """The module with the `trace` for a kernel of this kind. A new kind gets its line here."""
    where = type(kernel).__module__
    if where.startswith("triton.experimental.gluon"):
        return _imported(".gluon.run", "triton")
    if where.startswith("triton."):
        return _imported(".triton.run", "triton")
    if callable(getattr(kernel, "py_func", kernel)):
        return _imported(".cuda.trace", "numba")
    raise TypeError(
        f"kernel is a {type(kernel).__name__}, needs what cuda.jit, triton.jit or gluon.jit made"
    )


def _pictures(name):
    return _imported(f".pictures.{name}", "pictures")


def _imported(name, extra):
    """A module of this package, which needs the packages of one of its extras."""
    try:
        return importlib.import_module(name, __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(__package__):
            raise
        message = f"{error.name} is not installed: pip install 'warplens[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None


def _is(trace, module):
    """Whether `trace` is of the class that `module` has."""
    return type(trace).__module__ == module


def _of_gluon(trace):
    """Whether it is a `GluonTrace`."""
    return _is(trace, GLUON)


def _trace_of(kernel, launch, named):
    """The trace itself, or that of a launch."""
    if hasattr(kernel, "faults"):
        if launch or named:
            raise TypeError("a trace was given: pass no launch with it")
        return kernel
    if not launch:
        raise TypeError("grid is missing: a launch is (kernel, grid, block, *args)")
    return trace(kernel, *launch, **named)


def on_cpu(value):
    """An argument where the simulators can read it."""
    if type(value).__name__ in ("In", "Out", "InOut") and hasattr(value, "value"):  # of numba
        value = value.value
    if hasattr(value, "copy_to_host"):  # of numba
        return value.copy_to_host()
    if hasattr(value, "block_shape"):  # a descriptor
        return dataclasses.replace(value, base=on_cpu(value.base))
    if hasattr(value, "data_ptr") and value.device.type != "cpu":
        return value.cpu()
    if type(value).__module__.startswith("cupy"):
        return value.get()
    return value
