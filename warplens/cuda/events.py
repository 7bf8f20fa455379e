"""The recorder's log as columns, and the grouping of lanes into what a warp executes at once."""

from dataclasses import dataclass

import numpy as np

from ..architectures import FULL_WARP


@dataclass
class Events:
    """One entry per access of a lane, all arrays of the same length."""

    site: np.ndarray
    offset: np.ndarray  # bytes from the start of the array
    context: np.ndarray  # which turn of the loops
    block: np.ndarray  # which of the traced blocks
    thread: np.ndarray  # within the block
    interval: np.ndarray  # barriers of the block passed
    warp_interval: np.ndarray  # barriers of the warp passed
    locks: np.ndarray  # the number of the set that the thread holds
    grid_interval: np.ndarray  # barriers of the grid passed
    warp: np.ndarray  # over all traced blocks
    request: np.ndarray  # which warp instruction
    requests: int
    order: np.ndarray  # in the log

    def __len__(self):
        return len(self.site)

    def select(self, mask):
        columns = {
            name: value[mask] if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        return Events(**columns)


def events_of(recorder):
    log = np.array(memoryview(recorder.log), dtype=np.int64).reshape(-1, 3)
    segments = np.array(recorder.segments, dtype=np.int64).reshape(-1, 7)
    lengths = np.diff(segments[:, 0], append=len(log))
    block, thread, interval, warp_interval, grid_interval, locks = (
        np.repeat(np.ascontiguousarray(column), lengths) for column in segments[:, 1:].T
    )
    site, offset, context = map(np.ascontiguousarray, log.T)
    warps = -(-recorder.threads_per_block // FULL_WARP)
    warp = block * warps + thread // FULL_WARP
    lane_turn = key(site, block, thread, context, interval)
    request = key(site, warp, context, interval, occurrence(lane_turn))
    _, request = np.unique(request, return_inverse=True)
    count = int(request.max()) + 1 if len(request) else 0
    return Events(
        site,
        offset,
        context,
        block,
        thread,
        interval,
        warp_interval,
        locks,
        grid_interval,
        warp,
        request,
        count,
        np.arange(len(log)),
    )


def key(*columns):
    """One integer per row, equal where all columns are equal, in the order of the columns."""
    result = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        size = int(column.max()) + 1 if len(column) else 1
        if span * size > 2**62:
            _, result = np.unique(result, return_inverse=True)
            span = int(result.max()) + 1
        result = result * size + column
        span *= size
    return result


def occurrence(values):
    """How many equal values come before each."""
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():  # mostly so, and sorting alone is fast
        return np.zeros(len(values), np.int64)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - _start_of_run(values[order])
    return rank


def _start_of_run(ordered):
    """For each entry of a sorted array, where its run of equal values starts."""
    if not len(ordered):
        return np.zeros(0, np.int64)
    new = np.r_[True, ordered[1:] != ordered[:-1]]
    return np.maximum.accumulate(np.where(new, np.arange(len(ordered)), 0))
