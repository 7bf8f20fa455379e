"""Limits on the traffic of a time-x kernel in its traced launches, each with its reason."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

# A limit is well below what it has to refuse. A little above it, the check warns and passes: the
# launches are small, and edges weigh more in them than in a long row.
BAND = 1.2


@dataclasses.dataclass(frozen=True)
class Most:
    """A limit on what a kernel does in a traced launch.

    Args:
        text: what is counted, "reads of shared memory a product".
        count: (Traces of all launches, products of the last of them) → number.
        limit: the most without a warning.
        refused: more than this fails; up to it there is a warning.
    """

    text: str
    count: Callable
    limit: float
    refused: float

    def of(self, traces, products):
        """The count, and as text."""
        value = self.count(traces, products)
        return value, f"{value:.2g} {self.text}"


def global_reads(limit):
    """Elements that threads read from global memory, per product of a w and a k.

    To fill shared memory they read 0.06 in `TRACED`, less in the other launches. A limit is
    below that plus what an operand costs that is read from global memory instead: 1 in `shared`,
    1/4 where a thread has four outputs, 1/16 where it has them of eight rows.
    """
    text = "global reads a product"
    count = lambda traces, products: traces[-1].accesses("global", "load") / products  # noqa: E731
    return Most(text, count, limit, BAND * limit)


def shared_reads(limit):
    """Reads of shared memory by threads, of 4 or 16 bytes, per product.

    A product of single numbers takes 2. Four outputs by four tokens: 3 reads for 16, of eight rows
    10 for 128, and a quarter more for triangles. A limit is below twice as many.
    """
    text = "shared reads a product"
    count = lambda traces, products: traces[-1].accesses("shared", "load") / products  # noqa: E731
    return Most(text, count, limit, BAND * limit)


def conflicts(op="load"):
    """The share of wavefronts of shared memory that a conflict-free layout would not need.

    The loop over products reads: a conflict there costs a fifth of the wavefronts or more, and an
    edge a tenth. Writes fill the arrays, or hand over sums. In `TRACED` they are one wavefront in
    twenty, in a tile of the lesson's own size one in a thousand: their conflicts only warn.
    """

    def count(traces, products):
        rows = [row for t in traces for row in t.rows if (row.space, row.op) == ("shared", op)]
        return sum(row.conflicts for row in rows) / max(1, sum(row.wavefronts for row in rows))

    text = f"of the wavefronts of shared memory, by {'reads' if op == 'load' else 'writes'}, "
    return Most(f"{text}are bank conflicts", count, 0, 0.1 if op == "load" else math.inf)


def no_atomics():
    """Each sum belongs to one thread; atomic sums differ from run to run, so none may occur."""
    return Most("atomics", lambda traces, products: sum(t.atomics for t in traces), 0, 0)


def imbalance(limit):
    """Reads of the busiest thread, divided by the mean over the threads that read at all.

    Counted for the array in shared memory whose reads are most even, because an element that is
    read once for two products does not tell how many products there are. Without pairs it is 2.
    """
    text = "× the mean work for the busiest thread"

    def count(traces, products):
        counted = traces[-1]
        shared = {site.memory.name for site in counted.sites if site.memory.space == "shared"}
        works = [work_of_threads(counted, array=name) for name in shared]
        return min((spread(work) for work in works if work.any()), default=0.0)

    return Most(text, count, limit, BAND * limit)


def work_of_threads(counted, space="shared", array=None):
    """How often each thread of the first traced block reads shared (or global) memory.

    Args:
        array: count reads of the one of this name only.
    """
    chosen = [
        s.number
        for s in counted.sites
        if s.memory.space == space and s.op == "load" and array in (None, s.memory.name)
    ]
    e = counted.events
    mask = np.isin(e.site, chosen) & (e.block == 0)
    return np.bincount(e.thread[mask], minlength=counted.threads_per_block)


def spread(work):
    """The most of these numbers over the mean of those that are not 0."""
    busy = work[work > 0]
    return float(busy.max() / busy.mean()) if len(busy) else 0.0
