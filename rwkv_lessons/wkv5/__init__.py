"""WKV-5, the time mixing of RWKV-5: a matrix state with a fixed decay rate for each row.

For each head, with row vectors r, k, v, w, u and a K × V state S:

    o[t] = r[t] (S[t-1] + diag(u) k[t]ᵀ v[t])
    S[t] = diag(exp(w)) S[t-1] + k[t]ᵀ v[t]
"""

import functools

import torch

from ..runtime.packages import NUMBA, needed_by
from .arguments import LARGEST
from .chunked import wkv5_chunked
from .reference import wkv5_reference

__all__ = ["METHODS", "wkv5", "wkv5_chunked", "wkv5_reference", *["wkv5_cuda"] * NUMBA]


def _cuda():
    """The method in numba, which is imported when it is first wanted."""
    from .cuda import wkv5_cuda

    return wkv5_cuda


_known_cuda = functools.cache(_cuda)  # an import statement costs the host 1 µs


def __getattr__(name):
    if name == "wkv5_cuda":
        with needed_by(name):
            value = _cuda()
    elif name == "METHODS":
        value = {"reference": wkv5_reference, "chunked": wkv5_chunked}
        value |= {"cuda": _cuda()} if NUMBA else {}
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def wkv5(r, k, v, w, u, s0=None):
    """Mixes time with the RWKV-5 recurrence: numba kernels on a GPU, matrix products elsewhere.

    Without numba-cuda (the extra [cuda]), it uses matrix products on a GPU too.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        v: value, `[B, T, H, V]`, of the same dtype.
        w: log decay, `[H, K]`, at most 0 and as low as -inf; the state is multiplied by `exp(w)`.
        u: bonus of the current token, `[H, K]`.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.

    Returns:
        o `[B, T, H, V]` in r's dtype, and s1 `[B, H, K, V]`, the state after the last token, in
        float32 (float64 if r is). All arguments have gradients, through both o and s1.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    arguments = (r, k, v, w, u, s0)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    on_gpu = len(tensors) > 0 and all(x.is_cuda and x.dtype != torch.float64 for x in tensors)
    if NUMBA and on_gpu and max(x.shape[-1] for x in tensors) <= LARGEST:
        return (_cuda if torch.compiler.is_compiling() else _known_cuda)()(*arguments)
    one_token = len(tensors) > 0 and tensors[0].shape[1:2] == (1,)  # nothing to make chunks of
    return (wkv5_reference if one_token else wkv5_chunked)(*arguments)
