"""The bench of decays: its cases, its rows, and what it says without a GPU."""

import math

import pytest
import torch

from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.commands import decays
from rwkv_lessons.wkv6 import wkv6

SHAPE = (1, 160, 1, 64)
CPU = torch.device("cpu")


def test_cases_are_what_they_are_called():
    x = torch.randn(1, 400, 2, 64, generator=torch.Generator().manual_seed(1))
    tame = decays.decays("tame", x)
    assert tame.max() < 0 and tame.median() == pytest.approx(-math.exp(-1.5), rel=0.02)
    runs = decays.decays("40 tokens of -4", x)
    assert (runs == -4).sum() == 40 * 2 * 64 and (runs[:, 100:140] == -4).all()
    channel = decays.decays("one channel in 64 at -5", x)
    assert ((channel == -5).sum(3) == 1).all() and (channel[..., 6] == tame[..., 6]).all()
    assert decays.decays("median exp(-2)", x).median() == pytest.approx(-2, rel=0.03)
    assert (decays.decays("w = -20", x) == -20).all() and (decays.decays("w = 0", x) == 0).all()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("case", ["tame", "w = -20"])
def test_a_row_is_checked_and_timed(case, both, monkeypatch):
    monkeypatch.setattr(decays, "BUDGET_MS", 1)
    row = decays.measure("wkv6", wkv6, case, both, SHAPE, CPU)
    assert row.problem is None and row.median_ms > 0 and 0 < row.error < 1e-2
    assert row.method == f"wkv6, {case}" + ", both passes" * both and not row.stale


def test_what_is_wrong_has_no_time():
    def wrong(*x):
        o, s1 = wkv6(*x)
        return o * 1.02, s1

    row = decays.measure("wkv6", wrong, "tame", False, SHAPE, CPU)
    assert row.median_ms is None and "not timed" in row.problem and 0.019 < row.error < 0.021


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU")
def test_it_needs_a_gpu():
    with pytest.raises(SystemExit, match="no NVIDIA GPU"):
        main(["wkv6-decays"])
