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
