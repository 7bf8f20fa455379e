"""The gradient of the state after the last token is taken for zero."""

import math

from numba import cuda, float32

N = 64
C = 64


@cuda.jit
def backward_sweep(r, k, v, w, u, ds1, do, states, dk, dv, kdk, ds0, a):
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    n = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_v = cuda.shared.array(N, float32)
    s_do = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    row = cuda.local.array(N, float32)  # G[n, j]
    column = cuda.local.array(N, float32)  # G[i, n]
    s_u[n] = u[h, n]
    for m in range(N):
        row[m], column[m] = 0, 0
    for step in range(T):
        t = T - 1 - step
        s_r[n], s_k[n], s_v[n] = r[b, t, h, n], k[b, t, h, n], v[b, t, h, n]
        s_do[n], s_decay[n] = do[b, t, h, n], math.exp(w[b, t, h, n])
        cuda.syncthreads()
        if (t + 1) % C == 0 or step == 0:
            a_n = float32(0)
            for j in range(N):
                a_n += states[b, t // C, h, j, n] * row[j]
            a[b, t // C, h, n] = a_n
        through_g, v_do = float32(0), float32(0)
        for j in range(N):
            through_g += row[j] * s_v[j]
            v_do += s_v[j] * s_do[j]
            row[j] = s_decay[n] * row[j] + s_r[n] * s_do[j]
        dk[b, t, h, n] = through_g + s_u[n] * s_r[n] * v_do
        kdk[b, t, h, n] = s_k[n] * through_g
        dv_n, ruk = float32(0), float32(0)
        for i in range(N):
            dv_n += column[i] * s_k[i]
            ruk += s_r[i] * s_u[i] * s_k[i]
            column[i] = s_decay[i] * column[i] + s_r[i] * s_do[n]
        dv[b, t, h, n] = dv_n + ruk * s_do[n]
        cuda.syncthreads()
    for i in range(N):
        ds0[b, h, i, n] = column[i]
