"""Trials of kernels that no GPU has run: here their kernels run in a simulator, at small shapes."""

import pytest
import torch
from support.gluon_on_cpu import Mutable

from rwkv_lessons.bench.__main__ import main
from rwkv_lessons.bench.trials import variants
from rwkv_lessons.bench.trials import wkv7_fused as trial
from rwkv_lessons.runtime.packages import TRITON

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from rwkv_lessons.wkv7.chunked.hopper import forward as hopper

CPU = torch.device("cpu")
TIMES = trial.timing.Times(5, 2.0, 1.9, 2.1)


@pytest.fixture
def simulated(monkeypatch):
    kernel = Mutable(hopper.wkv7_hopper_kernel)

    def launch(programs, tensors, numbers, form):
        kernel[(programs,)](*tensors, *numbers, form, num_warps=4)

    monkeypatch.setattr(hopper, "launch", launch)
    monkeypatch.setattr(variants, "CALLS", 1)
    return kernel


def of_one_head(monkeypatch, *names):
    """Has the trial look at these cases alone, one sequence and head of each."""
    found = {name: case for name, case in trial.cases(CPU).items() if name in names}
    assert len(found) == len(names)
    for x, options in found.values():
        x[:6] = [y[:1, :, :1].contiguous() for y in x[:6]]
        x[6] = x[6][:, :1] if "cu_seqlens" in options else x[6][:1, :1]
        x[6] = x[6].contiguous()
    monkeypatch.setattr(trial, "cases", lambda device: found)


def test_right_kernels_pass(simulated, monkeypatch):
    of_one_head(monkeypatch, "17 tokens", "w = -3.8", "a scale", "packed", "clamp")
    assert len(dict(trial.errors({}, CPU, with_options=False))) == 2
    errors = dict(trial.errors({}, CPU))
    assert len(errors) == 5 and all(0 < x <= trial.LIMIT for x in errors.values())


def test_a_wrong_kernel_is_named(simulated, monkeypatch):
    of_one_head(monkeypatch, "65 tokens")
    simulated.mistake("b_s * b_decay[None, :]", "b_s", inside="apply_chunk")
    [(_, error)] = trial.errors({}, CPU)
    assert error > 10 * trial.LIMIT
    simulated.mistake("tma.store_wait(0)", "pass", inside="apply_chunks")
    [(case, error)] = trial.errors({}, CPU)
    assert "overwritten" in case and not error <= trial.LIMIT


def test_variants_are_timed_unless_they_are_wrong(simulated, monkeypatch, capsys):
    monkeypatch.setattr(trial.timing, "device_times", lambda run, device: run() and TIMES)
    trial.time_shape((1, 70, 1), CPU, {"in one launch"})
    said = capsys.readouterr().out
    assert "wkv7_chunked: 2.000 ms" in said and "every 64 tokens: 2.000 ms" in said
    assert "in one launch: " not in said


def test_the_command_is_known(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "wkv7-fused" in capsys.readouterr().out
