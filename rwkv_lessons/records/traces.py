"""What calls did, as a profiler saw it: in a record, under "traces".

Events have what those of a Chrome trace have, the format that torch.profiler writes and Perfetto
and TensorBoard read: cat, name, ts, dur, in microseconds. Kept are one "call", its launches
("launch") and what ran ("kernel": copies and memsets of the device among them).
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rwkv_lessons.records.profiles import FREE
from rwkv_lessons.records.schema import Record, load_with, save_with

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of torch.profiler
BY_HOST = ("cuda_runtime", "cuda_driver")
LAUNCHES = ("Launch", "Memcpy", "Memset")  # in names of what the host does for them
COPIES = ("copy", "Memcpy", "transpose")  # in names of kernels that move or cast elements
CALL = "call"  # the annotation around a call
KEPT = 800  # events of a call; of more, the first are kept, and totals are of all


class TraceEvent(NamedTuple):
    """Microseconds; ts from the start of the call. Its category is "call", "launch" or "kernel"."""

    cat: str
    name: str
    ts: float
    dur: float


@dataclass(frozen=True)
class CallTrace:
    """One call. `wall_us` is its wall clock with no profiler attached, which slows launches down.

    Attributes:
        replayed: the call is a replay of a CUDA graph.
        launches: how many kernels ran; device_us, the time of all; longest, (name, us) of the one
            that took most, its runs added up; copy_us, of those that copy. Of all events, also
            where not all are kept.
    """

    method: str
    shape: tuple[int, int, int, int]
    dtype: str
    wall_us: float
    events: tuple[TraceEvent, ...]
    launches: int
    device_us: float
    longest: tuple[str, float]
    copy_us: float
    replayed: bool = False

    @property
    def whole(self):
        """Whether every event is kept."""
        return self.launches == sum(event.cat == "kernel" for event in self.events)


def read_events(trace):
    """The `TraceEvent`s of a Chrome trace of torch.profiler, as loaded from JSON, in order.

    Without a GPU the host runs each operator itself: the innermost ones stand for kernels. Where
    no annotation is named "call", the call is from the first event to the end of the last.
    """
    timed = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    of_call = [
        TraceEvent("kernel", e["name"], e["ts"], e["dur"]) for e in timed if e["cat"] in ON_DEVICE
    ]
    if of_call:
        launches = [e for e in timed if e["cat"] in BY_HOST and _launches(e["name"])]
        of_call += [TraceEvent("launch", e["name"], e["ts"], e["dur"]) for e in launches]
    else:
        of_call = _innermost([e for e in timed if e["cat"] == "cpu_op"])
    calls = [e for e in timed if e["name"] == CALL and e["cat"] == "user_annotation"]
    if calls:
        start, end = calls[0]["ts"], calls[0]["ts"] + calls[0]["dur"]
    else:
        start = min((e.ts for e in of_call), default=0)
        end = max((e.ts + e.dur for e in of_call), default=0)
    inside = [e for e in of_call if start <= e.ts <= end]
    events = [TraceEvent(CALL, CALL, start, end - start), *sorted(inside, key=lambda e: e.ts)]
    return tuple(e._replace(ts=round(e.ts - start, 3), dur=round(e.dur, 3)) for e in events)


def _launches(name):
    return any(word in name for word in LAUNCHES)


def _innermost(operators):
    """The operators that touch elements themselves: those that call no such others."""
    operators = sorted(operators, key=lambda e: (e["ts"], -e["dur"]))
    operators = [e for e in operators if e["name"].removeprefix("aten::") not in FREE]
    following = [*operators[1:], None]  # may be one longer
    return [
        TraceEvent("kernel", e["name"], e["ts"], e["dur"])
        for e, after in zip(operators, following, strict=False)
        if after is None or after["ts"] >= e["ts"] + e["dur"] or after["tid"] != e["tid"]
    ]


def summed_up(method, shape, dtype, wall_us, events, replayed=False, most=KEPT):
    """A `CallTrace` of all events of a call, of which the first are kept.

    Raises:
        ValueError: there is no kernel among them.
    """
    by_name, kernels = Counter(), [e for e in events if e.cat == "kernel"]
    for event in kernels:
        by_name[event.name] += event.dur
    if not kernels:
        raise ValueError("the profiler saw no kernel: is CUPTI usable here?")
    name, us = by_name.most_common(1)[0]
    copied = sum(us for name, us in by_name.items() if any(word in name for word in COPIES))
    device_us, first = sum(by_name.values()), sorted(events, key=lambda e: e.ts)[:most]
    return CallTrace(
        method, tuple(shape), dtype, wall_us, tuple(first),
        len(kernels), device_us, (name, us), copied, replayed,
    )  # fmt: skip


def save_traces(name, provenance, rows, traces, folder=None):
    """Writes a record with its traces; returns its path."""
    return save_with(Record(name, provenance, rows), "traces", map(_pack, traces), folder)


def load_traces(name, gpu, folder=None):
    """(provenance, list of `CallTrace`) of a record; LookupError if there is none."""
    provenance, traces = load_with(name, "traces", gpu, folder)
    return provenance, [_unpack(packed) for packed in traces]


AS_WRITTEN = {  # category → that of torch.profiler, and who: 0 is the device, 1 the host
    "call": ("user_annotation", {"pid": 1, "tid": 1}, {}),
    "launch": ("cuda_runtime", {"pid": 1, "tid": 1}, {}),
    "kernel": ("kernel", {"pid": 0, "tid": 7}, {"device": 0, "stream": 7}),
}


def write_chrome(trace, file, gpu="GPU"):
    """Writes a `CallTrace` as torch.profiler would, for Perfetto and TensorBoard's plugin."""
    names = {0: gpu, 1: f"host: {trace.method}"}
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
        for pid, name in names.items()
    ]
    for event in trace.events:
        category, who, args = AS_WRITTEN[event.cat]
        fields = {"name": event.name, "ts": event.ts, "dur": event.dur, "args": args}
        events.append({"ph": "X", "cat": category} | who | fields)
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": gpu}]}
    text = json.dumps(whole | {"displayTimeUnit": "ms", "traceEvents": events})
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text, encoding="utf-8")


def _pack(trace):
    """Totals first, then each event as [category, name, ts, dur], the first two by number."""
    categories, names = [*AS_WRITTEN], list(dict.fromkeys(e.name for e in trace.events))
    return {
        "method": trace.method,
        "shape": trace.shape,
        "dtype": trace.dtype,
        "replayed": trace.replayed,
        "wall_us": round(trace.wall_us, 1),
        "launches": trace.launches,
        "device_us": round(trace.device_us, 3),
        "longest": [trace.longest[0], round(trace.longest[1], 3)],
        "copy_us": round(trace.copy_us, 3),
        "names": names,
        "events": [
            [categories.index(e.cat), names.index(e.name), e.ts, e.dur] for e in trace.events
        ],
    }


def _unpack(packed):
    categories, names = [*AS_WRITTEN], packed.pop("names")
    events = tuple(
        TraceEvent(categories[c], names[n], ts, dur) for c, n, ts, dur in packed["events"]
    )
    shape, longest = tuple(packed["shape"]), tuple(packed["longest"])
    return CallTrace(**packed | {"events": events, "shape": shape, "longest": longest})
