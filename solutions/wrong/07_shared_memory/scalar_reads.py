"""Shared memory is still read one float at a time."""

from numba import cuda, float32

N = 64


@cuda.jit
def shared4(r, k, v, decay, u, o):
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s = cuda.local.array(N, float32)
    for i in range(N):
        s[i] = 0
    s_decay[j], s_u[j] = decay[h, j], u[h, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(0, N, 4):
            for n in range(4):
                kv = s_k[i + n] * v_j
                o_j += s_r[i + n] * (s_u[i + n] * kv + s[i + n])
                s[i + n] = s_decay[i + n] * s[i + n] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()
