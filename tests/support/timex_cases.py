"""Inputs of time-x, and what is right, in float64."""

import torch

from rwkv_lessons.timex import timex_reference

# Float32 sums of T or B·T products, against float64, over the whole tensor: roundings of 6e-8 of
# either sign, of which some thousands add up.
SINGLE = 2e-6
HALF = {torch.float32: 0, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # rounding of a result
GPU_SHAPES = [(1, 1, 1), (3, 5, 11), (33, 2, 129), (2, 3, 1500), (32, 16, 768), (1, 70_000, 3)]


def make(B, C, T, dtype=torch.float64, device="cpu"):
    """w, k and do."""
    g = torch.Generator().manual_seed(1000 * B + T)
    w, k, do = (torch.randn(*s, generator=g).double() for s in ((C, T), (B, C, T), (B, C, T)))
    return [x.to(device, dtype) for x in (w / T**0.5, k, do)]


def results(method, w, k, do, eps=0.0):
    """o, dw and dk."""
    leaves = [x.detach().clone().requires_grad_() for x in (w, k)]
    o = method(*leaves, eps)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def expected(w, k, do, eps=0.0):
    """The same in float64."""
    return results(timex_reference, w.double(), k.double(), do.double(), eps)


def near(got, want, rounding=0.0, single=SINGLE):
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).norm() <= (single + rounding) * b.norm()
