"""Fills shared memory, and then reads r and k from global memory all the same."""

from numba import cuda, float32

N = 64


@cuda.jit
def shared(r, k, v, decay, u, o):
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
        cuda.syncthreads()  # every element is there before anyone reads
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(N):
            kv = k[b, t, h, i] * v_j
            o_j += r[b, t, h, i] * (s_u[i] * kv + s[i])
            s[i] = s_decay[i] * s[i] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()  # everyone has read before the next token overwrites
