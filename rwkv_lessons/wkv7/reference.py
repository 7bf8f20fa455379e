"""WKV-7 in plain torch: the recurrence as written. Autograd gives the reference gradients.

The same step in other projects' letters, where the state is `[V, K]` and vectors are columns:

    S[t] = S[t-1] diag(exp(w)) + (S[t-1] a) bᵀ + v kᵀ          o = S[t] r

that of wind_rwkv (its w is x of exp(-exp(x)), and a is applied to the state before the decay, as
here) and of RWKV-LM's kernels (x of exp(-0.6065 · sigmoid(x))). FLA keeps `[K, V]` and takes the
log decay, as this library does.
"""

import torch

from ..runtime.precision import product, sum_dtype
from .options import takes_options


@takes_options
def wkv7_reference(r, w, k, v, a, b, s0=None):
    """Same arguments and results as `wkv7`, one token at a time.

    Computes in float64 where r is float64, else in float32; on any device, gradients included.
    """
    (B, T, H, K), V = r.shape, v.shape[3]
    real = sum_dtype(r.dtype)
    s = r.new_zeros(B, H, K, V, dtype=real) if s0 is None else s0.to(real)
    o = []
    for t in range(T):
        r_t, w_t, k_t, v_t, a_t, b_t = (x[:, t].to(real) for x in (r, w, k, v, a, b))
        z = product(a_t[:, :, None], s)  # [B, H, 1, V]: what the token reads before the decay
        s = w_t.exp()[..., None] * s + b_t[..., None] * z
        s = s + k_t[..., None] * v_t[..., None, :]
        o.append(product(r_t[:, :, None], s)[:, :, 0])
    return torch.stack(o, 1).to(v.dtype), s
