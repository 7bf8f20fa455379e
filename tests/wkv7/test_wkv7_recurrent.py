"""The Triton kernels that go token by token: recurrent, and one step in place."""

import pytest
import torch
from support.wkv7_cases import (
    DECAYS,
    NAMES,
    SINGLE,
    gradients_given,
    in_float64,
    make,
    near,
    packed,
    with_raw,
)

pytest.importorskip("triton")
from support.bfloat16_on_cpu import round_bfloat16  # noqa: E402

from rwkv_lessons.sequences.recurrence import tile_for  # noqa: E402
from rwkv_lessons.wkv7 import wkv7_recurrent, wkv7_step  # noqa: E402
from rwkv_lessons.wkv7.recurrent import backward, forward  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# ‖error‖ / ‖reference‖ of bfloat16: o and gradients are rounded to 8 bits once, 1.7e-3 on average.
ROUNDED = {torch.float32: SINGLE, torch.float16: 3e-4, torch.bfloat16: 2.3e-3}


def launched(x, cu_seqlens=None, scale=1.0, decay="log"):
    """o, s1 and all gradients by the kernels, on a CPU in the interpreter."""
    o, s1, states, reads = forward.forward(*x, cu_seqlens, scale, decay, True)
    do, ds1 = gradients_given(x)
    found = backward.gradients(*x, cu_seqlens, states, reads, do, ds1, scale, decay)
    return [o, s1, *found[: len(x) - x.count(None)]]


def limits(dtype):
    return {"": ROUNDED[dtype], "s1": SINGLE, "ds0": SINGLE}


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize(
    "shape",
    [(2, 1, 2, 5, 7), (1, 35, 1, 8, 20), (1, 16, 2, 24, 3), (1, 15, 1, 4, 4), (1, 17, 1, 4, 4)],
)
def test_recurrent_has_the_values_and_gradients_of_the_recurrence(shape, w):
    x = make(*shape, w, torch.float32, device=DEVICE)
    near(launched(x), in_float64(x), SINGLE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_recurrent_in_halves(dtype, monkeypatch):
    if DEVICE == "cpu":
        round_bfloat16(monkeypatch)
    x = make(1, 20, 2, 8, 6, "mixed", dtype, device=DEVICE)
    near(launched(x), in_float64(x), limits(dtype))


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_a_parameter_for_w(decay):
    x = with_raw(make(1, 20, 2, 8, 6, -1.0, torch.float32, device=DEVICE), decay)
    near(launched(x, decay=decay), in_float64(x, decay=decay), SINGLE)


def test_packed_sequences_with_a_scale():
    x, cu_seqlens = packed(torch.float32, ends=[0, 3, 3, 37, 40], device=DEVICE)
    want = in_float64(x, cu_seqlens=cu_seqlens, scale=0.3)
    near(launched(x, cu_seqlens, 0.3), want, SINGLE)


def test_no_state_before_and_no_gradient_of_the_state():
    *x, _ = make(2, 20, 2, 5, 6, -0.1, torch.float32, device=DEVICE)
    o, s1, states, reads = forward.forward(*x, None, None, 1.0, "log", True)
    do = gradients_given([*x, None])[0]
    found = backward.gradients(*x, None, None, states, reads, do, None, 1.0, "log")
    zeros = torch.zeros(2, 2, 5, 6, device=DEVICE)
    leaves = [y.double().requires_grad_() for y in (*x, zeros)]
    from rwkv_lessons.wkv7 import wkv7_reference

    want, _ = wkv7_reference(*leaves)
    near([o, *found], [want, *torch.autograd.grad(want, leaves, do.double())], 1e-5,
         [NAMES[0], *NAMES[2:]])  # fmt: skip


@pytest.mark.parametrize("K, V", [(5, 6), (100, 36)])
def test_decoding_in_place_is_the_sequence(K, V):
    *x, s0 = make(2, 3, 2, K, V, "mixed", torch.float32, device=DEVICE)
    state, outputs = s0.clone(), []
    for t in range(3):
        outputs.append(wkv7_step(*(y[:, t : t + 1] for y in x), state, scale=0.5))
    want = in_float64([*x, s0], scale=0.5)
    near([torch.cat(outputs, 1), state], want, SINGLE)
    state, token = s0.clone(), [y[:, :1].contiguous() for y in x]
    o, _ = forward.run_forward(*token, state, None, 0.5, "log", s1=state)
    near([o, state], in_float64([*token, s0], scale=0.5), SINGLE)


def test_a_step_refuses_what_it_cannot_overwrite():
    *x, state = make(1, 1, 2, 3, 4, "mixed", torch.float32)
    for wrong, error, message in (
        (state.double(), TypeError, "state must be a tensor of torch.float32"),
        (state.mT.contiguous().mT, ValueError, "contiguous"),
        (state.requires_grad_(), ValueError, "no argument can require a gradient"),
    ):
        with pytest.raises(error, match=message):
            wkv7_step(*x, wrong)
    with pytest.raises(ValueError, match="one token"):
        wkv7_step(*make(1, 2, 1, 2, 2, "mixed", torch.float32))


def test_on_a_cpu_and_in_float64_it_is_the_torch_method():
    x = make(2, 20, 2, 5, 6, -0.1, device=DEVICE)
    near(wkv7_recurrent(*x), in_float64(x), 1e-13)


def test_few_heads_split_their_values_and_large_ones_write_no_more_than_16_parts():
    few, many = (tile_for(heads, 100, 64, 64, 132)[2] for heads in (4, 512))
    assert few == (64, 64, 64, 4) and many == (64, 64, 64, 16)
    assert backward.tile_for(512, 64, 64, 132) == (64, 16, 1)
    BK, BV, warps = backward.tile_for(1, 256, 256, 132)
    assert (BK, -(-256 // BV)) == (256, 16) and warps == 4
