"""The state starts from whatever the last block left in shared memory."""

from numba import cuda, float32

N = 64


@cuda.jit
def state_in_shared(r, k, v, decay, u, o):
    B, T, H, _ = r.shape
    b, h = cuda.blockIdx.x // H, cuda.blockIdx.x % H
    j = cuda.threadIdx.x
    s_r = cuda.shared.array(N, float32)
    s_k = cuda.shared.array(N, float32)
    s_decay = cuda.shared.array(N, float32)
    s_u = cuda.shared.array(N, float32)
    s_state = cuda.shared.array((N, N), float32)
    s_decay[j], s_u[j] = decay[h, j], u[h, j]
    for t in range(T):
        s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
        cuda.syncthreads()
        v_j = v[b, t, h, j]
        o_j = float32(0)
        for i in range(N):
            kv = s_k[i] * v_j
            o_j += s_r[i] * (s_u[i] * kv + s_state[i, j])
            s_state[i, j] = s_decay[i] * s_state[i, j] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()
