"""Device time, host time and memory of a function that launches work on torch's current stream.

Device time is measured with CUDA events around every single call. Before each call the L2 cache is
overwritten, so that inputs come from memory; the overwriting also keeps the device busy until
the host has queued the call, so that a slow launch is not counted as device time.
"""

import math
import time
from typing import NamedTuple

import numpy as np
import torch

CLEAR_BYTES = 256 * 2**20  # several times the largest L2 cache (H200: 60 MB)
MAX_CLEARS = 64  # some 5 ms: a function that queues for longer launches many kernels, and waits
WARM_UPS = 3  # calls before the first that counts, fewer where they take longer than the budget
BUDGET_MS = 500  # of repetitions, of each kind of time
MIN_N, MAX_N = 5, 200


class Times(NamedTuple):
    n: int
    median_ms: float
    p20_ms: float
    p80_ms: float


def device_times(f, device, budget_ms=BUDGET_MS):
    """Device time of `f()`. On a CPU: wall clock, nothing cleared."""
    if device.type != "cuda":
        return summary(_wall(f, device, budget_ms))
    _warm_up(f, device, budget_ms)
    cache = torch.empty(CLEAR_BYTES, dtype=torch.int8, device=device)
    clear_ms = float(np.median([event_ms(cache.zero_) for _ in range(MIN_N)]))
    # Long enough that the host, at twice its usual time, still queues `f` behind the clearing.
    clears = min(1 + math.ceil(2 * _queue_ms(f, device) / clear_ms), MAX_CLEARS)
    first = event_ms(f, [cache.zero_] * clears)
    n = repetitions(first, budget_ms)
    return summary([event_ms(f, [cache.zero_] * clears) for _ in range(n)])


def host_time(f, device, budget_ms=BUDGET_MS):
    """Median wall clock of one eager call until the device has finished, in milliseconds."""
    return summary(_wall(f, device, budget_ms)).median_ms


def all_times(f, device, budget_ms=BUDGET_MS):
    """Device time, wall clock and memory of `f()`: fields of a `Measurement`."""
    times = device_times(f, device, budget_ms)._asdict()
    return times | {
        "host_ms": host_time(f, device, budget_ms),
        "extra_bytes": extra_bytes(f, device),
    }


def few_host_times(f, device, n=3):
    """The same from `n` calls and no warm-up, for what takes long."""
    return float(np.median([_wall_ms(f, device) for _ in range(n)]))


def extra_bytes(f, device):
    """Peak memory of a call beyond what is there before it and what it returns; CUDA only."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    result = f()  # kept until the peak is read: outputs are not extra
    torch.cuda.synchronize(device)
    extra = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    del result
    return extra


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _wall(f, device, budget_ms):
    """Wall-clock milliseconds of single calls."""
    _warm_up(f, device, budget_ms)
    return [_wall_ms(f, device) for _ in range(repetitions(_wall_ms(f, device), budget_ms))]


def _warm_up(f, device, budget_ms):
    for _ in range(WARM_UPS):
        if _wall_ms(f, device) > budget_ms:
            return


def _wall_ms(f, device):
    synchronize(device)
    start = time.perf_counter()
    f()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def event_ms(f, before=()):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for g in before:
        g()
    start.record()
    f()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _queue_ms(f, device):
    """Host time until `f()` returns, before the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    f()
    return (time.perf_counter() - start) * 1e3


def repetitions(once_ms, budget_ms):
    return max(MIN_N, min(MAX_N, int(budget_ms / max(once_ms, 1e-3))))


def summary(times):
    median, p20, p80 = np.percentile(times, [50, 20, 80])
    return Times(len(times), float(median), float(p20), float(p80))
