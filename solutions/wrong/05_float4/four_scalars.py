"""Four neighbouring elements in a tuple look like one load and compile to four."""

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
            o_j = float32(0)
            for i in range(0, N, 4):
                r4 = r[b, t, h, i], r[b, t, h, i + 1], r[b, t, h, i + 2], r[b, t, h, i + 3]
                k4 = k[b, t, h, i], k[b, t, h, i + 1], k[b, t, h, i + 2], k[b, t, h, i + 3]
                decay4 = decay[h, i], decay[h, i + 1], decay[h, i + 2], decay[h, i + 3]
                u4 = u[h, i], u[h, i + 1], u[h, i + 2], u[h, i + 3]
                for n in range(4):
                    kv = k4[n] * v_j
                    o_j += r4[n] * (u4[n] * kv + s[i + n])
                    s[i + n] = decay4[n] * s[i + n] + kv
            o[b, t, h, j] = o_j
