"""How many digits each dtype gets, on a tensor core as emulated in Triton's interpreter."""

import math

import pytest
import torch
from support.tensor_core import tensor_core  # noqa: F401
from support.wkv6_gradients import draw, expected
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.doubling import wkv6_doubling
from rwkv_lessons.wkv6.recurrent import backward as recurrent_backward
from rwkv_lessons.wkv6.recurrent import forward as recurrent

pytestmark = interpreted
NAMES = "o s1 dr dk dv dw du ds0".split()
METHODS = {"chunked": (chunked, chunked_backward), "recurrent": (recurrent, recurrent_backward)}
# Rounding o or a gradient to float16 costs 2.1e-4. The states, rounded to the 11 bits of TF32 for
# dr, dk and dw, cost as much again where nothing is forgotten, in quadrature: 2.9e-4.
OUTPUT, GRADIENT = 3e-4, 4e-4
# k and v in two pieces leave 4e-6 in bfloat16, 8e-6 in float16; the decays in two, 4e-6.
STATE = 1e-5


def errors(method, inputs, do, ds1, lengths=None, scale=1.0, raw=False):
    """‖x - reference‖ / ‖reference‖ of o, s1 and every gradient."""
    forward, backward = METHODS[method]
    ends = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0)
    options = {"cu_seqlens": ends, "scale": scale, "raw_decay": raw}
    o, s1, kept = forward.forward(*inputs, *options.values(), True)
    results = backward.gradients(*inputs, ends, kept, do, ds1, scale, raw)
    wanted = wkv6_doubling(*(x.double() for x in inputs), **options)
    wanted = *wanted, *expected(inputs, do, ds1, lengths, scale, raw)
    pairs = zip(NAMES, (o, s1, *results), wanted, strict=True)
    return {n: ((x.double() - y).norm() / y.norm()).item() for n, x, y in pairs}


def draw_float16(decay, w_dtype, raw=False, **sizes):
    sizes = {"B": 1, "T": 70, "H": 1, "K": 64, "V": 64} | sizes
    inputs, do, ds1 = draw(**sizes, decay=decay, dtype=torch.float16)
    inputs[3] = draw(**sizes, decay=decay)[0][3]
    if raw:
        inputs[3] = torch.log(-inputs[3]).clamp(-20, 20)
    inputs[3] = inputs[3].to(w_dtype)
    return inputs, do, ds1


def hold(found):
    for name, error in found.items():
        limit = {"o": OUTPUT, "s1": STATE}.get(name, GRADIENT)
        assert error <= limit, f"{name} {error:.1e}"


# Weaker and stronger than factors over 16, 8, 4 and 2 tokens; dw of -7 is the smallest that
# float16 holds to 11 bits.
@pytest.mark.parametrize("w_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -1e-3, -0.5, -3.4, -3.6, -7.1])
@pytest.mark.parametrize("method", METHODS)
def test_float16_is_as_good_as_its_rounding(method, decay, w_dtype):
    N = 64 if method == "chunked" else 16
    hold(errors(method, *draw_float16(decay, w_dtype, K=N, V=N)))


@pytest.mark.parametrize("decay", [-13.7, -14.0, -27.5, -28.0])
def test_float16_with_decays_that_leave_nothing(decay):
    """Their dw is below what float16 can hold, so they and it are float32."""
    hold(errors("chunked", *draw_float16(decay, torch.float32)))


@pytest.mark.parametrize("decay", ["mixed", -3.6])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_float16_with_every_option(method, raw, decay):
    lengths = (5, 0, 1, 34)
    sizes = {"T": sum(lengths), "H": 1, "K": 12, "V": 20, "sequences": len(lengths)}
    inputs, do, ds1 = draw_float16(decay, torch.float16, raw, **sizes)
    hold(errors(method, inputs, do, ds1, lengths, 0.3, raw))


def test_float16_with_large_heads():
    hold(errors("chunked", *draw_float16("mixed", torch.float16, K=128, V=128)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_states_have_five_digits_for_any_decay_in_float32(method, raw, dtype):
    """Of the decays of about one rate, the one that two pieces of bfloat16 hold worst."""
    w = -torch.linspace(0.04, 0.08, 10_000)
    held = w.bfloat16().float()
    held = held + (w - held).bfloat16()
    given, do, ds1 = draw(1, 300 if method == "chunked" else 70, 1, 16, 16, dtype=dtype)
    w = w[((held - w) / w).abs().argmax()].item()
    given[3] = torch.full(given[3].shape, math.log(-w) if raw else w)
    assert errors(method, given, do, ds1, raw=raw)["s1"] <= STATE
