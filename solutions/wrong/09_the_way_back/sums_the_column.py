"""Thread i moves on row i of the state, but with the values and keys changed over."""

import math

from numba import cuda, float32

N = 64
C = 64


@cuda.jit(launch_bounds=(N, 1))
def forward_sweep(r, k, v, w, u, s0, do, dr, rdr, du, states):
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    i = cuda.threadIdx.x
    s_v = cuda.shared.array(N, float32)
    s_do = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    for j in range(N):
        s[j] = s0[b, h, i, j]
    u_i, du_i = u[h, i], float32(0)
    for t in range(T):
        s_v[i], s_do[i] = v[b, t, h, i], do[b, t, h, i]
        r_i, k_i, decay_i = r[b, t, h, i], k[b, t, h, i], math.exp(w[b, t, h, i])
        cuda.syncthreads()
        through_s, v_do = float32(0), float32(0)
        for j in range(N):
            through_s += s[j] * s_do[j]
            v_do += s_v[j] * s_do[j]
            s[j] = decay_i * s[j] + k[b, t, h, j] * s_v[i]
        dr[b, t, h, i] = through_s + u_i * k_i * v_do
        rdr[b, t, h, i] = r_i * through_s
        du_i += r_i * k_i * v_do
        if (t + 1) % C == 0 or t == T - 1:
            for j in range(N):
                states[b, t // C, h, j, i] = s[j]
        cuda.syncthreads()
    du[b, h, i] = du_i
