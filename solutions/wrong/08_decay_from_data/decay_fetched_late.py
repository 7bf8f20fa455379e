"""The decay is fetched behind the barrier: some threads read the one before."""

import math

from numba import cuda, float32

N = 64


@cuda.jit(launch_bounds=(N, 1))
def kernel(r, k, v, w, u, s0, o, s1):
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    s_u[j] = u[h, j]
    for i in range(N):
        s[i] = s0[b, h, i, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()
        s_decay[j] = math.exp(w[b, t, h, j])
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(N):
            kv = s_k[i] * v_j
            o_j += s_r[i] * (s_u[i] * kv + s[i])
            s[i] = s_decay[i] * s[i] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()
    for i in range(N):
        s1[b, h, i, j] = s[i]
