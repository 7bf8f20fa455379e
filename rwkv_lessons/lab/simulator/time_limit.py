"""Code of a learner may never end: what runs under a limit is stopped, wherever it is."""

import contextlib
import ctypes
import threading
import time

SECONDS = 20  # of processor time; the longest launch of a check takes about 5
IDLE = 6  # a function that sleeps or waits uses none: so many times longer by the clock


class StillRunning(BaseException):
    """Raised in code that has used up its time; no `except Exception` of its own stops it."""


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS):
    """Raises `StillRunning` in the Python code under it after so many seconds of processor time.

    Compiled code is not stopped before it returns.
    """
    thread, over = threading.get_ident(), threading.Event()
    start, clock = time.process_time(), time.monotonic()

    def watch():
        while not over.wait(min(0.1, seconds)):
            used, passed = time.process_time() - start, time.monotonic() - clock
            if (used > seconds or passed > IDLE * seconds) and not over.is_set():
                _raise_in(thread, StillRunning)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _raise_in(thread, None)  # what was set and has not come yet


def _raise_in(thread, kind):
    error = ctypes.py_object(kind) if kind else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)
