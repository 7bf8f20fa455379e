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
BUSY = 20  # more seconds by the clock for each that is used: others may have the processor, too
GRACE = 4  # more seconds, until the system ends a process whose Python does not stop
STACK = 16 << 20  # of a thread that torch or numpy may start, with the memory that is its own
EVERY = 0.05  # seconds between two looks
AGAIN = 0.5  # until it is raised again: a finalizer or a callback may have swallowed it
ENDING = {}  # threads in which nothing is raised, as a limit of theirs is ending
RAISING = threading.Lock()  # held while that is looked up and something raised
BYTES = 700 << 20  # more than there were before; the longest log of a check takes about 250 MB


class StillRunning(BaseException):
    """Raised in code that has used up its time; no `except Exception` of its own stops it."""


class TooLarge(StillRunning):
    """Raised in code that has used up its memory."""


def _renew():
    """In a process that was forked, the thread that held the lock may not be there."""
    global RAISING
    RAISING = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew)


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
    """What code may use between `begin` and `end`."""

    running = []  # those that are counting, the innermost last
    deadly = False  # whether the process is to end where what is limited cannot be stopped

    def __init__(self, seconds, bytes):
        self.seconds, self.bytes, self.paused = seconds, bytes, False
        self.thread, self.over, self.memory = threading.get_ident(), threading.Event(), None
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.start, self.clock, self.size = used()

    def begin(self):
        self.running.append(self)
        _end_at_last()
        self.watcher.start()
        self.memory = _wall(self.bytes)

    def end(self):
        self.over.set()
        if self.watcher.is_alive():
            self.watcher.join()
        if self.memory:
            resource.setrlimit(resource.RLIMIT_DATA, self.memory)
        if self in self.running:  # else `begin` was stopped
            self.running.remove(self)
        _end_at_last()

    def watch(self):
        pause = min(EVERY, self.seconds)
        while not self.over.wait(pause):
            if (kind := self.exceeded()) and raise_in(self.thread, kind):
                pause = AGAIN

    def exceeded(self):
        """What to raise, or None."""
        if self.paused:
            return None
        now, clock, size = used()
        if size - self.size > self.bytes * _on_a_gpu():
            return TooLarge
        spent = now - self.start
        late = spent > self.seconds or clock - self.clock > IDLE * self.seconds + BUSY * spent
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


def time_limit(seconds: float = SECONDS, bytes: int = BYTES):
    """Raises `StillRunning` in the Python code under it after so many seconds of processor time.

    And `TooLarge`, where the process has grown by so many bytes. Compiled code is not stopped
    before it returns, but gets no more memory than that, and a little for threads' stacks. In the
    shell, where checks have a process of their own, the system ends that (`TimeLimit.deadly`).
    """
    limit = TimeLimit(seconds, bytes)
    return interruptible(limit.begin, limit.end)


@contextlib.contextmanager
def interruptible(begin, end):
    """Between `begin` and `end` another thread may `raise_in` this one.

    An exception may also come when the code under it has just ended: it is dropped, and `end`
    does all that it has to. To take it back instead would leave the interpreter waiting for it:
    Python 3.11 then hangs in the next function that is traced.
    """
    thread = threading.get_ident()
    try:
        begin()
        yield
    finally:
        # Python looks for such an exception where it calls, returns or loops, not at a store:
        # none comes before the next line. Two may come after it: one that was raised before, and
        # that of the thread that was about to raise.
        ENDING[thread] = True
        try:
            _await_raised()
        except StillRunning:
            try:
                _await_raised()
            except StillRunning:
                pass
        try:
            end()
        finally:
            del ENDING[thread]


def raise_in(thread, kind):
    """Raises an exception in another thread where it runs now, unless its limit is just ending."""
    with RAISING:
        if thread in ENDING:
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
        return True


def _await_raised():
    """What was raised in this thread and has not come yet comes here."""
    with RAISING:
        pass
    for _ in range(100):
        pass


def _wall(bytes):
    """Has the system refuse what asks for far more than `bytes` at once: a MemoryError.

    Returns:
        The limits to go back to; None where there is no wall, or one around this one.
    """
    now = _writable()
    own, most = resource.getrlimit(resource.RLIMIT_DATA) if now else (None, None)
    if not now or own != resource.RLIM_INFINITY:  # macOS, Windows, or a limit around this one
        return None
    wall = now + bytes * _on_a_gpu() + STACK * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, most))
    return own, most


def _writable():
    """Bytes that this process has asked for, used or not; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(match[1]) << 10 if match else 0
    return 0
