"""The inputs of `wkv7` that compute Kimi's delta attention, in torch, on any device.

For each head of a token, with what the layer may leave to be made of k, q, g and β beforehand:

    r = q        w = g        k = b = β k        a = −exp(w) ∘ k

kernels.py computes the same in one kernel.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from ...runtime.precision import sum_dtype

ANY_DECAY = 128  # keys of a head whose gradients `fused` computes fast for any decay
EPSILON = 1e-6  # that FLA adds to the square of a vector's length


class KDAForm(NamedTuple):
    """What is made of the arguments beforehand.

    Attributes:
        dtype: of r, k, b and a; see `dtype_of_w`.
        norm: whether q and k get the length 1.
        gate: "softplus": the log decay is −exp(A_log) · softplus(g + dt_bias). "sigmoid":
            lower_bound · sigmoid(exp(A_log) · (g + dt_bias)). "": it is g.
        lower_bound: of the gate "sigmoid".
        rate: β is `rate` · sigmoid(beta); beta if 0.
        learns: whether the call needs gradients.
    """

    dtype: torch.dtype
    norm: bool = False
    gate: str = ""
    lower_bound: float = 0.0
    rate: int = 0
    learns: bool = False

    def dtype_of_w(self, g, keys):
        """As g's, and float32 from a gate. Among tensors in bfloat16 it decides wkv7's method.

        w in bfloat16 lets `fused` take the call, in half of the time of `chunked`. A product of
        decays exp(W) is then off by at most |W| exp(W) 2⁻⁸ ≤ 0.37 · 2⁻⁸, however many log decays
        add up to W: less than by rounding the product itself. But for heads of other than 128
        keys, the gradients of `fused` go token by token through 64 tokens that decay below
        exp(-120), which those of a layer may. With gradients of such heads, w is in float32.
        """
        if self.dtype == torch.bfloat16:
            slow = self.learns and keys != ANY_DECAY
            return sum_dtype(g.dtype) if slow else self.dtype
        return sum_dtype(g.dtype) if self.gate else g.dtype


def in_torch(q, k, g, beta, A_log, dt_bias, form):
    """r, w, k, b and a of `wkv7`, with gradients of every order.

    Args:
        q, k: `[B, T, H, K]`.
        g: `[B, T, H, K]`, or `[B, T, H, 1]`: one decay for a head.
        beta: `[B, T, H]`.
        A_log, dt_bias: of a gate, `[H]` and `[H, K]`; None for zeros.
    """
    if form.rate:
        beta = beta.to(sum_dtype(beta.dtype)).sigmoid() * form.rate
    if form.gate:
        g = _gated(g, A_log, dt_bias, form)
    if form.norm:
        q, k = unit(q), unit(k)
    return q.to(form.dtype), *_Mapping.apply(k, g, beta, form)


def _gated(g, A_log, dt_bias, form):
    x = g.to(sum_dtype(g.dtype))
    if dt_bias is not None:
        x = x + dt_bias.to(x.dtype)
    size = 1 if A_log is None else A_log.to(x.dtype).exp()[:, None]
    if form.gate == "softplus":
        return -size * F.softplus(x)
    return form.lower_bound * torch.sigmoid(size * x)


def unit(x):
    """x of length 1, as FLA divides: a vector of zeros stays one."""
    x = x.to(sum_dtype(x.dtype))
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


class _Mapping(torch.autograd.Function):
    """(k, g, beta, form) → w, βk twice, a.

    βk comes twice, the same memory, for two gradients: they nearly cancel where the state already
    holds v, and are added before the sum is rounded. exp(w) is computed again in the backward
    pass. a is made of the rounded w, so that β of what the decay leaves is removed.
    """

    @staticmethod
    def forward(k, g, beta, form):
        dtype = form.dtype
        w = g.to(form.dtype_of_w(g, k.shape[-1])).expand(k.shape)
        alpha = w.to(sum_dtype(dtype)).exp()
        a, written = (torch.empty_like(k, dtype=dtype) for _ in range(2))
        torch.addcmul(alpha.new_zeros(()), alpha, k, value=-1, out=a)
        torch.mul(beta[..., None], k, out=written)
        return w, written, written.view(written.shape), a

    @staticmethod
    def setup_context(ctx, inputs, output):
        k, g, beta, _ = inputs
        ctx.save_for_backward(k, output[0], beta, output[3])
        ctx.g_is = g.shape, g.dtype

    @staticmethod
    def backward(ctx, dw, dk, db, da):
        k, w, beta, a = ctx.saved_tensors
        shape, dtype = ctx.g_is
        real = sum_dtype(da.dtype)
        dwritten = dk.to(real) + db
        dg = torch.addcmul(dw.to(real), a.to(real), da.to(real)).sum_to_size(shape)
        dk = torch.addcmul(beta.to(real)[..., None] * dwritten, w.to(real).exp(), da, value=-1)
        dbeta = (dwritten * k).sum(-1)
        return dk.to(k.dtype), dg.to(dtype), dbeta.to(beta.dtype), None
