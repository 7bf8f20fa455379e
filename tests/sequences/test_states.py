"""Rounding states to float16: the same bits in Triton and in torch, and right on average."""

import math

import pytest
import torch

from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.sequences import arguments
from rwkv_lessons.sequences.states.pool import rounded

if TRITON:
    import triton
    import triton.language as tl

    from rwkv_lessons.sequences.states.rounding import rounded as in_triton

    @triton.jit
    def rounding_kernel(x, y, seeds, H, K: tl.constexpr, V: tl.constexpr):
        i_n, i_h = tl.program_id(0) // H, tl.program_id(0) % H
        o_k, o_v = tl.arange(0, K), tl.arange(0, V)
        at = tl.program_id(0) * K * V + o_k[:, None] * V + o_v[None, :]
        seed = tl.load(seeds + i_n).to(tl.int32)
        b_x = in_triton(tl.load(x + at), seed, i_h * K + o_k, i_h * V + o_v, tl.float16, True)
        tl.store(y + at, b_x)


def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average():
    x = torch.tensor([1 + 2**-12, -3.14159, 700.3, 6.2e-5, -1e-4, 2.0**-14, 0.0, 65504.0])
    s, many = x.view(1, 1, -1, 1), 4000
    seeds = torch.arange(many)
    got = rounded(s.expand(many, -1, -1, -1), torch.float16, seeds)[:, 0, :, 0]
    nearest = x.half()
    step = (torch.nextafter(nearest.abs(), torch.tensor(math.inf).half()) - nearest.abs()).float()
    step[-1] = 32.0  # next to the largest there is
    assert ((got.float() - x).abs() < step).all()
    for n, exact in enumerate(x.half().float() == x):
        assert len({*got[:, n].tolist()}) == (1 if exact else 2)
    # The mean of 4,000 is right to half a step over √4000, four times that at the most here.
    assert ((got.double().mean(0) - x).abs() <= 4 * 0.5 * step / many**0.5).all()


def test_subnormal_numbers_are_at_most_a_step_off():
    x = torch.tensor([3e-5, -5e-8, 2.0**-24, 1e-30])
    for seed in range(20):
        got = rounded(x.view(1, 1, -1, 1), torch.float16, torch.tensor([seed]))[0, 0, :, 0]
        assert ((got.float() - x).abs() <= 2.0**-24).all()


def test_what_float16_does_not_hold_is_rounded_as_ever():
    x = torch.tensor([math.nan, math.inf, -math.inf, 70000.0, -1e30])
    x = torch.cat([x, torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)])
    got = rounded(x.view(1, 1, -1, 1), torch.float16, torch.tensor([3]))[0, 0, :, 0]
    assert torch.equal(got, x.half()) or torch.equal(got.isnan(), x.half().isnan())
    assert torch.equal(got[1:5], x[1:5].half())


@pytest.mark.skipif(not TRITON, reason="needs Triton")
def test_triton_rounds_to_the_same_bits():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(3, 2, 16, 8, device=device) * torch.logspace(-8, 5, 16, device=device)[:, None]
    seeds = torch.tensor([0, -5, 2**31 - 1], device=device)
    y = torch.empty_like(x, dtype=torch.float16)
    rounding_kernel[(6,)](x, y, seeds, 2, 16, 8)
    assert torch.equal(y, rounded(x, torch.float16, seeds))


@pytest.mark.parametrize("value, on", [("", False), ("0", False), ("1", True)])
def test_a_variable_is_on_or_off(value, on, monkeypatch):
    monkeypatch.setenv(arguments.CHECK, value)
    assert arguments.is_on(arguments.CHECK) is on
    monkeypatch.setenv(arguments.CHECK, "maybe")
    with pytest.raises(ValueError, match="CHECK_CU_SEQLENS is 'maybe', needs 1"):
        arguments.is_on(arguments.CHECK)
