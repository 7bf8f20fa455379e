"""The groups of four are counted, but the index is not multiplied: group 1 starts at element 1."""

from numba import cuda, float32

from rwkv_lessons.launch import load4

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
            for g in range(N // 4):
                r4, k4 = load4(r, (b, t, h, g)), load4(k, (b, t, h, g))
                decay4, u4 = load4(decay, (h, g)), load4(u, (h, g))
                for n in range(4):
                    kv = k4[n] * v_j
                    o_j += r4[n] * (u4[n] * kv + s[4 * g + n])
                    s[4 * g + n] = decay4[n] * s[4 * g + n] + kv
            o[b, t, h, j] = o_j
