"""Every kernel with and without a planted fault is decided rightly."""

import sys

import planted
import pytest

from warplens.cuda import run

LINUX = sys.platform == "linux"
CASES = planted.every(planted.NUMBA + (planted.TRITON if LINUX else []))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """An endless loop has half a second of processor time; no kernel here takes a tenth of it."""
    limit = run.time_limit
    monkeypatch.setattr(run, "time_limit", lambda: limit(0.5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.topic}-{case.name}")
def test_what_is_planted_is_found_and_nothing_else(case):
    seen = case.trace()
    found = planted.said(seen)
    assert case.finds in found if case.planted else found == set(), str(seen)


@pytest.mark.skipif(not LINUX, reason="Triton has wheels for Linux only")
def test_there_are_thirty_kernels_with_a_fault_and_thirty_without():
    assert len({case.name for case in CASES}) == len(CASES)
    for planted_there in (True, False):
        assert sum(bool(case.planted) == planted_there for case in CASES) >= 30
