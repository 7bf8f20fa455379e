"""Code of a learner may never end: what runs under a limit is stopped, wherever it is."""

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

SECONDS = 8  # of processor time; the longest launch of a check takes about 3
IDLE = 6  # a function that sleeps or waits uses none: so many times longer by the clock
BYTES = 700 << 20  # more than there were before; the longest log of a check takes about 250 MB


class StillRunning(BaseException):
    """Raised in code that has used up its time; no `except Exception` of its own stops it."""


class TooLarge(StillRunning):
    """Raised in code that has used up its memory."""


def resident(process="self"):
    """Bytes of memory that a process has; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError):
        return 0


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS, bytes: int = BYTES):
    """Raises `StillRunning` in the Python code under it after so many seconds of processor time.

    And `TooLarge`, where the process has grown by so many bytes. Compiled code is not stopped
    before it returns.
    """
    thread, over = threading.get_ident(), threading.Event()
    start, clock, size = time.process_time(), time.monotonic(), resident()

    def watch():
        while not over.wait(min(0.05, seconds)):
            used, passed = time.process_time() - start, time.monotonic() - clock
            late, large = used > seconds or passed > IDLE * seconds, resident() - size > bytes
            if (late or large) and not over.is_set():
                _raise_in(thread, TooLarge if large else StillRunning)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        while watcher.is_alive():
            with contextlib.suppress(StillRunning):
                over.set()
                watcher.join()
        # What was raised and has not come yet comes here. To take it back instead would leave the
        # interpreter waiting for it: Python 3.11 then hangs in the next function that is traced.
        with contextlib.suppress(StillRunning):
            for _ in range(100):
                pass


def _raise_in(thread, kind):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
