"""A limit stops what never ends, and leaves Python as it found it."""

import subprocess
import sys
import threading
import time

import pytest

from warplens import time_limit as module
from warplens.programs import watch
from warplens.time_limit import StillRunning, time_limit

THEN_TRACED = """
import contextlib, sys
from warplens.time_limit import StillRunning, time_limit

with contextlib.suppress(StillRunning), time_limit({seconds}):
    while {endless}:
        pass

def called():
    return 1

names = []
sys.settrace(lambda frame, *_: names.append(frame.f_code.co_name))
called()
sys.settrace(None)
print(names[0])
"""


def test_an_endless_loop_is_stopped():
    with pytest.raises(StillRunning), time_limit(0.1):
        while True:
            pass


@pytest.mark.parametrize(
    ("spent", "clock", "stopped"),
    [(0.0, 50, True), (0.1, 52, True), (7, 60, False), (7, 180, False), (8.5, 9, True)],
)
def test_what_waits_is_stopped_and_not_what_others_keep_from_a_processor(
    monkeypatch, spent, clock, stopped
):
    limit = module.TimeLimit(8, 1 << 30)
    now = limit.start + spent, limit.clock + clock, limit.size
    monkeypatch.setattr(module, "used", lambda: now)
    assert limit.exceeded() is (StillRunning if stopped else None)


@pytest.mark.parametrize(("seconds", "endless"), [(20, False), (0.1, True)])
def test_a_debugger_works_after_it(seconds, endless):
    """In another process, as the fault would be a function that never returns."""
    script = THEN_TRACED.format(seconds=seconds, endless=endless)
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert completed.stdout == "called\n"


def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def state():
    """What a limit changes while it counts."""
    wall = module.resource and module.resource.getrlimit(module.resource.RLIMIT_DATA)
    return list(module.TimeLimit.running), wall, threading.active_count()


@pytest.fixture
def slow(monkeypatch):
    """A limit takes so long to end that another exception comes meanwhile, as on a busy machine."""
    monkeypatch.setattr(module, "AGAIN", 0.01)
    monkeypatch.setattr(module, "_end_at_last", lambda: ends and busy(0.2))
    ends = []
    return ends


def test_a_second_exception_while_a_limit_ends_is_dropped(slow):
    before = state()
    with pytest.raises(StillRunning), time_limit(0.05):
        slow.append(True)
        while True:
            pass
    busy(0.1)
    assert state() == before


def test_a_limit_that_runs_out_while_one_inside_ends_waits_for_that(slow):
    before = state()
    with pytest.raises(StillRunning), time_limit(0.1):
        inside = state()
        with time_limit(20):
            slow.append(True)
        assert state() == inside
        slow.clear()
        while True:
            pass
    assert state() == before


def test_the_end_of_a_watched_launch_ends_its_watch(monkeypatch):
    monkeypatch.setattr(watch, "EVERY", 0.05)
    monkeypatch.setattr(watch, "AGAIN", 0.01)
    end = watch.WATCH.end
    monkeypatch.setattr(watch.WATCH, "end", lambda: (busy(0.6), end()))
    with pytest.raises(StillRunning), watch.watched(0.05, lambda: False):
        while True:
            pass
    assert watch.WATCH.launch is None
    busy(0.6)
