"""The Triton kernels that go token by token: recurrent, backstepping, one step in place."""

import math

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

from rwkv_lessons.wkv7 import backstepping as stepping_back  # noqa: E402
from rwkv_lessons.wkv7 import wkv7_backstepping, wkv7_recurrent, wkv7_step  # noqa: E402
from rwkv_lessons.wkv7.recurrent import backward, forward  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
METHODS = {
    "recurrent": (forward.forward, backward.gradients),
    "backstepping": (stepping_back.forward, stepping_back.gradients),
}
# ‖error‖ / ‖reference‖ of bfloat16: o and gradients are rounded to 8 bits once, 1.7e-3 on average.
ROUNDED = {torch.float32: SINGLE, torch.float16: 3e-4, torch.bfloat16: 2.3e-3}


def launched(method, x, cu_seqlens=None, scale=1.0, decay="log"):
    """o, s1 and all gradients by the kernels, on a CPU in the interpreter."""
    run, back = METHODS[method]
    o, s1, states, reads = run(*x, cu_seqlens, scale, decay, True)
    do, ds1 = gradients_given(x)
    found = back(*x, cu_seqlens, states, reads, do, ds1, scale, decay)
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
    near(launched("recurrent", x), in_float64(x), SINGLE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_recurrent_in_halves(dtype, monkeypatch):
    if DEVICE == "cpu":
        round_bfloat16(monkeypatch)
    x = make(1, 20, 2, 8, 6, "mixed", dtype, device=DEVICE)
    near(launched("recurrent", x), in_float64(x), limits(dtype))


# Stepping back divides by the decay up to 16 times: what that makes of 2⁻²⁴, and some sums.
@pytest.mark.parametrize("w, limit", [(0.0, SINGLE), (-0.1, 1e-5), (-math.exp(-0.5), 2e-3)])
def test_backstepping_is_right_as_far_as_the_decay_lets_it(w, limit):
    x = make(1, 35, 2, 8, 6, w, torch.float32, device=DEVICE)
    got, want = launched("backstepping", x), in_float64(x)
    near(got[:2], want[:2], SINGLE)
    near(got, want, limit)


def test_stepping_back_beyond_its_range_would_be_wrong_and_is_refused():
    x = make(1, 35, 2, 8, 6, math.log(0.2), torch.float32, device=DEVICE)
    states = forward.states_shape(x[0], x[3], None, True, stepping_back.SPAN)
    states, reads = torch.empty(states, device=DEVICE), torch.empty_like(x[3])
    forward.run_forward(*x, None, 1.0, "log", states, reads, span=stepping_back.SPAN)
    da = stepping_back.gradients(*x, None, states, reads, *gradients_given(x), 1.0, "log")[4]
    want = in_float64(x)[6]
    assert (da.double() - want).norm() > 0.1 * want.norm()
    x[0].requires_grad_()
    with pytest.raises(ValueError, match="w must keep the decay at 0.5439 or more .* got 0.2"):
        wkv7_backstepping(*x)
    with torch.no_grad():  # without gradients there is nothing to step back for
        wkv7_backstepping(*x)
    with pytest.raises(ValueError, match="to step back, got 0;"):
        wkv7_backstepping(*with_raw(x, "raw"), decay="raw")


def test_nan_is_not_in_the_range():
    x = make(1, 3, 1, 4, 4, -0.1, torch.float32)
    x[1][0, 1, 0, 2] = math.nan
    with pytest.raises(ValueError, match="got nan"):
        stepping_back.check_decay(x[1], "log")


@pytest.mark.parametrize("decay", ["raw", "clamp"])
@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_for_w(method, decay):
    if (method, decay) == ("backstepping", "raw"):
        x = make(1, 20, 2, 8, 6, -1.0, torch.float32, device=DEVICE)  # decays of exp(-exp(-1))
    else:
        x = with_raw(make(1, 20, 2, 8, 6, -1.0, torch.float32, device=DEVICE), decay)
    limit = SINGLE if method == "recurrent" else 1e-3  # decays down to 0.545, as above
    near(launched(method, x, decay=decay), in_float64(x, decay=decay), limit)


@pytest.mark.parametrize("method", METHODS)
def test_packed_sequences_with_a_scale(method):
    x, cu_seqlens = packed(torch.float32, ends=[0, 3, 3, 37, 40], device=DEVICE)
    if method == "backstepping":
        x[1] = x[1].clamp(min=-0.1)
    want = in_float64(x, cu_seqlens=cu_seqlens, scale=0.3)
    near(launched(method, x, cu_seqlens, 0.3), want, SINGLE if method == "recurrent" else 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_no_state_before_and_no_gradient_of_the_state(method):
    *x, _ = make(2, 20, 2, 5, 6, -0.1, torch.float32, device=DEVICE)
    run, back = METHODS[method]
    o, s1, states, reads = run(*x, None, None, 1.0, "log", True)
    do = gradients_given([*x, None])[0]
    found = back(*x, None, None, states, reads, do, None, 1.0, "log")
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
        (state.requires_grad_(), ValueError, "no argument may need a gradient"),
    ):
        with pytest.raises(error, match=message):
            wkv7_step(*x, wrong)
    with pytest.raises(ValueError, match="one token"):
        wkv7_step(*make(1, 2, 1, 2, 2, "mixed", torch.float32))


def test_on_a_cpu_and_in_float64_it_is_the_torch_method():
    x = make(2, 20, 2, 5, 6, -0.1, device=DEVICE)
    near(wkv7_recurrent(*x), in_float64(x), 1e-13)
    near(wkv7_backstepping(*x), in_float64(x), 1e-13)


def test_few_heads_split_their_values_and_large_ones_write_no_more_than_16_parts():
    few, many = (forward.tile_for(heads, 100, 64, 64, 132)[2] for heads in (4, 512))
    assert few == (64, 64, 64, 4) and many == (64, 64, 64, 16)
    assert backward.tile_for(512, 64, 64, 132) == (64, 16, 1)
    BK, BV, warps = backward.tile_for(1, 256, 256, 132)
    assert (BK, -(-256 // BV)) == (256, 16) and warps == 4
