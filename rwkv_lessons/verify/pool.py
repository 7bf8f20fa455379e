"""Many cases at the same time, in the order of schedule.py: compiling takes a core each.

A wrong kernel may write where it must not, after which its process can use the GPU no more; or it
may never end. So each process is watched, and one that crashes or says nothing is replaced.
"""

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import queue
import signal
import threading

from .cases import CHECKED, weight
from .judge import UNSEEN, WRONG, Judgement, look
from .schedule import Schedule, kernels_of

PATIENCE_S = 120  # for one case, its compiling included
LARGE = 2**25  # numbers in r: such cases take some 7 GB with float64,
AT_ONCE = 3  # and so many go at the same time
PACKAGES = {operation.package for operation in CHECKED.values()}
IMPORTED = [f"rwkv_lessons.{name}" for name in ("verify.pool", *sorted(PACKAGES))]
IMPORTED += ["torch._inductor.config"]  # what torch's deterministic mode looks at
MAX_PROCESSES = 24  # processes: each has a context of half a GB on the GPU


def processes_for(cases):
    """As many as there are cores for this process, and kinds of kernels."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores, MAX_PROCESSES, len({kernels_of(case) for case in cases})))


def context_of():
    """How processes begin; those of a server, which imports once for all, and begins to now."""
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(IMPORTED)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server imports for seconds
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)
    return context


def examine(cases, processes=None, patience=PATIENCE_S):
    """Yields the `Judgement` of each case, as they come; those short of memory last, one by one."""
    context = context_of()
    batches, results = Schedule(cases), queue.SimpleQueue()
    processes = processes or processes_for(cases)
    large = threading.Semaphore(AT_ONCE)
    threads = [
        threading.Thread(
            target=_drive, args=(context, batches, results, patience, large), daemon=True
        )
        for _ in range(processes)
    ]
    for thread in threads:
        thread.start()
    to_repeat, remaining = [], len(cases)
    while remaining:
        result = results.get()
        remaining -= 1
        if result.verdict == UNSEEN and processes > 1:  # others were using the GPU, too
            to_repeat.append(result.case)
        else:
            yield result
    for thread in threads:
        thread.join()
    if to_repeat:
        yield from examine(to_repeat, 1, patience)


def _drive(context, batches, results, patience, large):
    """Takes batches until there are none, and has a process look at their cases."""
    worker = None
    for batch in batches:
        for case in batch.cases:
            worker = worker or Worker(context)
            with large if weight(case) >= LARGE else threading.Lock():
                result = worker.look(case, patience)
            results.put(result)
            if result.crashed:
                worker.end()
                worker = None
    if worker:
        worker.end()


class Worker:
    """A process that looks at one case after the other."""

    def __init__(self, context):
        self.here, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_end,), daemon=True)
        self.process.start()
        child_end.close()

    def look(self, case, patience):
        try:
            self.here.send(case)
            if self.here.poll(patience):
                return self.here.recv()
            reason = f"no answer after {patience} s"
        except (EOFError, OSError):
            self.process.join(5)
            reason = f"its process ended, exit status {self.process.exitcode}"
        return Judgement(case, WRONG, reason=reason, crashed=True)

    def end(self):
        self.process.kill()
        self.process.join()
        self.here.close()


def _serve(cases):
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends this
    torch.set_num_threads(1)
    # Compilers make millions of small objects, and keep them: looking through all of them, and all
    # that was imported, again and again took a sixth of the time of a numba kernel.
    gc.freeze()
    gc.set_threshold(100_000)
    with contextlib.suppress(EOFError, OSError):  # the command has ended
        while True:
            case = cases.recv()
            cases.send(look(case))
