"""A limit stops what never ends, and leaves Python as it found it."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(("seconds", "endless"), [(20, False), (0.1, True)])
def test_a_debugger_works_after_it(seconds, endless):
    """In another process, as the fault would be a function that never returns."""
    script = THEN_TRACED.format(seconds=seconds, endless=endless)
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert completed.stdout == "called\n"
