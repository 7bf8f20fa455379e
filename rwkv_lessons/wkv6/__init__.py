"""WKV-6, the time mixing of RWKV-6: a matrix state whose rows decay at rates that the data sets.

For each head, with row vectors r, k, v, w, u and a K × V state S:

    o[t] = r[t] (S[t-1] + diag(u) k[t]ᵀ v[t])
    S[t] = diag(exp(w[t])) S[t-1] + k[t]ᵀ v[t]

With the same w for every token it is WKV-5.
"""

import torch

from .cuda import wkv6_cuda
from .doubling import wkv6_doubling
from .reference import wkv6_reference
from .tiles import LARGEST

METHODS = {"reference": wkv6_reference, "doubling": wkv6_doubling, "cuda": wkv6_cuda}


def wkv6(r, k, v, w, u, s0=None):
    """Mixes time with the RWKV-6 recurrence: numba kernels on a GPU, matrix products elsewhere.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        v: value, `[B, T, H, V]`, of the same dtype.
        w: log decay, `[B, T, H, K]`, at most 0 and as low as -inf; before token t is added, the
            state is multiplied by `exp(w[t])`. Any of these dtypes; float32 tells slow ones apart.
        u: bonus of the current token, `[H, K]`.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.

    Returns:
        o `[B, T, H, V]` in r's dtype and the state after the last token s1 `[B, H, K, V]`, float32
        (float64 where r is). All arguments have gradients, through o and through s1.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    given = (r, k, v, w, u, s0)
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    on_gpu = len(tensors) > 0 and all(x.is_cuda and x.dtype != torch.float64 for x in tensors)
    fits = on_gpu and max(x.shape[-1] for x in tensors) <= LARGEST
    if fits:
        return wkv6_cuda(*given)
    one_token = len(tensors) > 0 and tensors[0].shape[1:2] == (1,)  # nothing to make chunks of
    return (wkv6_reference if one_token else wkv6_doubling)(*given)
