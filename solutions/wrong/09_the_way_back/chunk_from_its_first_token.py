"""The chunk is walked from its first token."""

from numba import cuda

N = 64
C = 64


@cuda.jit
def decay_gradient(rdr, kdk, a, dw):
    B, T, H, _ = dw.shape
    chunks = a.shape[1]
    b, c = cuda.blockIdx.x // (chunks * H), cuda.blockIdx.x // H % chunks
    h, i = cuda.blockIdx.x % H, cuda.threadIdx.x
    first, end = c * C, min(c * C + C, T)
    a_i = a[b, c, h, i]
    for t in range(first, end):
        dw_i = a_i - kdk[b, t, h, i]
        dw[b, t, h, i] = dw_i
        a_i = dw_i + rdr[b, t, h, i]
