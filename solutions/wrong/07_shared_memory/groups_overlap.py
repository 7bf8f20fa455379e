"""The groups of four start one apart instead of four."""

from numba import cuda, float32

from rwkv_lessons.launch import load4

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
            r4, k4 = load4(s_r, (i // 4,)), load4(s_k, (i // 4,))
            decay4, u4 = load4(s_decay, (i // 4,)), load4(s_u, (i // 4,))
            for n in range(4):
                kv = k4[n] * v_j
                o_j += r4[n] * (u4[n] * kv + s[i + n])
                s[i + n] = decay4[n] * s[i + n] + kv
        o[b, t, h, j] = o_j
        cuda.syncthreads()
