"""RWKV-LM's kernels as a peer: what is given to them, and what is made of what they leave."""

from types import SimpleNamespace

import pytest
import torch

from rwkv_lessons.bench import peers, rwkv_lm
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.inputs import rwkv7_inputs
from rwkv_lessons.wkv7 import wkv7_reference

INPUTS = rwkv7_inputs(2, 32, 2, 64, dtype=torch.bfloat16)
CLAMPED = 1e-2  # of o: w is rounded to bfloat16 once more, before the clamp


def forward(r, w, k, v, a, b, o, states, read):
    """As the kernel's: w before the clamp, o in place."""
    assert all(x.is_contiguous() and x.dtype == torch.bfloat16 for x in (r, w, k, v, a, b, o))
    assert states.shape == (2, 2, 2, 64, 64) and read.shape == o.shape
    o.copy_(wkv7_reference(*(x.double() for x in (r, w, k, v, a, b)), decay="clamp")[0])


def backward(r, w, k, v, a, b, do, states, read, *gradients):
    leaves = [x.double().requires_grad_() for x in (r, w, k, v, a, b)]
    with torch.enable_grad():
        o = wkv7_reference(*leaves, decay="clamp")[0]
    for x, dx in zip(gradients, torch.autograd.grad(o, leaves, do.double()), strict=True):
        x.copy_(dx)


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    operators = SimpleNamespace(forward=forward, backward=backward)
    monkeypatch.setattr(rwkv_lm, "built", lambda kernel: operators)


def test_o_and_gradients_are_those_of_the_log_decay():
    leaves = [x.double().requires_grad_() for x in INPUTS]
    want = wkv7_reference(*leaves)[0]
    do = INPUTS[3].flip(1)
    gradients = torch.autograd.grad(want, leaves, do.double())
    assert relative_error(peers.rwkv_lm(*INPUTS)(), want.detach()) < CLAMPED
    o, *got_gradients = peers.rwkv_lm_alt_gradients(*INPUTS)()
    assert relative_error(o, want.detach()) < CLAMPED
    for got, expected in zip(got_gradients, gradients, strict=True):
        assert relative_error(got, expected) < CLAMPED


def test_what_the_kernels_do_not_take_is_refused():
    with pytest.raises(ValueError, match="bfloat16, heads of 64"):
        peers.rwkv_lm(*(x.float() for x in INPUTS))
    with pytest.raises(ValueError, match="whole chunks of 16"):
        peers.rwkv_lm(*(x[:, :30] for x in INPUTS))


def test_without_a_checkout_they_are_not_there(monkeypatch):
    monkeypatch.delenv(rwkv_lm.CHECKOUT, raising=False)
    _, missing = peers.peers("wkv7")
    assert "rwkv-lm: RWKV-LM is not installed" in missing
    monkeypatch.setenv(rwkv_lm.CHECKOUT, "somewhere")
    found, _ = peers.peers("wkv7")
    assert found["rwkv-lm"].note.startswith("RWKV-LM, ")
