"""Ends a launch that takes too long; one thread watches all launches of the process."""

import os
import threading
import time

from ..time_limit import StillRunning, interruptible, raise_in

EVERY = 0.25  # seconds between two looks
AGAIN = 2  # seconds until it is raised again: a finalizer or a callback may have swallowed it


class Watch:
    def __init__(self):
        self.lock, self.launch, self.process = threading.Lock(), None, None

    def begin(self, seconds, crowded):
        if self.process != os.getpid():  # the first launch, or that of a process that was forked
            self.__init__()
            self.process = os.getpid()
            threading.Thread(target=self.look, daemon=True, name="warplens").start()
        with self.lock:
            self.launch = threading.get_ident(), time.process_time() + seconds, crowded

    def end(self):
        with self.lock:
            self.launch = None

    def look(self):
        while True:
            time.sleep(EVERY)
            with self.lock:
                if not self.launch:
                    continue
                thread, end, crowded = self.launch
                if (time.process_time() > end or crowded()) and raise_in(thread, StillRunning):
                    self.launch = thread, time.process_time() + AGAIN, lambda: False


WATCH = Watch()


def watched(seconds, crowded):
    """Raises `StillRunning` in the code under it after so many seconds of processor time.

    Or as soon as `crowded()`, which is asked all the while.
    """
    return interruptible(lambda: WATCH.begin(seconds, crowded), WATCH.end)
