"""Checks in a child process, for the shell: code that never returns from C is ended with it.

Python stops its own loops where a limit is reached. `sum(iter(int, 1))` comes back to it never, so
nothing but another process can end it; the next check then has a new one.
"""

import faulthandler
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator

from warplens import time_limit

AT = re.compile(r'File "(.* cell \d+)", line (\d+)')  # as faulthandler writes a learner's line


def attended(remaining: Callable, check: Callable) -> Iterator:
    """Yields (item, what `check(item)` returns), or (item, None) where it had to be ended.

    Args:
        remaining: (items done) → those that are still to be checked; in the child.
        check: returns what can be pickled, and so is what it raises.
    """
    finished = []
    while True:
        with tempfile.TemporaryFile() as log:
            child, pipe = _start(lambda: remaining(finished), check, log)
            current = None
            try:
                for item, result in _read(pipe):
                    if isinstance(result, Exception):
                        raise result
                    current = None if result else item
                    if result:
                        finished.append(item)
                        yield item, result[0]
            except BaseException:  # Ctrl-C, which a call into C does not hear
                os.kill(child, signal.SIGTERM)
                raise
            finally:
                pipe.close()
                os.waitpid(child, 0)
            if current is None:
                return
            log.seek(0)
            print(_ended(log.read().decode(errors="replace")), flush=True)
        finished.append(current)
        yield current, None


def _start(items, check, log):
    """A child that checks, and where it tells what it begins and what came of it."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, os.fdopen(read, "rb")
    try:
        os.close(read)
        _end_when_spent(log)
        with os.fdopen(write, "wb") as tell:
            _work(items, check, tell)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _work(items, check, tell):
    def report(item, result):
        pickle.dump((item, result), tell)
        tell.flush()

    try:
        for item in items():
            report(item, None)
            report(item, (check(item),))
    except Exception as error:
        report(None, error)


def _read(pipe):
    try:
        while True:
            yield pickle.load(pipe)
    except EOFError:
        return


def _end_when_spent(log):
    """What is under a limit and goes on long after it ends this process; its line goes to `log`.

    The system counts the time, and the signal needs no Python to be heard.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(signal.SIGXCPU, log, chain=True)
    time_limit.TimeLimit.deadly = True


def _ended(log):
    match = AT.search(log)
    where = f"line {match[2]} of {match[1]}" if match else "it"
    return f"✗ {where} does not come back: the check was ended. It may loop in one built-in call."
