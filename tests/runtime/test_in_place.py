"""What a kernel writes to: torch has to know that a tensor is no longer what it was."""

import pytest
import torch
from support.wkv6_cases import make as make6
from support.wkv7_cases import make as make7

from rwkv_lessons.wkv6 import step as step6
from rwkv_lessons.wkv7 import step as step7

STEPS = {
    "wkv6": (step6, lambda: make6(1, 1, 1, 4, 4, dtype=torch.float32), (1.0, False)),
    "wkv7": (step7, lambda: make7(1, 1, 1, 4, 4, dtype=torch.float32), (1.0, "log")),
}


def write_to(monkeypatch, module):
    """Has a step's kernel write to memory as a GPU does, unseen by torch."""

    def run_forward(*given, s1):
        s1.detach().numpy().fill(7)
        return given[2].clone(), s1

    monkeypatch.setattr(module.STEP, "run_forward", lambda: run_forward)


@pytest.mark.parametrize("name", STEPS)
def test_a_gradient_through_a_state_that_a_step_overwrote_is_an_error(name, monkeypatch):
    module, make, options = STEPS[name]
    write_to(monkeypatch, module)
    *x, state = make()
    weight = torch.ones(1, requires_grad=True)
    loss = (weight * state).sum()  # autograd keeps the state for the gradient of weight
    module.STEP.on_gpu(*x, state, *options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", STEPS)
def test_a_step_writes_to_a_state_of_inference_mode_too(name, monkeypatch):
    module, make, options = STEPS[name]
    write_to(monkeypatch, module)
    with torch.inference_mode():
        *x, state = make()
        module.STEP.on_gpu(*x, state, *options)
    module.STEP.on_gpu(*x, state, *options)
    assert state.eq(7).all()
