"""A profile of the recurrence in plain torch: what a token launches, and when each kernel runs.

python -m rwkv_lessons.bench profile wkv5 --record    on a GPU; lesson 02 shows the result

A record `<operation>-profile.json` has the rows of any record (wall clock without the profiler,
error, source) and, under "profiles", every kernel in the order it ran.
"""

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rwkv_lessons.records.schema import Provenance, Record, Row, path, save

LOOPS = {"wkv5": ("01_five_loops", "torch_loop")}  # operation → lesson and function
SHAPE = (1, 54, 32, 64)  # B, T, H, N: one prompt of 54 tokens through a 1.6-billion model's layer
DTYPES = ("float32", "float16")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a Chrome trace
TIMING = "torch.profiler for each kernel; wall clock without it, median"


class Kernel(NamedTuple):
    """One run of a kernel; microseconds, counted from the start of the first."""

    name: str
    start: float
    us: float


@dataclass(frozen=True)
class Profile:
    """One forward pass. `wall_us` is its wall clock with no profiler attached."""

    shape: tuple[int, int, int, int]
    dtype: str
    wall_us: float
    kernels: tuple[Kernel, ...]

    @property
    def tokens(self):
        return self.shape[1]

    @property
    def kernel_us(self):
        """Time in which the device worked."""
        return sum(kernel.us for kernel in self.kernels)

    @property
    def elementwise_share(self):
        """Share of the kernel time: torch has "elementwise" in the names of these kernels."""
        return sum(k.us for k in self.kernels if "elementwise" in k.name) / self.kernel_us

    def top(self):
        """(name, how often, microseconds in all), the most expensive first."""
        calls, us = Counter(), Counter()
        for kernel in self.kernels:
            calls[kernel.name] += 1
            us[kernel.name] += kernel.us
        return [(name, calls[name], time) for name, time in us.most_common()]


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
    from rwkv_lessons.lab.course.exercises import solutions

    stem, name = LOOPS[operation]
    loop = getattr(solutions(stem), name)
    inputs = make_inputs(operation, shape, dtype, torch.device("cuda"))
    with torch.no_grad():
        error = relative_error(loop(*inputs)[0], in_float64(operation, inputs))
        return profile(lambda: loop(*inputs), shape, dtype), error


def command(options):
    """Profiles in every dtype, prints what came out, and keeps it if asked to."""
    import torch

    from rwkv_lessons.bench.measure import LIMITS
    from rwkv_lessons.records.fingerprint import fingerprint
    from rwkv_lessons.records.provenance import provenance

    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: there are no kernels to profile")
    here = provenance(options.commit) if options.record is not None else None  # or fail now
    source = "solutions/{}.py::{}".format(*LOOPS[options.operation])
    profiles, rows = [], []
    for dtype in DTYPES:
        found, error = profile_loop(options.operation, dtype)
        if not error <= LIMITS[dtype]:
            raise ValueError(f"the torch loop is off by {error:.1e} in {dtype}: nothing recorded")
        print(summary(found), end="\n\n")
        profiles.append(found)
        how = {"sources": (source,), "sha256": fingerprint(source), "note": "torch, one by one"}
        rows.append(
            Row("torch_loop", SHAPE, dtype, host_ms=found.wall_us / 1e3, error=error, **how)
        )
    if here:
        name = options.record or f"{options.operation}-profile"
        file = save_profiles(name, replace(here, timing=TIMING), tuple(rows), profiles)
        print(f"recorded: {file}")


def summary(found):
    """A profile as text: totals, then the kernels that take the most time."""
    launches = len(found.kernels)
    lines = [
        f"torch loop, {found.dtype}, B, T, H, N = {', '.join(map(str, found.shape))}",
        f"  {launches:,} kernels launched, {launches / found.tokens:.1f} per token",
        f"  {found.kernel_us:,.0f} µs in kernels, {found.wall_us:,.0f} µs by the clock on the wall",
        f"  {found.elementwise_share:.0%} of the kernel time is elementwise",
    ]
    top = found.top()[:6]
    lines += [f"  {us:7,.0f} µs {calls:5} × {brief(name)}" for name, calls, us in top]
    return "\n".join(lines)


def brief(name):
    """A kernel's name without the types in it: torch's and cuBLAS' fill several lines."""
    import re

    plain = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    base = re.split(r"[<(]", plain)[0].split("::")[-1]
    if base.startswith("Kernel"):  # CUTLASS: what it does is its first argument
        return re.split(r"[<>(,]", plain)[1].strip().split("::")[-1]
    inside = re.findall(r"\w*[Ff]unctor\w*|\w+_kernel_cuda|direct_copy", plain[len(base) :])
    does = next((word for word in inside if word not in ("BinaryFunctor", "BUnaryFunctor")), "")
    return f"{base} ({does})" if does else base


def save_profiles(name, provenance, rows, profiles, folder=None):
    """Writes a record with every kernel of every profile; returns its path."""
    file = save(Record(name, provenance, rows), folder)
    data = json.loads(file.read_text(encoding="utf-8"))
    text = json.dumps(data, indent=2, ensure_ascii=False).removesuffix("\n}")
    packed = ",\n".join("    " + json.dumps(_pack(p), ensure_ascii=False) for p in profiles)
    file.write_text(f'{text},\n  "profiles": [\n{packed}\n  ]\n}}\n', encoding="utf-8")
    return file


def load_profiles(name, card, folder=None):
    """(provenance, {dtype: `Profile`}) of a record; LookupError if there is none."""
    file = path(name, card, folder)
    if not file.exists():
        raise LookupError(f"no record {name!r} of an {card} yet")
    data = json.loads(file.read_text(encoding="utf-8"))
    found = {packed["dtype"]: _unpack(packed) for packed in data["profiles"]}
    return Provenance(**data["provenance"]), found


def _pack(found):
    """What a reader of the file wants to know first, then each kernel as [name, start, time]."""
    names = list(dict.fromkeys(kernel.name for kernel in found.kernels))
    return {
        "shape": found.shape,
        "dtype": found.dtype,
        "wall_us": round(found.wall_us, 1),
        "kernel_us": round(found.kernel_us, 1),
        "launches_per_token": round(len(found.kernels) / found.tokens, 2),
        "elementwise_share": round(found.elementwise_share, 4),
        "top": [[names.index(name), calls, round(us, 1)] for name, calls, us in found.top()],
        "names": names,
        "kernels": [[names.index(k.name), k.start, k.us] for k in found.kernels],
    }


def _unpack(packed):
    names = packed["names"]
    kernels = tuple(Kernel(names[n], start, us) for n, start, us in packed["kernels"])
    return Profile(tuple(packed["shape"]), packed["dtype"], packed["wall_us"], kernels)
