"""The commands: which methods, at which shapes, and where the rows go."""

import re
from dataclasses import replace
from pathlib import Path

import torch

from rwkv_lessons.bench import methods, timing
from rwkv_lessons.bench.commands import first_call as first
from rwkv_lessons.bench.commands.ceilings import ceilings
from rwkv_lessons.bench.measure import in_float64, make_inputs, measure
from rwkv_lessons.bench.peers import peers
from rwkv_lessons.bench.refuse import refused
from rwkv_lessons.bench.show import console, progress, rows_table
from rwkv_lessons.operations import LADDERS, OF_LADDER, OPERATIONS
from rwkv_lessons.records.provenance import commit_of_files, provenance, version_of
from rwkv_lessons.records.rates import LATENCY_NAMES
from rwkv_lessons.records.schema import Record, load, path, save
from rwkv_lessons.runtime.command_line import WrongArgument
from rwkv_lessons.verify.gate import NOT_RECORDED

FIRST = "wkv6-first"
QUICK_MS = 20  # of repetitions: enough to see that everything works, not to compare
QUICK_NEEDS = "`quick` needs about 10 GB of free GPU memory: close programs that use the GPU."
# What `quick` measures on anybody's GPU: (operation, shape). A tensor has 34 MB or less.
QUICKLY = (
    ("wkv6", (2, 4096, 32, 64)),
    ("wkv6-backward", (2, 4096, 32, 64)),
    ("wkv7", (2, 4096, 32, 64)),
    ("wkv7-backward", (2, 4096, 32, 64)),
    ("wkv6-decode", (64, 1, 32, 64)),
    ("wkv7-decode", (64, 1, 32, 64)),
)


def time_methods(options):
    """Every method of the library, and the peers if asked for."""
    operation = OPERATIONS[options.operation]
    by_name = methods.library(operation.name)
    if options.peers:
        installed, missing = peers(operation.name)
        by_name |= installed
        console().print(*missing, sep="\n")
    _time(options, operation, by_name, operation.dtypes, operation.name)


def time_ladder(options):
    """Every rung of the lessons' ladder and the finished kernel."""
    by_name, ladder = methods.ladder(options.ladder), LADDERS[options.ladder]
    operation = OF_LADDER[options.ladder]
    asked_shapes(options, operation)
    choose(by_name, options.methods)
    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: the rungs are CUDA kernels, they cannot be timed")
    _time(options, operation, by_name, ladder.dtypes, ladder.plan.name, options.ladder)


def measure_ceilings(options):
    """The most bytes and operations a second of this GPU, and how long a load takes."""
    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: there are no ceilings to measure")
    origin = recording(options, "ceilings")
    measured = ceilings(torch.device("cuda"))
    for name, value in measured.items():
        text = f"{value:.0f} ns" if name in LATENCY_NAMES else f"{value / 1e12:.2f} T"
        console().print(f"{name:20} {text}")
    keep(options, "ceilings", origin, (), measured)


def time_first_calls(options):
    """How long the first call takes of a process that has no compiled kernel."""
    from rwkv_lessons.wkv6 import METHODS

    chosen = choose(dict.fromkeys([*first.METHODS, *METHODS]), options.methods or first.METHODS)
    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: nothing is compiled for a first call")
    origin = recording(options, FIRST, options.methods, options.dtype)
    dtypes = options.dtype or ["float32", "bfloat16"]
    cases = [(method, x) for method in chosen for x in dtypes]
    rows = list(first.measure(cases))
    console().print(rows_table(rows))
    keep(options, FIRST, origin, rows)


def time_quickly(options, device="cuda"):
    """RWKV-6 and -7 in bfloat16 on this GPU, and its ceilings: a record that a reader sends in.

    Returns:
        The file, <--out>/<GPU>/quick.json. Methods that are wrong at these inputs have no times;
        options are not verified. What does not fit into the GPU's memory is left out.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: there is nothing to measure")
    if not Path(options.out).is_dir():
        raise WrongArgument(f"--out: there is no folder {options.out}")
    release = f"version {version_of('rwkv-lessons')}"  # a wheel has no history
    origin = provenance(options.commit or commit_of_files() or release)
    device, measured, rows, too_large = torch.device(device), {}, [], []
    try:
        measured = ceilings(device)
    except torch.OutOfMemoryError:
        too_large.append("ceilings")
    for name, shape in QUICKLY:
        try:
            for row in _quick_rows(name, shape, device, measured or None):
                rows.append(row)
                console().print(f"{row.method}: {row.outcome}")
        except torch.OutOfMemoryError:
            too_large.append(name)
    too_large += [row.method for row in rows if "OutOfMemoryError" in (row.problem or "")]
    if too_large:
        message = f"out of memory: {', '.join(too_large)}. {QUICK_NEEDS}"
        if all(row.problem for row in rows):
            raise ValueError(message)
        console().print(message)
    file = save(Record("quick", origin, tuple(rows), measured), Path(options.out))
    console().print(rows_table(rows), f"written: {file}; docs/gpus.md says where to send it")
    return file


def _quick_rows(name, shape, device, limits):
    """The rows of one of QUICKLY, named after it."""
    package, by_name = OPERATIONS[name].package, methods.library(name)
    inputs = make_inputs(name, shape, "bfloat16", device)
    expected = in_float64(name, inputs)
    for method in ("chunked", "recurrent", f"{package}_step", package):
        if method in by_name:
            row = measure(name, by_name[method], inputs, expected, timing.BUDGET_MS, limits)
            yield replace(row, method=f"{name}: {method}")


def _time(options, operation, by_name, dtypes, name, start=None):
    """Measures the methods that were found, prints the rows, and records them under `name`.

    Args:
        start: of another name given with --record, if not `name`.
    """
    start = start or name
    check_name(options, start)
    refuse_a_part(options, options.shape, options.dtype, options.methods, options.quick)
    shapes = asked_shapes(options, operation)
    chosen, rows = list(choose(by_name, options.methods).values()), []
    device = device_of(options)
    origin = recording(options, start)
    with progress() as bar:
        task = bar.add_task("", total=None)
        for shape in shapes:
            for dtype in options.dtype or dtypes:
                able = [m for m in chosen if dtype in m.dtypes]
                if not able:
                    continue
                bar.update(task, total=len(able), completed=0, description="float64 reference")
                for row in _rows(options, operation, shape, dtype, able, device, bar, task):
                    rows.append(row)
                    bar.advance(task)
                    bar.console.print(f"done: {row.method}, {dtype}: {row.outcome}")
    console().print(rows_table(rows, operation.letters))
    keep(options, name, origin, rows)


def time_rows(options, operation, measure, timing_text=None):
    """The rows of `measure(shape, dtype, device)`, printed, and recorded if asked.

    Args:
        operation: an `Operation`: its shapes, dtypes and the record's name. Without dtypes to
            choose from, `dtype` is None.
        timing_text: the record's `timing`, if not the usual one.
    """
    shapes, dtypes = asked_shapes(options, operation), getattr(options, "dtype", None)
    device = device_of(options)
    part = options.shape, options.methods, dtypes, options.quick
    origin = recording(options, operation.name, *part)
    rows = []
    for shape in shapes:
        for dtype in dtypes or operation.dtypes or (None,):
            for row in measure(tuple(shape), dtype, device):
                rows.append(row)
                console().print(f"done: {row.method}, {shape}, {row.dtype}: {row.outcome}")
    console().print(rows_table(rows, operation.letters))
    if origin and timing_text:
        origin = replace(origin, timing=timing_text)
    keep(options, operation.name, origin, rows)


def _rows(options, operation, shape, dtype, able, device, bar, task):
    """One row per method of `able`, as they come."""
    inputs = make_inputs(operation.name, shape, dtype, device)
    expected = in_float64(operation.name, inputs)
    budget_ms = options.budget_ms or (QUICK_MS if options.quick else timing.BUDGET_MS)
    limits = recorded_ceilings(device)
    for method in able:
        bar.update(task, description=f"{method.name}, {dtype}")
        yield measure(operation.name, method, inputs, expected, budget_ms, limits)


def asked_shapes(options, operation):
    """Those given with --shape, or the operation's own.

    Raises:
        WrongArgument: a shape has not the operation's letters.
    """
    for shape in options.shape or ():
        try:
            operation.check_shape(shape)
        except ValueError as problem:
            raise WrongArgument(f"--shape: {problem}") from None
    return options.shape or ([operation.quick] if options.quick else operation.shapes)


def choose(by_name, names):
    """Those of `by_name` that are named, in that order; all of them without names.

    Raises:
        WrongArgument: a name is none of `by_name`.
    """
    unknown = [name for name in names or () if name not in by_name]
    if unknown:
        raise WrongArgument(
            f"--methods: no method {', '.join(unknown)}: there are {', '.join(by_name)}"
        )
    return {name: by_name[name] for name in names or by_name}


def device_of(options):
    """The GPU; a CPU for a quick try, which is never recorded.

    Raises:
        ValueError: without a GPU, this is no quick try, or is to be recorded.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if not options.quick:
        raise ValueError("no NVIDIA GPU here: add --quick for a small shape on the CPU")
    if options.record is not None:
        raise ValueError("no NVIDIA GPU here: times of a CPU are not recorded")
    console().print("no NVIDIA GPU here: on the CPU, wall clock, not for comparison")
    return torch.device("cpu")


def recorded_ceilings(device):
    """The ceilings of this GPU, or None if nobody measured them."""
    if device.type != "cuda":
        return None
    file = path("ceilings", torch.cuda.get_device_name(device))
    return load(file).ceilings if file.exists() else None


def recording(options, name, *part):
    """The `Provenance` where the result is kept, else None; raises where it cannot be kept.

    Args:
        name: of the record, and what another name given with --record starts with.
        part: options that are set where only a part of what `name` holds is measured.
    """
    refuse_a_part(options, *part)
    check_name(options, name)
    return provenance(options.commit) if options.record is not None else None


def refuse_a_part(options, *part):
    """The record of a command's own name holds everything that the command measures."""
    if options.record == "" and any(part):
        raise WrongArgument("this run is a part: record it under a name of its own, --record NAME")


def check_name(options, name):
    """`operation_of` finds by a record's name what it is a record of."""
    if options.record and not re.fullmatch(rf"{name}(-\w+)*", options.record):
        raise WrongArgument(f"--record {options.record!r}: needs {name}-something")


def keep(options, name, origin, rows=(), ceilings=None):
    """Writes the record, where `recording` has said that there is one.

    What verify finds wrong, with any option, has the reason instead of its time.
    """
    if origin:
        rows = tuple(refused(name, row) for row in rows)
        for row in rows:
            if (row.problem or "").startswith(NOT_RECORDED):
                console().print(f"{row.method}, {row.dtype}: {row.problem}")
        record = Record(options.record or name, origin, rows, ceilings or {})
        console().print(f"recorded: {save(record)}")
