"""Inputs, tolerances and float64 results that the tests of WKV-7 share."""

import math

import torch

from rwkv_lessons.wkv7 import wkv7_reference

NAMES = "o s1 dr dw dk dv da db ds0".split()
# "mixed": rates from a memory of 150 tokens to one of none, and some keys at -inf. The others are
# the same for all: decays of 1, 0.5, 0.001 and 0.
DECAYS = ["mixed", 0.0, math.log(0.5), math.log(0.001), -math.inf]

# ‖error‖ / ‖reference‖ of float32 sums over a hundred terms; measured: up to 8e-7 where decays are
# of all rates. exp(w) is right to 2⁻²⁵ of itself: w that is the same at every token costs no more,
# as the delta rule forgets what such a decay keeps.
SINGLE = 3e-6


def make(B, T, H, K, V, w="mixed", dtype=torch.float64, w_dtype=None, device="cpu"):
    """r, w, k, v, a, b, s0 as a model has them: b is a rate times a unit vector, a minus that."""
    g = torch.Generator().manual_seed(B * T + K)
    r, k, kappa, v, s0 = (
        torch.randn(*size, generator=g, dtype=torch.float64)
        for size in (*[(B, T, H, K)] * 3, (B, T, H, V), (B, H, K, V))
    )
    rate, of_b = torch.rand(2, B, T, H, K, generator=g, dtype=torch.float64)
    if w == "mixed":
        w = (-torch.exp(-5 + 10 * rate)).masked_fill(rate > 0.97, -math.inf)
    else:
        w = torch.full_like(rate, w)
    kappa = torch.nn.functional.normalize(kappa, dim=-1)
    tensors = (r, k / K**0.5, v, -kappa, kappa * of_b)
    r, k, v, a, b = (x.to(device, dtype) for x in tensors)
    state = dtype if dtype == torch.float64 else torch.float32
    return [r, w.to(device, w_dtype or dtype), k, v, a, b, s0.to(device, state)]


def gradients_given(x):
    """do and ds1, drawn in float64."""
    g = torch.Generator().manual_seed(7)
    r, v, s0 = x[0], x[3], x[6]
    sequences = r.shape[0] if s0 is None else s0.shape[0]
    do = torch.randn(v.shape, generator=g).to(v.device, v.dtype)
    return do, torch.randn(sequences, *r.shape[2:], v.shape[-1], generator=g).to(v.device)


def results(f, x, **options):
    """o, s1 and the gradients of all arguments for fixed do and ds1."""
    leaves = [None if y is None else y.detach().requires_grad_() for y in x]
    o, s1 = f(*leaves, **options)
    do, ds1 = gradients_given(x)
    learned = [y for y in leaves if y is not None]
    return o, s1, *torch.autograd.grad([o, s1], learned, [do.to(o.dtype), ds1.to(s1.dtype)])


def in_float64(x, **options):
    """The reference's results on the same numbers."""
    do = gradients_given(x)[0]  # rounded to x's dtype, as `results` gives it
    x = [None if y is None else y.double() for y in x]
    leaves = [None if y is None else y.requires_grad_() for y in x]
    o, s1 = wkv7_reference(*leaves, **options)
    learned = [y for y in leaves if y is not None]
    d_outputs = [do.double(), gradients_given(x)[1].double()]
    return o, s1, *torch.autograd.grad([o, s1], learned, d_outputs)


def near(got, want, limits, names=NAMES):
    """Holds ‖got - want‖ ≤ limit · ‖want‖; a reference of zeros asks for zeros."""
    for name, x, y in zip(names, got, want, strict=False):
        limit = limits.get(name, limits[""]) if isinstance(limits, dict) else limits
        error, size = (x.double() - y).norm().item(), y.norm().item()
        assert error <= limit * size, f"{name}: ‖error‖ {error:.1e}, ‖reference‖ {size:.1e}"


ENDS = [0, 3, 3, 20, 22]  # of packed sequences, an empty one among them


def packed(dtype=torch.float64, K=5, V=6, ends=ENDS, device="cpu"):
    """Inputs with one state per sequence, and cu_seqlens."""
    x = make(1, ends[-1], 2, K, V, "mixed", dtype, device=device)
    s0 = make(len(ends) - 1, 1, 2, K, V, "mixed", dtype, device=device)[6]
    return [*x[:6], s0], torch.tensor(ends, dtype=torch.int32, device=device)


def with_raw(x, decay):
    """The same inputs with w as `decay` takes it, some of it as strong and as weak as there is."""
    g = torch.Generator().manual_seed(3)
    raw = 2 * torch.randn(x[1].shape, generator=g)
    extremes = [math.inf, 9.0, -math.inf] if decay == "raw" else [80.0, 9.0, -80.0]
    raw[0, 0, 0, :3] = torch.tensor(extremes)
    return [x[0], raw.to(x[1]), *x[2:]]
