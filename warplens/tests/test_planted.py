"""Every kernel with and without a planted fault is decided rightly."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import planted
import pytest
from planted import page

from warplens.cuda import run

LINUX, TRITON = sys.platform == "linux", find_spec("triton") is not None
CASES = planted.every(planted.NUMBA + (planted.TRITON if TRITON else []))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.topic}-{case.name}")
def test_what_is_planted_is_found_and_nothing_else(case, monkeypatch):
    if case.finds == "EndlessLoop":  # all others end by themselves
        limit = run.time_limit
        monkeypatch.setattr(run, "time_limit", lambda: limit(0.5))
    trace = case.trace()
    findings = planted.said(trace)
    assert case.finds in findings if case.planted else findings == set(), str(trace)


@pytest.mark.skipif(not TRITON, reason="Triton has wheels for Linux only")
def test_there_are_thirty_kernels_with_a_fault_and_thirty_without():
    assert len({case.name for case in CASES}) == len(CASES)
    for planted_there in (True, False):
        assert sum(bool(case.planted) == planted_there for case in CASES) >= 30


@pytest.mark.skipif(not TRITON, reason="Triton has wheels for Linux only")
def test_the_page_has_every_kernel():
    """`python -m planted.page`, in warplens/tests, writes it."""
    assert page.tables(CASES) in page.PAGE.read_text(encoding="utf-8")


@pytest.mark.skipif(not LINUX, reason="every kernel is run in a fork")
def test_the_page_says_what_cudasim_says():
    """The kernel that hangs is given two seconds of it."""
    outside = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "planted.under_cudasim"]
    completed = subprocess.run(
        command, cwd=Path(__file__).parent, env=outside, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr
    verdicts = dict(line.split() for line in completed.stdout.splitlines())
    assert {name: x for name, x in verdicts.items() if x != "nothing"} == page.CUDASIM
    assert len(verdicts) == sum(case.topic not in ("triton", "gluon") for case in CASES)
