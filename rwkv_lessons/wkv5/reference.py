"""WKV-5 in plain torch: the recurrence as written. Autograd gives the reference gradients."""

import torch

from ..runtime.precision import outside_autocast, product, sum_dtype
from .arguments import check_arguments


@outside_autocast
def wkv5_reference(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv5`, one token at a time.

    Computes in float64 where r is float64, else in float32; on any device, gradients included.
    """
    B, T, H, K, V = check_arguments(r, k, v, w, u, s0)
    real = sum_dtype(r.dtype)
    s = r.new_zeros(B, H, K, V, dtype=real) if s0 is None else s0.to(real)
    decay = w.to(real).exp()[:, :, None]  # [H, K, 1]: one rate per key, the same for all values
    bonus = u.to(real)[:, :, None]
    o = []
    for t in range(T):
        r_t, k_t, v_t = (x[:, t].to(real) for x in (r, k, v))  # [B, H, K or V]
        kv = k_t[..., :, None] * v_t[..., None, :]  # [B, H, K, V]
        o.append(product(r_t[:, :, None], bonus * kv + s)[:, :, 0])
        s = decay * s + kv
    return torch.stack(o, 1).to(v.dtype), s.contiguous()
