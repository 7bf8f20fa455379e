"""RWKV-PEFT's calls with a state, and states in files."""

import io

import pytest
import torch
from support.wkv7_cases import make, near, with_raw

from rwkv_lessons.interop.rwkv_peft import (
    RUN_RWKV7_INFCTX,
    RUN_RWKV7_STATE,
    states_from_file,
    states_to_file,
)
from rwkv_lessons.wkv7 import wkv7_reference


def test_calls_with_a_state_take_w_in_the_fourth_place():
    r, w, k, v, a, b, s0 = with_raw(make(2, 20, 3, 4, 4), "raw")
    flat = [x.flatten(2) for x in (r, k, v, w, a, b)]
    want = wkv7_reference(r, w, k, v, a, b, s0, decay="raw")
    near(RUN_RWKV7_INFCTX(*flat, s0, HEAD_SIZE=4), want, 1e-12)
    with pytest.raises(ValueError, match="w must be .B, T, C. with C a multiple of HEAD_SIZE = 4"):
        RUN_RWKV7_STATE(*flat[:3], w, a, b, s0[0], HEAD_SIZE=4)


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_the_state_that_is_tuned_is_that_of_the_files(decay):
    """One for all sequences, values × keys, with a gradient that adds up over the sequences."""
    r, w, k, v, a, b, s0 = with_raw(make(2, 20, 3, 4, 4), "raw")
    flat, tuned = [x.flatten(2) for x in (r, k, v, w, a, b)], s0[0].mT.clone().requires_grad_()
    start = s0[:1].clone().requires_grad_()
    want = wkv7_reference(r, w, k, v, a, b, start.expand(2, -1, -1, -1), decay=decay)
    got = RUN_RWKV7_STATE(*flat, tuned, HEAD_SIZE=4, decay=decay)
    near([x.detach() for x in got], [x.detach() for x in want], 1e-12)
    want[0].square().sum().backward()
    got[0].square().sum().backward()
    near([tuned.grad.mT], [start.grad[0]], 1e-12)
    assert torch.equal(states_from_file({"blocks.0.att.time_state": tuned})[0], s0[0].float())
    with pytest.raises(ValueError, match=r"s must be \[H, N, N\]"):
        RUN_RWKV7_STATE(*flat, s0, HEAD_SIZE=4)


def test_states_go_to_a_file_and_back():
    states, file = torch.randn(3, 2, 4, 5), io.BytesIO()
    torch.save(states_to_file(states) | {"other": torch.zeros(1)}, file)
    file.seek(0)
    saved = torch.load(file)
    assert torch.equal(saved["blocks.2.att.time_state"], states[2].mT)  # values × keys
    assert torch.equal(states_from_file(saved), states)
    del saved["blocks.1.att.time_state"]
    with pytest.raises(ValueError, match=r"got layers \[0, 2\]"):
        states_from_file(saved)


@pytest.mark.parametrize(
    "saved, kind, message",
    [
        ([torch.zeros(2, 4, 4)], TypeError, "saved must be a dict, as torch.load returns it"),
        ({}, ValueError, "one for each layer, got layers"),
        ({"blocks.0.att.time_state": [1]}, TypeError, "time_state must be a tensor, got list"),
        ({"blocks.0.att.time_state": torch.zeros(4)}, ValueError, r"must be \[H, V, K\]"),
    ],
)
def test_what_is_no_state_file_says_so(saved, kind, message):
    with pytest.raises(kind, match=message):
        states_from_file(saved)
    with pytest.raises(TypeError, match="states must be one of float32"):
        states_to_file(torch.zeros(1, 1, 2, 2).int())
