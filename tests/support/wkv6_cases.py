"""Inputs, tolerances and float64 results that the tests of WKV-5 and WKV-6 share."""

import math

import torch

from rwkv_lessons.wkv6 import wkv6_reference

NAMES = "o s1 dr dk dv dw du ds0".split()


# "mixed": rates from a memory of 150 tokens to one of none, and some channels at -inf.
DECAYS = ["mixed", -1e-4, -1.0, -8.0, -50.0, -math.inf]


SINGLE = 2e-6  # ‖error‖ / ‖reference‖ of float32 sums over a hundred terms; measured: up to 8e-7


# exp(w) in float32 is right to 2⁻²⁵ of itself. Where w is the same at every token these errors do
# not average out: the state is then wrong by that for every token that it remembers.
DECAY = 2**-24


HALF = {torch.float32: 0, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def make(B, T, H, K, V, w="mixed", dtype=torch.float64, w_dtype=None, device="cpu"):
    g = torch.Generator().manual_seed(B * T + K)
    r, k, v = (torch.randn(B, T, H, n, generator=g, dtype=torch.float64) for n in (K, K, V))
    rate = torch.rand(B, T, H, K, generator=g)
    w = -torch.exp(-5 + 10 * rate) if w == "mixed" else torch.full_like(rate, w)
    w = w.masked_fill(rate > 0.97, -math.inf) if (w[..., :1] != w).any() else w
    u, s0 = torch.randn(H, K, generator=g), torch.randn(B, H, K, V, generator=g)
    state = dtype if dtype == torch.float64 else torch.float32
    parts = [(r, dtype), (k / K**0.5, dtype), (v, dtype), (w, w_dtype or dtype)]
    return [x.to(device, kind) for x, kind in [*parts, (u, state), (s0, state)]]


def results(f, x, do=None, ds1=None):
    """o, s1 and the gradients of all arguments for fixed do and ds1."""
    leaves = [None if y is None else y.detach().requires_grad_() for y in x]
    o, s1 = f(*leaves)
    do, ds1 = gradients_given(x) if do is None else (do, ds1)
    learned = [y for y in leaves if y is not None]
    return o, s1, *torch.autograd.grad([o, s1], learned, [do.to(o.dtype), ds1.to(s1.dtype)])


def gradients_given(x):
    g = torch.Generator().manual_seed(7)
    r, v = x[0], x[2]
    do = torch.randn(v.shape, generator=g).to(v.device, v.dtype)
    return do, torch.randn(v.shape[0], *r.shape[2:], v.shape[-1], generator=g).to(v.device)


def in_float64(x):
    """The reference's results on the same numbers."""
    do, ds1 = gradients_given(x)
    x = [None if y is None else y.double() for y in x]
    return results(wkv6_reference, x, do.double(), ds1.double())


def near(got, want, limits, names=NAMES):
    """Holds ‖got - want‖ ≤ limit · ‖want‖; a reference of zeros asks for zeros."""
    for name, a, b in zip(names, got, want, strict=False):
        limit = limits
        if isinstance(limits, dict):
            limit = limits[name if name in limits else ""]
        error, size = (a.double() - b).norm().item(), b.norm().item()
        assert error <= limit * size, f"{name}: ‖error‖ {error:.1e}, ‖reference‖ {size:.1e}"


GPU_SHAPES = [(2, 33, 3, 5, 7), (1, 100, 2, 100, 100), (1, 40, 150, 128, 64), (1, 9, 1, 1024, 24),
              (1, 9, 1, 24, 1024), (3, 21, 64, 64, 64), (1, 1, 70_000, 8, 4)]  # fmt: skip
