"""The library of the other side: flash-linear-attention, whose kernels choose what is fastest."""

import math

import pytest


@pytest.fixture(autouse=True)
def first_configuration_that_runs(monkeypatch):
    """No time is measured here: trying all configurations of a model's kernels takes minutes."""
    autotuner = pytest.importorskip("triton.runtime.autotuner").Autotuner
    bench, tuned = autotuner._bench, {}

    def once(self, *args, config, **named):
        if tuned.get(id(self)) is self.nargs:  # of this launch
            return [math.inf] * 3
        times = bench(self, *args, config=config, **named)
        if times[0] < math.inf:
            tuned[id(self)] = self.nargs
        return times

    def run(call, quantiles):
        call()
        return [0.0 for _ in quantiles]

    monkeypatch.setattr(autotuner, "_bench", once)
    monkeypatch.setattr(autotuner, "do_bench", staticmethod(run))
