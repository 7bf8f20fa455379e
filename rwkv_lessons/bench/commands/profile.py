"""A profile of the recurrence in plain torch: what a token launches, and when each kernel runs.

python -m rwkv_lessons.bench profile wkv5 --record    on a GPU; lesson 02 shows the result

Of an operation with a `torch_loop`. The record's format is in records/profiles.py.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import lesson
from rwkv_lessons.records.profiles import Kernel, Profile, brief, save_profiles
from rwkv_lessons.records.schema import Measurement, code

SHAPE = (1, 54, 32, 64)  # B, T, H, N: one prompt of 54 tokens through a 1.6-billion model's layer
DTYPES = ("float32", "float16")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a Chrome trace
TIMING = "torch.profiler for each kernel; wall clock without it, median"


def read_kernels(trace):
    """The kernels in a Chrome trace (as loaded from JSON), in the order they ran."""
    ran = [event for event in trace["traceEvents"] if event.get("cat") in ON_DEVICE]
    ran.sort(key=lambda event: event["ts"])
    first = ran[0]["ts"] if ran else 0
    return tuple(Kernel(e["name"], round(e["ts"] - first, 3), e["dur"]) for e in ran)


def profile(f, shape, dtype):
    """Profiles one call of `f` on this process's GPU, after a call that warms everything up.

    Raises:
        ValueError: the profiler saw no kernel: its driver library, CUPTI, is not usable.
    """
    import torch
    from torch.profiler import ProfilerActivity

    from rwkv_lessons.bench.timing import host_time

    wall_ms = host_time(f, torch.device("cuda"))
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    for _ in range(2):  # the first start of the profiler is slow
        with torch.profiler.profile(activities=activities) as profiler:
            f()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "loop.trace.json"
        profiler.export_chrome_trace(str(file))
        kernels = read_kernels(json.loads(file.read_text()))
    if not kernels:
        raise ValueError("the profiler saw no kernel: is CUPTI usable here?")
    return Profile(tuple(shape), dtype, 1e3 * wall_ms, kernels)


def profile_loop(operation, dtype, shape=SHAPE):
    """(the profile of the torch loop on this GPU, its error against float64)."""
    import torch

    from rwkv_lessons.bench.measure import in_float64, make_inputs, relative_error

    stem, name = OPERATIONS[operation].torch_loop
    loop = getattr(lesson(stem), name)
    inputs = make_inputs(operation, shape, dtype, torch.device("cuda"))
    with torch.no_grad():
        error = relative_error(loop(*inputs)[0], in_float64(operation, inputs))
        return profile(lambda: loop(*inputs), shape, dtype), error


def command(options):
    """Profiles in every dtype, prints what came out, and keeps it if asked to."""
    import torch

    from rwkv_lessons.bench.measure import LIMITS
    from rwkv_lessons.records.provenance import provenance

    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: there are no kernels to profile")
    origin = provenance(options.commit) if options.record is not None else None  # or fail now
    source = "solutions/{}.py::{}".format(*OPERATIONS[options.operation].torch_loop)
    profiles, rows = [], []
    for dtype in DTYPES:
        profile, error = profile_loop(options.operation, dtype)
        if not error <= LIMITS[dtype]:
            raise ValueError(f"the torch loop is off by {error:.1e} in {dtype}: nothing recorded")
        print(summary(profile), end="\n\n")
        profiles.append(profile)
        fields = code(source) | {"note": "torch, one by one"}
        rows.append(
            Measurement(
                "torch_loop", SHAPE, dtype, host_ms=profile.wall_us / 1e3, error=error, **fields
            )
        )
    if origin:
        name = options.record or f"{options.operation}-profile"
        file = save_profiles(name, replace(origin, timing=TIMING), tuple(rows), profiles)
        print(f"recorded: {file}")


def summary(profile):
    """A profile as text: totals, then the kernels that take the most time."""
    launches = len(profile.kernels)
    lines = [
        f"torch loop, {profile.dtype}, B, T, H, N = {', '.join(map(str, profile.shape))}",
        f"  {launches:,} kernels launched, {launches / profile.tokens:.1f} per token",
        f"  {profile.kernel_us:,.0f} µs in kernels, {profile.wall_us:,.0f} µs of wall-clock time",
        f"  {profile.elementwise_share:.0%} of the kernel time is elementwise",
    ]
    top = profile.top()[:6]
    lines += [f"  {us:7,.0f} µs {calls:5} × {brief(name)}" for name, calls, us in top]
    return "\n".join(lines)
