"""WKV-6 in plain torch: the recurrence as written. Autograd gives the reference gradients."""

import torch

from ..runtime.precision import product, sum_dtype
from .options import takes_options


@takes_options()
def wkv6_reference(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv6`, one token at a time.

    Computes in float64 where r is float64, else in float32; on any device, gradients included.
    """
    (B, T, H, K), V = r.shape, v.shape[3]
    real = sum_dtype(r.dtype)
    s = r.new_zeros(B, H, K, V, dtype=real) if s0 is None else s0.to(real)
    bonus = u.to(real)[:, :, None]  # [H, K, 1]
    o = []
    for t in range(T):
        r_t, k_t, v_t, w_t = (x[:, t].to(real) for x in (r, k, v, w))  # [B, H, K or V]
        kv = k_t[..., :, None] * v_t[..., None, :]  # [B, H, K, V]
        o.append(product(r_t[:, :, None], bonus * kv + s)[:, :, 0])
        s = w_t.exp()[..., None] * s + kv  # a rate for every token and key
    return torch.stack(o, 1).to(v.dtype), s
