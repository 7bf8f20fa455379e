"""Which cases a process looks at one after the other, and in which order these batches start.

Compiling takes nearly all of the time. So what needs the same machine code is one batch, and what
needs some of another's waits until that has put it into Triton's cache; and the longest start
first, as one that starts last is waited for by all.
"""

import heapq
import threading
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

from rwkv_lessons.runtime.devices import H200

from .cases import CheckedCase, weight

# `seconds` of an operation's checks: until what a case launches is compiled, and looked at for the
# first time, on an H200 with 16 cores, 16 processes at a time (Triton 3.6, numba-cuda 0.30, in
# November 2026). `verify --json` has newer ones: 20 % more or less change nothing.
PREFILL = 40  # query tokens of the shapes that `mla` and `prefill` prefill with
NUMBA_SECONDS = 20  # forward and two sweeps
TORCH_SECONDS = 0.3


@dataclass
class Batch:
    """Cases for one process, and the batches that wait for what they compile."""

    cases: list[CheckedCase]
    seconds: float  # estimated
    then: list["Batch"] = field(default_factory=list)

    @property
    def seconds_to_end(self):
        """Until the last of those that wait has ended."""
        return self.seconds + max((batch.seconds for batch in self.then), default=0)


def batches(cases):
    """The `Batch`es that wait for none, the one to be started first in front."""
    by_family = {}
    for case in cases:
        kernels = kernels_of(case)
        by_family.setdefault(kernels[:-1], {}).setdefault(kernels, []).append(case)
    heads = []
    for kinds in by_family.values():
        family = [Batch(of_kernels, _seconds(of_kernels)) for of_kernels in kinds.values()]
        first = max(family, key=lambda batch: batch.seconds)
        first.then = [batch for batch in family if batch is not first]
        heads.append(first)
    return sorted(heads, key=_urgency)


def kernels_of(case):
    """Cases with the same key launch the same machine code; all but its last part, some of it."""
    o = case.options
    *_, K, V = case.sizes
    method, dtypes, tiles = method_of(case), case.dtype, ""
    makes = [o.get(name) for name in ("raw_decay", "decay", "packed", "w_dtype", "pages")]
    if method == "cuda":  # its options are made of copies: in float32, of what is scaled or raw
        dtypes = tuple("float32" if o.get(x) else case.dtype for x in ("scale", "raw_decay"))
        makes = [_heads(case) > H200.sms]  # a thread has twice as many elements then
    elif case.operation == "mla" and case.sizes[1] >= PREFILL:  # of pages it makes a copy first
        makes = ["lengths" in o or "pages" in o, case.dtype == "float32" or case.shape]
        tiles = case.shape  # in float32 keys are expanded for few queries, too: the same forward
    elif case.operation == "mla":
        makes.append(case.shape)
    elif case.operation == "wkv6" and method == "chunked" and case.dtype != "float32":
        tiles = o.get("scale")  # a constant of the kernels for tiles
    return case.operation, method == "cuda", dtypes, K, V, tuple(makes), tiles


def method_of(case):
    """The method that computes: that of the case, or the one that the library's own rule picks."""
    if case.operation == "wkv5" and case.method == "wkv5":
        return "cuda"
    if case.operation != "wkv6" or case.method != "wkv6":
        return case.method
    import torch

    from rwkv_lessons.wkv6 import method_for

    *_, T, _, K, V = case.sizes
    dtype, packed = getattr(torch, case.dtype), bool(case.options.get("packed"))
    return method_for("cuda", dtype, T, _heads(case), max(K, V), case.gradients, packed)


def _heads(case):
    """B·H of a launch: packed sequences have as many as if each were alone, in numba."""
    B, _, H, *_ = case.sizes
    return H if case.options.get("packed") else B * H


def _seconds(cases):
    """An estimate for a batch: each of its shapes is compiled for once."""
    if method_of(cases[0]) == "cuda":
        return NUMBA_SECONDS
    by_shape = {}
    for case in cases:
        name = replace(case, method=method_of(case)).name
        seconds = (s for x, s in case.checks.seconds if fnmatch(name, f"{case.operation} / {x}"))
        by_shape[case.shape] = max(by_shape.get(case.shape, 0), next(seconds, TORCH_SECONDS))
    return sum(by_shape.values())


def _urgency(batch):
    return -batch.seconds_to_end, -sum(map(weight, batch.cases))


class Schedule:
    """Hands batches out to threads: of those that wait for none, the one that takes longest."""

    def __init__(self, cases):
        self._ready, self._running, self._number = [], 0, 0
        self._changed = threading.Condition()
        for batch in batches(cases):
            self._add(batch)

    def __iter__(self):
        """Batches until there are none: the next one is asked for when the last has been done."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or not self._running)
                if not self._ready:
                    return
                batch = heapq.heappop(self._ready)[-1]
                self._running += 1
            try:
                yield batch
            finally:
                with self._changed:
                    for waiting in batch.then:
                        self._add(waiting)
                    self._running -= 1
                    self._changed.notify_all()

    def _add(self, batch):
        self._number += 1  # two of the same urgency go in the order they came
        heapq.heappush(self._ready, (*_urgency(batch), self._number, batch))
