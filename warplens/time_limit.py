"""Code of a learner may never end: what runs under a limit is stopped, wherever it is."""

import contextlib
import ctypes
import math
import os
import re
import sys
import threading
import time
from pathlib import Path

try:
    import resource
except ImportError:  # Windows, which has no limits of this kind
    resource = None

SECONDS = 8  # of processor time; the longest launch of a check takes about 3
IDLE = 6  # a function that sleeps or waits uses none: so many times longer by the clock
GRACE = 4  # more seconds, until the system ends a process whose Python does not stop
STACK = 16 << 20  # of a thread that torch or numpy may start, with the memory that is its own
EVERY = 0.05  # seconds between two looks
AGAIN = 0.5  # until it is raised again: a finalizer or a callback may have swallowed it
BYTES = 700 << 20  # more than there were before; the longest log of a check takes about 250 MB


class StillRunning(BaseException):
    """Raised in code that has used up its time; no `except Exception` of its own stops it."""


class TooLarge(StillRunning):
    """Raised in code that has used up its memory."""


def resident(process="self"):
    """Bytes of memory that a process has allocated and touched; 0 where the system does not say.

    Pages of files are not among them: a process that was forked has not got its parent's.
    """
    try:
        _, resident, of_files, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


class TimeLimit:
    """What code may use from now on."""

    running = []  # those that are counting, the innermost last
    deadly = False  # whether the process is to end where what is limited cannot be stopped

    def __init__(self, seconds, bytes):
        self.seconds, self.bytes, self.paused = seconds, bytes, False
        self.start, self.clock, self.size = used()

    def exceeded(self):
        """What to raise, or None."""
        if self.paused:
            return None
        now, clock, size = used()
        if size - self.size > self.bytes * _on_a_gpu():
            return TooLarge
        late = now - self.start > self.seconds or clock - self.clock > IDLE * self.seconds
        return StillRunning if late else None


def used():
    """Seconds of processor time, seconds of the clock, bytes of memory."""
    return time.process_time(), time.monotonic(), resident()


def _end_at_last():
    """Has the system end this process, if it may, `GRACE` after the limit that runs out last."""
    if TimeLimit.deadly and resource:
        ends = [x.start + x.seconds for x in TimeLimit.running if not x.paused]
        end = math.ceil(max(ends) + GRACE) if ends else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _on_a_gpu():
    """How many times larger a process may grow: CUDA's libraries are part of it."""
    torch = sys.modules.get("torch")
    return 4 if torch and torch.cuda.is_initialized() else 1


@contextlib.contextmanager
def uncounted():
    """While it lasts, no limit counts: what runs is long, and not the learner's."""
    limits, before = [x for x in TimeLimit.running if not x.paused], used()
    for limit in limits:
        limit.paused = True
    _end_at_last()
    try:
        yield
    finally:
        spent = [y - x for x, y in zip(before, used(), strict=True)]
        for limit in limits:
            limit.start, limit.clock = limit.start + spent[0], limit.clock + spent[1]
            limit.size, limit.paused = limit.size + spent[2], False
        _end_at_last()


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS, bytes: int = BYTES):
    """Raises `StillRunning` in the Python code under it after so many seconds of processor time.

    And `TooLarge`, where the process has grown by so many bytes. Compiled code is not stopped
    before it returns, but gets no more memory than that, and a little for threads' stacks. In the
    shell, where checks have a process of their own, the system ends that (`Limit.deadly`).
    """
    thread, over, limit = threading.get_ident(), threading.Event(), TimeLimit(seconds, bytes)

    def watch():
        pause = min(EVERY, seconds)
        while not over.wait(pause):
            if (kind := limit.exceeded()) and not over.is_set():
                _raise_in(thread, kind)
                pause = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    TimeLimit.running.append(limit)
    _end_at_last()
    watcher.start()
    try:
        with _walled(bytes):
            yield
    finally:
        TimeLimit.running.remove(limit)
        _end_at_last()
        while watcher.is_alive():
            with contextlib.suppress(StillRunning):
                over.set()
                watcher.join()
        # What was raised and has not come yet comes here. To take it back instead would leave the
        # interpreter waiting for it: Python 3.11 then hangs in the next function that is traced.
        with contextlib.suppress(StillRunning):
            for _ in range(100):
                pass


@contextlib.contextmanager
def _walled(bytes):
    """While it lasts, what asks for far more than `bytes` at once is refused: a MemoryError."""
    now = _writable()
    own, most = resource.getrlimit(resource.RLIMIT_DATA) if now else (None, None)
    if not now or own != resource.RLIM_INFINITY:  # macOS, Windows, or a limit around this one
        yield
        return
    wall = now + bytes * _on_a_gpu() + STACK * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (own, most))


def _writable():
    """Bytes that this process has asked for, used or not; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(match[1]) << 10 if match else 0
    return 0


def _raise_in(thread, kind):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
