"""The lab for kernels of one's own: any kernel of numba.cuda, Triton or Gluon, and no GPU.

    from warplens import banks, machine_code, occupancy, races, roofline, timeline, trace

`trace` runs a launch on the CPU and counts what it asks of memory; `races` and `banks` look closer
at the same run, and `timeline` at what a kernel in Gluon has in flight; `machine_code` compiles for
a GPU that need not be there; `roofline` says what the least time is. docs/own_kernels.md has ten
lines on each.
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
        kernel: what `cuda.jit`, `triton.jit` or `gluon.jit` made, of numba also the plain function.
        grid: blocks or programs, an integer or a tuple of up to three.
        args, named: as the launch has them. `kernel[grid, block](*args)` of numba is
            `trace(kernel, grid, block, *args)`; `kernel[grid](*args, **constants)` of Triton is
            `trace(kernel, grid, *args, **constants)`. Arrays of numpy, torch or a GPU, which are
            copied from there. For numba, `named` are the options of
            `warplens.cuda.trace.trace`: `blocks=4` traces only four blocks,
            `constants={"TILE": 8}` exchanges globals, `sharedmem=` is the launch's.

    Returns:
        A `Trace` (numba), `TritonTrace` or `GluonTrace`. Print it for the counts by source line, in
        requests and 32-byte sectors, or for the steps of a kernel in Gluon and what is in flight;
        its `races` and `faults` say what is wrong with the kernel. `write_html(path)` writes all of
        it as a page, and a notebook shows a short form of that.

    Raises:
        TypeError: no kernel that is simulated here, or the arguments do not fit it.
    """
    args = [_on_cpu(x) for x in args]
    named = {name: _on_cpu(x) for name, x in named.items()}
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
    """What no barrier orders: two threads at one address, and at least one of them writes.

    Of a Triton kernel, the elements that one program writes and another one reads or writes. A
    kernel of Gluon ends at the first: it is a fault.

    Args:
        kernel: a kernel, and then `launch` and `named` as for `trace`; or what `trace` returned.

    Returns:
        A list of races, empty where there is none; print it to read them, with lines and threads.

    Raises:
        KernelFault: no race was seen, but the run ended at this fault, so that nobody knows.
        TypeError: a kernel of Gluon, whose compiler adds barriers; the rest is in `faults`.
    """
    seen = _seen(kernel, launch, named)
    if _of_gluon(seen):
        what = f"{seen.kernel} is a kernel of Gluon, whose compiler adds barriers: "
        raise TypeError(what + "what it has to see to itself is in trace(…).faults")
    ends = [fault for fault in seen.faults if not isinstance(fault, UninitialisedRead)]
    found = getattr(seen, "races", [])
    if ends and not found:
        raise ends[0]
    return Races(found)


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
    """Draws one warp's access to shared memory: the 32 banks, and a row for each pass it takes.

    Args:
        kernel: a kernel of numba, and then `launch` and `named` as for `trace`; or its `Trace`.
        line, array, op: which access: a source line, a name, "load", "store" or "atomic". Without
            any, the line with the most conflicts.
        nth: which of its requests, in the order of execution, from 0.

    Returns:
        A `Picture`; its text has the lanes, the passes and the conflicts.

    Raises:
        TypeError: a kernel of Triton, whose compiler lays shared memory out by itself, or Gluon.
        ValueError: the kernel has no such access to shared memory.
    """
    seen = _seen(kernel, launch, named)
    if not _is(seen, CUDA):
        what = f"{seen.kernel} is not of numba, and a compiler lays out its shared memory: "
        raise TypeError(what + "see LDS, STS and LDSM of machine_code(…)")
    if line is array is op is None:
        shared = [row for row in seen.rows if row.space == "shared"]
        if not shared:
            raise ValueError(f"{seen.kernel} does not access shared memory")
        worst = max(shared, key=lambda row: row.conflicts)
        line, array, op = worst.line, worst.array, worst.op
    pictures = _pictures("traces")
    return pictures.banks(seen, line, array=array, op=op, nth=nth)


def timeline(
    kernel: object,
    *launch: Any,
    program: int = 0,
    steps: tuple[int, int] | None = None,
    **named: Any,
) -> "Picture":
    """Draws what a kernel in Gluon has in flight: copies and products against a program's steps.

    Args:
        kernel: a kernel of Gluon, and then `launch` and `named` as for `trace`; or its trace.
        program: which one, from 0.
        steps: (first, last) of those to show; all by default.

    Returns:
        A `Picture`; its text counts flights, those with work meanwhile, and waits.

    Raises:
        TypeError: a kernel of numba or Triton.
    """
    seen = _seen(kernel, launch, named)
    if not _of_gluon(seen):
        raise TypeError(
            f"{seen.kernel} is no kernel of Gluon: only there it says what is in flight"
        )
    return _pictures("in_flight").timeline(seen, program, steps)


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
        seen: what `trace` returned. Its bytes are those of the distinct elements (numba: 32-byte
            sectors): every one read once, written once, and both where atomics update it.
        flops: floating-point operations of the whole launch; an addition is one. Count them from
            the definition: of products of matrices, 2·M·N·K.
        bytes: in place of those that were traced, for a launch larger than one can trace.
        dtype: of the arithmetic: "float32" on ordinary units, "float16", "bfloat16" on tensor
            cores.
        gpu: whose data sheet to take, as `roofline.DATA_SHEETS` has it.
        ceiling: in its place, a `Ceiling` that you measured.

    Returns:
        A `Roof`: `floor_ms`, `bound`, `share(ms)` of a time that you measured; it prints.

    Raises:
        LookupError: no such GPU in the table.
        ValueError: neither a whole trace nor bytes.
    """
    if bytes is None:
        if _of_gluon(seen):
            raise ValueError("copies of tiles are no distinct elements: bytes= is needed")
        if seen is None or getattr(seen, "scale", 1) != 1:
            raise ValueError("only some blocks were traced, so that bytes= of the launch is needed")
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
        what = f"{error.name} is not installed: pip install 'warplens[{extra}]'"
        raise ModuleNotFoundError(what, name=error.name) from None


def _is(seen, module):
    """Whether `seen` is a trace of the class that `module` has."""
    return type(seen).__module__ == module


def _of_gluon(seen):
    """Whether it is a `GluonTrace`."""
    return _is(seen, GLUON)


def _seen(kernel, launch, named):
    """The trace itself, or that of a launch."""
    if hasattr(kernel, "faults"):
        if launch or named:
            raise TypeError("a trace is given, so that there is nothing to launch")
        return kernel
    if not launch:
        raise TypeError("grid is missing: a launch is (kernel, grid, block, *args)")
    return trace(kernel, *launch, **named)


def _on_cpu(value):
    """An argument where the simulators can read it."""
    if hasattr(value, "copy_to_host"):  # of numba
        return value.copy_to_host()
    if hasattr(value, "block_shape"):  # a descriptor
        return dataclasses.replace(value, base=_on_cpu(value.base))
    if hasattr(value, "data_ptr") and value.device.type != "cpu":
        return value.cpu()
    if type(value).__module__.startswith("cupy"):
        return value.get()
    return value
