"""A compiler in a process of its own: what it returns, and what becomes of one that crashes."""

import linecache
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from warplens.compiled import from_triton
from warplens.compiled.apart import Crashed, apart
from warplens.compiled.assembly import CompileError


def test_what_it_returns_or_raises_comes_back_and_what_it_changes_does_not():
    here = [1]

    def append(x):
        here.append(x)
        return here, os.getpid()

    there, process = apart(append, 2)
    assert there == [1, 2] and here == [1] and process != os.getpid()
    with pytest.raises(ZeroDivisionError, match="division by zero") as error:
        apart(lambda: os.write(2, b"before it") / 0)
    assert error.value.printed == "before it"


def test_a_process_that_aborts_is_a_crash_with_the_last_words_and_the_line():
    def die():
        os.write(
            2, b'loc(callsite("a.py":4:2 at "k.py":9:8)): error: no such layout\nPLEASE submit'
        )
        os.abort()

    with pytest.raises(Crashed, match="SIGABRT.*no such layout") as crash:
        apart(die)
    assert crash.value.line == 9


def some_kernel():
    pass


LINE_9 = linecache.getline(__file__, 9).strip()
NO_MORE = """k.py:2:0: error: A signal was caught while processing the module
k.py:2:0: error: Failures have been detected while processing an MLIR pass pipeline
"""


@pytest.mark.parametrize(
    "printed, want",
    [
        (
            "only loops are supported\nUNREACHABLE executed at /a.cpp:5!\n",
            "only loops are supported",
        ),
        ("/tmp/k.py:9:8: error: no such layout\n", "no such layout\n    line 9: " + LINE_9),
    ],
    ids=["a line before it gave up", "an error with its line"],
)
def test_a_compiler_that_says_only_that_it_failed_is_told_by_what_it_printed(printed, want):
    error = CompileError("k does not compile: PassManager::run failed")
    error.printed = printed + NO_MORE
    message = str(from_triton.with_reason(error, some_kernel))
    assert message == f"some_kernel does not compile: {want}"


def test_a_process_that_never_ends_is_stopped_in_its_time():
    start = time.monotonic()
    with pytest.raises(Crashed, match="not done after 1 s"):
        apart(lambda: [None for _ in iter(int, 1)], seconds=1)
    assert time.monotonic() - start < 5


def test_a_process_that_takes_all_memory_is_stopped_where_it_was_told():
    def take():  # 1.5 GB in 3 s, and then it ends: its watcher may have to wait for a processor
        blocks = []
        while len(blocks) < 150:
            blocks.append(bytearray(10 << 20))
            time.sleep(0.02)

    with pytest.raises(Crashed, match="GB of memory"):
        apart(take, bytes=1 << 28)


def test_an_interrupt_reaches_it():
    # Half a second is enough for the process to be there, and less than it would take.
    before = children()
    # A shell lets its background jobs ignore it, and the tests may be one.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            apart(time.sleep, 30)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - start < 5
    assert children() <= before  # none is left, not even as a zombie


def children():
    return set(Path("/proc/thread-self/children").read_text().split())
