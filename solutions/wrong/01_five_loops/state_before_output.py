"""The state takes in the current token before the output reads it: it is counted twice."""

import numpy as np


def five_loops(r, k, v, decay, u):
    B, T, H, N = r.shape
    o = np.zeros_like(v)
    for b in range(B):
        for h in range(H):
            s = np.zeros((N, N), np.float32)
            for t in range(T):
                for j in range(N):
                    for i in range(N):
                        kv = k[b, t, h, i] * v[b, t, h, j]
                        s[i, j] = decay[h, i] * s[i, j] + kv
                        o[b, t, h, j] += r[b, t, h, i] * (u[h, i] * kv + s[i, j])
    return o
