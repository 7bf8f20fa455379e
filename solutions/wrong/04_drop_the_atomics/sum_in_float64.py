"""The sum starts from a Python 0, an integer: numba makes it float64, and the loop with it."""

from numba import cuda, float32

N = 64
BLOCK = 32


@cuda.jit
def kernel(r, k, v, decay, u, o):
    B, T, H, _ = r.shape
    thread = cuda.grid(1)
    b, h, j = thread // (H * N), thread // N % H, thread % N
    if b < B:
        s = cuda.local.array(N, float32)
        for i in range(N):
            s[i] = 0
        for t in range(T):
            v_j = v[b, t, h, j]
            o_j = 0
            for i in range(N):
                kv = k[b, t, h, i] * v_j
                o_j += r[b, t, h, i] * (u[h, i] * kv + s[i])
                s[i] = decay[h, i] * s[i] + kv
            o[b, t, h, j] = o_j
