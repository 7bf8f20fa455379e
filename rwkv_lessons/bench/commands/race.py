"""The race of lesson 18: one call of each way to compute WKV-6, through torch.profiler.

python -m rwkv_lessons.bench race                        prints it; without a GPU, the CPU's part
python -m rwkv_lessons.bench race --traces runs          and leaves traces for TensorBoard, Perfetto
python -m rwkv_lessons.bench race --record               on a GPU; lesson 18 shows the result

Every way starts from what a model has: r, k, v and the raw decay, `[B, T, C]`, and a state. What it
takes to bring these into the layout that a kernel wants is part of the call.
"""

import inspect
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.measure import LIMITS, one_line, relative_error
from rwkv_lessons.bench.taken import methods_taken
from rwkv_lessons.operations.entries import lesson
from rwkv_lessons.records.fingerprint import source_of
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.records.traces import CALL, read_events, save_traces, summed_up
from rwkv_lessons.wkv6 import METHODS, wkv6, wkv6_reference

NAME, LESSON = "wkv6-race", "18_the_race"
LOOP, HEADS_FIRST = "torch loop", "recurrent, heads first"
SHAPES = ((1, 54, 32, 64), (1, 4096, 32, 64))  # the seed's prompt, and a long one
QUICK = (1, 16, 2, 16)
DTYPE = "float16"
BUDGET_MS = 150  # of repetitions, for each kind of time
SLOW_MS = 100  # a call that takes longer is timed three times, by the clock on the wall only, and
# profiled without the host's operators
TIMING = "torch.profiler for kernels; device: CUDA events; wall clock without a profiler; medians"


@dataclass(frozen=True)
class Entrant:
    """One way: `call(*inputs)` returns o, `[B, T, C]` or `[B, T, H, N]`, and the last state."""

    method: str
    call: object
    source: str
    note: str | None = None
    heads_first: bool = False  # the model's tensors are [B, H, T, N]


def inputs(shape, dtype=DTYPE, device="cpu"):
    """r, k, v, w, u, s as a model has them: see the lesson's `torch_loop`."""
    tensors = lesson(LESSON).inputs(*shape, dtype=getattr(torch, dtype))
    return tuple(x.to(device) for x in tensors)


def entrants(device):
    """The ways that there are on a device, the slowest first."""
    loop = lesson(LESSON).torch_loop
    entries = [
        Entrant(LOOP, loop, f"solutions/{LESSON}.py::torch_loop", "plain torch, heads first")
    ]
    if device.type != "cuda":
        return [*entries, on_cpu()]
    notes = {"cuda": "takes the log decay: exp and neg before it"}
    for name in ("cuda", "recurrent", "chunked"):
        if name in METHODS:
            f = METHODS[name]
            call = _from_model(_with_log_decay(f) if name == "cuda" else _raw(f))
            entries.append(Entrant(name, call, _source(f), notes.get(name)))
    if "recurrent" in METHODS:
        f = METHODS["recurrent"]
        note = "of a model that keeps [B, H, T, N]: copies before and after"
        entries.append(Entrant(HEADS_FIRST, _from_heads_first(_raw(f)), _source(f), note, True))
    return entries


def on_cpu():
    """The library's way without a GPU."""
    return Entrant("wkv6 on the CPU", _from_model(_raw(wkv6)), _source(wkv6), "no GPU in it")


def _source(f):
    return source_of(inspect.unwrap(f))


def _raw(f):
    return lambda r, k, v, w, u, s: f(r, k, v, w, u, s, raw_decay=True)


def _with_log_decay(f):
    return lambda r, k, v, w, u, s: f(r, k, v, -torch.exp(w), u, s)


def _from_model(f):
    """Tokens first: splitting C into heads is a view of the same memory."""

    def call(r, k, v, w, u, s):
        return f(*(x.unflatten(2, u.shape) for x in (r, k, v, w)), u, s)

    return call


def _from_heads_first(f):
    """r, k, v, w are [B, H, T, N], as attention has them, and so is o: five copies."""

    def call(r, k, v, w, u, s):
        r, k, v, w = (x.transpose(1, 2).contiguous() for x in (r, k, v, w))
        o, s = f(r, k, v, w, u, s)
        return o.transpose(1, 2).contiguous(), s

    return call


def inputs_of(entrant, inputs):
    """The inputs as the entrant's model has them."""
    *tokens, u, s = inputs
    if entrant.heads_first:
        tokens = [x.unflatten(2, u.shape).transpose(1, 2).contiguous() for x in tokens]
    return *tokens, u, s


@torch.no_grad()
def expected(inputs):
    """o of the recurrence in float64, `[B, T, H, N]`."""
    r, k, v, w, u, s = (x.double() for x in inputs)
    r, k, v, w = (x.unflatten(2, u.shape) for x in (r, k, v, w))
    return wkv6_reference(r, k, v, -torch.exp(w), u, s)[0]


def error_of(entrant, o, want):
    """‖o − want‖ / ‖want‖, in whichever layout o is."""
    o = o.transpose(1, 2) if entrant.heads_first else o
    return relative_error(o.reshape(want.shape), want)


def traced(run, device, file=None, host=True):
    """The `TraceEvent`s of one call of `run`, which has been called before.

    Args:
        file: gets all that the profiler saw.
        host: whether it looks at the host's operators, too: a hundred for each token of a loop.
    """
    activities = [ProfilerActivity.CPU] if host or device.type != "cuda" else []
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=activities, acc_events=True) as profiler:
        with record_function(CALL):
            run()
            timing.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(file or Path(folder) / "x.pt.trace.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(file))
        return read_events(json.loads(file.read_text()))


@torch.no_grad()
def race(device, shapes=None, budget_ms=BUDGET_MS, folder=None):
    """Runs every entrant at every shape, and its CUDA graph.

    Args:
        folder: gets a trace of each call, as the profiler writes it.

    Yields:
        (`Measurement`, `CallTrace`), or (`Measurement` with a problem, None).
    """
    traced(lambda: torch.zeros(1, device=device), device)  # the profiler's first start is slow
    for shape in shapes or SHAPES:
        common = inputs(shape, device=device)
        want = expected(common)
        for entrant in entrants(device):
            yield from _runs(entrant, inputs_of(entrant, common), shape, want, budget_ms, folder)
        if device.type == "cuda" and shape == SHAPES[0]:
            copies = tuple(x.cpu() for x in common)
            yield from _runs(on_cpu(), copies, shape, want.cpu(), budget_ms, folder)


def _runs(entrant, own, shape, want, budget_ms, folder):
    """One entrant at one shape: as it is called, and replayed."""
    device, dtype = want.device, str(own[0].dtype).removeprefix("torch.")
    code_fields = code(entrant.source)
    row = Measurement(entrant.method, tuple(shape), dtype, note=entrant.note, **code_fields)
    eager = lambda: entrant.call(*own)  # noqa: E731
    row, run = _checked(entrant, row, lambda: eager, want)
    yield _timed(row, run, device, budget_ms, folder) if run else (row, None)
    slow = entrant.method == LOOP and shape[1] > SHAPES[0][1]
    if run and device.type == "cuda" and not slow:
        row = Measurement(f"{entrant.method}, graph", tuple(shape), dtype, **code_fields)
        captured = lambda: lesson(LESSON).capture(entrant.call, own)  # noqa: E731
        row, run = _checked(entrant, row, captured, want)
        yield _timed(row, run, device, budget_ms, folder, True) if run else (row, None)


def _checked(entrant, row, prepare, want):
    """The row with its error, and what `prepare` returns; None if it is not to be timed."""
    try:
        with methods_taken() as methods_called:
            run = prepare()
            error = error_of(entrant, run()[0], want)
    except Exception as problem:  # the others go on
        return replace(row, problem=one_line(problem)), None
    row = replace(row, **code(entrant.source, *sorted(methods_called)))
    if error <= LIMITS[row.dtype]:
        return replace(row, error=error), run
    return replace(row, problem=f"relative error {error:.2g}: not timed"), None


def _timed(row, run, device, budget_ms, folder, replayed=False):
    slow = timing.few_host_times(run, device, 1) > SLOW_MS
    if slow:
        wall, times = timing.few_host_times(run, device), {}
    else:
        wall = timing.host_time(run, device, budget_ms)
        times = timing.device_times(run, device, budget_ms)._asdict()
    row = replace(row, host_ms=wall, **(times if device.type == "cuda" else {}))
    method = row.method.removesuffix(", graph")
    name = f"{row.method}-{row.shape[1]}".replace(", ", "-").replace(" ", "_")
    file = Path(folder) / f"{name}.pt.trace.json" if folder else None
    events = traced(run, device, file, host=not slow)
    return row, summed_up(method, row.shape, row.dtype, 1e3 * wall, events, replayed)


def command(options):
    """Races, prints, and keeps the result if asked to."""
    from rwkv_lessons.bench.commands.run import recording
    from rwkv_lessons.bench.show import console

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and options.record is not None:
        raise ValueError("no NVIDIA GPU here: times of a CPU are not recorded")
    origin = recording(options, NAME, options.quick)
    if device.type != "cuda":
        console().print("no NVIDIA GPU here: the ways that a CPU has, not for comparison")
    shapes = [QUICK] if options.quick else SHAPES if device.type == "cuda" else SHAPES[:1]
    rows, traces = [], []
    for row, trace in race(device, shapes, folder=options.traces):
        rows.append(row)
        traces += [trace] if trace else []
        console().print(line(row, trace), highlight=False)
    if origin:
        file = save_traces(options.record or NAME, replace(origin, timing=TIMING), rows, traces)
        console().print(f"recorded: {file}")


def line(row, trace):
    """One result as text."""
    tokens = f"T = {row.shape[1]:5,}  {row.method:29}"
    if not trace:
        return f"{tokens} {row.problem}"
    return (
        f"{tokens} {trace.wall_us:10,.0f} µs a call, {trace.launches:6,} kernels in "
        f"{trace.device_us:9,.1f} µs, the longest {trace.longest[1]:8,.1f} µs, "
        f"copies {trace.copy_us / trace.device_us:4.0%}"
    )
