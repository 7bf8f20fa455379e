"""Every way of computing time-x against the sum it stands for, in float64."""

import math

import numpy as np
import pytest
import torch
from support.timex_cases import make

from rwkv_lessons.inputs import timex_inputs
from rwkv_lessons.timex import METHODS, method_for, timex, timex_fft, timex_reference

SHAPES = [(1, 1, 1), (2, 3, 2), (3, 2, 17), (1, 2, 64), (2, 1, 133)]
ANYWHERE = (timex_reference, timex_fft)


def by_hand(w, k, eps):
    """The four loops."""
    B, C, T = k.shape
    o = torch.full_like(k, eps)
    for b, c, t in np.ndindex(B, C, T):
        for u in range(t + 1):
            o[b, c, t] += w[c, (T - 1) - (t - u)] * k[b, c, u]
    return o


@pytest.mark.parametrize("method", ANYWHERE)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_it_is_the_sum(shape, method):
    w, k, _ = make(*shape)
    torch.testing.assert_close(method(w, k, 0.25), by_hand(w, k, 0.25), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_one_line_of_torch(shape):
    w, k, _ = make(*shape)
    C, T = w.shape
    one_line = 0.5 + torch.nn.functional.conv1d(
        torch.nn.functional.pad(k, (T - 1, 0)), w[:, None], groups=C
    )
    torch.testing.assert_close(timex_reference(w, k, 0.5), one_line)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_spectra_are_those_of_the_sum(shape):
    w, k, do = make(*shape)
    found = []
    for method in ANYWHERE:
        leaves = [x.clone().requires_grad_() for x in (w, k)]
        o = method(*leaves)
        found.append((o, *torch.autograd.grad(o, leaves, do)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", ANYWHERE)
def test_second_gradients_of_the_methods_in_torch_are_right(method):
    w, k, _ = make(2, 1, 5)
    assert torch.autograd.gradgradcheck(method, (w.requires_grad_(), k.requires_grad_()))


def test_a_token_looks_at_none_that_come_later():
    w, k, _ = make(1, 2, 40)
    later = k.clone()
    later[..., 30:] = 7
    for method, most in ((timex_reference, 0), (timex_fft, 1e-14)):
        off = (method(w, later) - method(w, k))[..., :30].abs().max()
        assert off <= most


@pytest.mark.parametrize("method", ANYWHERE)
@pytest.mark.parametrize("dtype, unit", [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_precision_is_rounded_once(dtype, unit, method):
    """Sums are float32, so only the rounding of o is left: half a unit of the last place."""
    w, k, _ = make(2, 3, 60, dtype)
    got, want = method(w, k), timex_reference(w.double(), k.double())
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=unit, atol=1e-5)


@pytest.mark.parametrize("method", [*ANYWHERE, timex])
def test_views_and_autocast_change_nothing(method):
    w, k, _ = make(2, 3, 50, torch.float32)
    want = method(w, k)
    views = w.T.contiguous().T, k.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(method(*views), want) and method(*views).is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(method(w, k), want)


def test_weights_may_be_wider_than_what_they_weigh():
    w, k, _ = make(2, 3, 40)
    o = timex(w.float(), k.bfloat16())
    assert o.dtype == torch.bfloat16
    want = timex_reference(w.float().double(), k.bfloat16().double())
    torch.testing.assert_close(o.double(), want, rtol=2**-8, atol=1e-5)
    assert timex(w, k.float()).dtype == torch.float32


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name, change, error, message",
    [
        ("k", lambda x: x[0], ValueError, r"k must be \[B, C, T\] .* got \[3, 4\]"),
        ("k", lambda x: x[:0], ValueError, "k must be .* sizes of at least 1"),
        ("w", lambda x: x[:, 1:], ValueError, r"w must be \[C, T\] = \[3, 4\], got \[3, 3\]"),
        ("w", lambda x: x.T, ValueError, r"w must be \[C, T\] = \[3, 4\], got \[4, 3\]"),
        ("w", lambda x: x.int(), TypeError, "w must be one of float32.* got torch.int32"),
        ("k", lambda x: x.tolist(), TypeError, "k must be a tensor, got list"),
        ("w", lambda x: x.to("meta"), ValueError, "w must be on k's device cpu, got meta"),
        ("eps", lambda x: torch.ones(1), TypeError, "eps must be a number, got Tensor"),
    ],
)
def test_what_is_wrong_is_named(method, name, change, error, message):
    w, k, _ = make(2, 3, 4, torch.float32)
    given = {"w": w, "k": k, "eps": 0.0}
    given[name] = change(given[name])
    for compute in (METHODS[method], timex):
        with pytest.raises(error, match=message):
            compute(**given)


def test_compiled_without_a_graph_break():
    w, k, _ = make(2, 3, 40, torch.float32)
    compiled = torch.compile(timex, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(w, k, 0.5), timex(w, k, 0.5))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_rule_picks_spectra_for_long_rows_only(device, dtype):
    picked = [method_for(device, dtype, 2**n) for n in range(16)]
    assert picked[-1] == "fft" and set(picked) <= set(METHODS)
    first = picked.index("fft")
    assert set(picked[first:]) == {"fft"}
    assert math.log2(2**first) == first and "fft" not in picked[:first]


@pytest.mark.parametrize("T", [33, 512, 8192])
@pytest.mark.parametrize("of_a_model", [False, True])
def test_spectra_are_as_right_as_the_help_says(T, of_a_model):
    drawn = (torch.randn(4, T), torch.randn(2, 4, T))
    w, k = timex_inputs(2, 4, T) if of_a_model else drawn
    error = (timex_fft(w, k) - timex_fft(w.double(), k.double())).abs().amax(-1)
    assert (error <= 3e-7 * w.norm(dim=-1) * k.norm(dim=-1)).all()
    assert "3e-7 of |w| |k|" in timex.__doc__
