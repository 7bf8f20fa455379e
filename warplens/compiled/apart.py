"""Runs a compiler in a process of its own: one that crashes or never ends takes nothing along.

LLVM ends its process where it meets what it did not expect, and a learner's kernel may be that.
The process is a fork: it has the kernel, all that the kernel names, and Triton's warm imports.
"""

import contextlib
import faulthandler
import gc
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import warnings

from ..time_limit import resident, resource

SECONDS = 20  # of processor time; the longest compilation of a lesson takes about 5
IDLE = 10  # so many times longer by the clock, where other processes have the processor
BYTES = 2 << 30  # more than the process it is forked from
AT = re.compile(r'"?:(\d+):\d+\)*: error: (.*)')  # after a file's name: how MLIR names a line of it
UNSAID = ("Failures have been detected", "A signal was caught")  # by errors that say no more


class Crashed(Exception):
    """The process ended without a result.

    Attributes:
        why: the last that the compiler said. line: of the source, where it named one, or None.
    """

    def __init__(self, why, line=None):
        super().__init__(why)
        self.why, self.line = why, line


def apart(function, *args, seconds=SECONDS, bytes=BYTES):
    """What `function` returns, or raises, in a process of its own; both have to be picklable.

    What it raises has, as `printed`, all that was printed there.

    Args:
        seconds: of processor time that it may take. bytes: of memory, more than this process has.

    Raises:
        Crashed: the process was ended by a signal, or took too long or too much.
    """
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12, of threads: none of them compiles
            child = os.fork()
        if not child:
            _run(function, args, result, output, seconds)
        status = _end_of(child, seconds, resident() + bytes)
        result.seek(0)
        output.seek(0)
        if status != 0:
            raise _crash(status, output.read().decode(errors="replace"), seconds, bytes)
        returned, value = pickle.load(result)
        printed = output.read().decode(errors="replace")
    if returned:
        return value
    value.printed = printed
    raise value


def _run(function, args, result, output, seconds):
    """In the child: never returns, and runs nothing that the parent wants run at its own end."""
    try:
        gc.disable()  # what the parent has on a GPU is not for this process to free
        sys.settrace(None)
        faulthandler.disable()
        os.setpgid(0, 0)  # with its assembler, for the parent to end both
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        for code in (signal.SIGINT, signal.SIGTERM):
            signal.signal(code, signal.SIG_DFL)
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        try:
            pickled = pickle.dumps((True, function(*args)))
        except Exception as error:
            pickled = _pickled(error)
        result.write(pickled)
        result.flush()
        os._exit(0)
    finally:
        os._exit(1)


def _pickled(error):
    with contextlib.suppress(Exception):
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)
        return pickled
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _end_of(child, seconds, most):
    """The status of a child that has ended by itself; what stopped it, if it was stopped."""
    end, pause = time.monotonic() + IDLE * seconds, 0.001
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = None
                return status
            if resident(child) > most:
                return "memory"
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return "time"
    finally:
        if child:  # too late, too large, or interrupted
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _crash(status, printed, seconds, bytes):
    if status == "memory":
        return Crashed(f"the compiler took more than {bytes / 2**30:.0f} GB of memory")
    if status == "time" or os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return Crashed(f"the compiler was not done after {seconds} s")
    how = os.waitstatus_to_exitcode(status)
    how = signal.Signals(-how).name if how < 0 else f"status {how}"
    why, line = last_words(printed)
    return Crashed(f"the compiler itself crashed ({how}): {why}", line)


def last_words(printed):
    """Why a compiler gave up, of all that it printed, and the line that it named, or None."""
    if unreachable := re.search(r"(\S.*)\nUNREACHABLE executed at", printed):
        return unreachable[1], None
    errors = [(why, int(line)) for line, why in AT.findall(printed) if not why.startswith(UNSAID)]
    lines = [line.strip()[:200] for line in printed.splitlines() if line.strip()]
    return errors[-1] if errors else (lines[0] if lines else "it said nothing", None)
