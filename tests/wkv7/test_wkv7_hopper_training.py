"""RWKV-7's fused passes, one after the other as autograd calls them, on the CPU."""

import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import NAMES, gradients_given, in_float64, make, near, with_raw

from rwkv_lessons.runtime.packages import TRITON

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from support.wkv7_fused import KERNELS, simulator

from rwkv_lessons.wkv7.chunked.hopper import backward, forward

LIMIT = 5.5e-3  # of gradients, as verify has it


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    for module, launch, name in KERNELS:
        monkeypatch.setattr(module, launch, simulator(Mutable(getattr(module, name))))


def trained(x, cu_seqlens=None, scale=1.0, decay="log", of_o=True, of_s1=True):
    """o, s1 and all gradients for the do and ds1 of `gradients_given`."""
    do, ds1 = gradients_given(x)
    *results, nothing = forward.forward(*x, cu_seqlens, scale, decay, True)
    o, s1, states = results
    given = do if of_o else None, ds1 if of_s1 else None
    found = backward.gradients(*x, cu_seqlens, states, nothing, *given, scale, decay)
    return [o, s1, *found]


@pytest.mark.parametrize("w", [-0.1, -1.5, -math.inf])
def test_values_and_gradients_are_those_of_the_recurrence(w):
    x = make(1, 130, 1, 64, 64, w, torch.bfloat16)
    near(trained(x), in_float64(x), LIMIT)


def test_packed_sequences_with_a_scale_and_decays_of_a_parameter():
    x = with_raw(make(1, 150, 1, 64, 64, 0.0, torch.bfloat16), "clamp")
    x[6] = torch.randn(3, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([0, 70, 70, 150], dtype=torch.int32)
    options = {"cu_seqlens": ends, "scale": 0.3, "decay": "clamp"}
    near(trained(x, **options), in_float64(x, **options), LIMIT)


def test_gradients_that_are_not_given_count_as_zeros():
    x = make(1, 70, 1, 64, 64, -0.1, torch.bfloat16)
    whole = trained(x)[2:]
    of_o, of_s1 = trained(x, of_s1=False)[2:], trained(x, of_o=False)[2:]
    near([a.double() + b.double() for a, b in zip(of_o, of_s1, strict=True)],
         [y.double() for y in whole], LIMIT, NAMES[2:])  # fmt: skip
