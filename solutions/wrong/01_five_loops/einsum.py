"""Right, but not loops: the two inner ones are hidden in array operations that njit cannot read."""

import numpy as np


def five_loops(r, k, v, decay, u):
    B, T, H, N = r.shape
    o = np.zeros_like(v)
    s = np.zeros((B, H, N, N), np.float32)
    for t in range(T):
        kv = np.einsum("bhi,bhj->bhij", k[:, t], v[:, t])
        o[:, t] = np.einsum("bhi,bhij->bhj", r[:, t], u[..., None] * kv + s)
        s = decay[..., None] * s + kv
    return o
