"""The functions of wind_rwkv's `rwkv7`, computed by `wkv7`: a compatible API.

In code written for wind_rwkv, change only the import, to `rwkv_lessons.interop.wind_rwkv`. Then any
T and head size work, several head sizes work in one process, any decay is right (theirs give NaN
below 0.0043, or wrong results below 0.4), the final state has gradients, and a CPU works too. The
functions all do the same: `wkv7` picks the method by the shape. `load_…` compile nothing.
"""

from ..runtime.arguments import check_tensor
from ..wkv7 import wkv7
from .arguments import turned

__all__ = [
    "attn_backstepping_longhead",
    "attn_backstepping_smallhead",
    "attn_chunked_cuda",
    "attn_chunked_cuda_varlen",
    "attn_triton_bighead",
    "attn_triton_bighead_bf16",
    "attn_triton_bighead_fp16",
    "attn_triton_bighead_fp32",
    "load_backstepping_longhead",
    "load_backstepping_smallhead",
    "load_chunked_cuda",
    "load_chunked_cuda_varlen",
]


def attn_chunked_cuda(r, w, k, v, a, b, s0=None):
    """Mixes time as RWKV-7 does, as wind_rwkv's `attn_…` are called.

    For each head, with column vectors and a state S of values × keys:

        S[t] = S[t-1] diag(exp(-exp(w[t]))) + (S[t-1] a[t]) b[t]ᵀ + v[t] k[t]ᵀ
        y[t] = S[t] r[t]

    Args:
        r, k, v, a, b: `[B, T, H, C]`, bfloat16 in the original, any floating dtype here.
        w: raw decay, `[B, T, H, C]`; models give -softplus(-x) - 0.5.
        s0: state before the first token, `[B, H, C, C]` (values × keys); zeros if None.

    Returns:
        y `[B, T, H, C]` in r's dtype, and the state after the last token `[B, H, C, C]` (values ×
        keys) in s0's dtype, or r's where there is none. All tensors have gradients, through both.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/johanwind/wind_rwkv (`wind_rwkv/rwkv7`).
    """
    y, state = _attend(r, w, k, v, a, b, s0)
    return y, state.to(r.dtype if s0 is None else s0.dtype)


def attn_backstepping_smallhead(r, w, k, v, a, b, s0=None):
    """The same; its final state is float32, as the original's (see `attn_chunked_cuda`)."""
    return _attend(r, w, k, v, a, b, s0)


def attn_chunked_cuda_varlen(r, w, k, v, a, b, s0, cu_seqlens):
    """The same for packed sequences, of any lengths.

    Args:
        r, w, k, v, a, b: `[T, H, C]`, without a batch.
        s0: `[S, H, C, C]`; zeros if None.
        cu_seqlens: where sequences start and end along T, `[S + 1]`, int32 or int64.

    Returns:
        y `[T, H, C]` and the final states `[S, H, C, C]`; see `attn_chunked_cuda`.
    """
    tensors = {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b}
    for name, x in tensors.items():
        check_tensor(name, x, r)
        if x.ndim != 3:
            raise ValueError(f"{name} must be [T, H, C], got {list(x.shape)}")
    if cu_seqlens is None:
        raise TypeError("cu_seqlens must be a tensor, got NoneType")
    y, state = _attend(*(x[None] for x in tensors.values()), s0, cu_seqlens)
    return y[0], state.to(r.dtype if s0 is None else s0.dtype)


def attn_triton_bighead(r, w, k, v, a, b, s0=None, dot_prec="fp32"):
    """The same; dot_prec, how theirs multiplies, is one of `PRECISIONS`, and not used here."""
    if dot_prec not in PRECISIONS:
        raise ValueError(f"dot_prec must be one of {', '.join(PRECISIONS)}, got {dot_prec!r}")
    return attn_chunked_cuda(r, w, k, v, a, b, s0)


def load_chunked_cuda(head_size=None, *_, **__):
    """Does nothing: kernels are compiled when they are first called, for any head size."""


PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
attn_backstepping_longhead = attn_chunked_cuda
attn_triton_bighead_bf16 = attn_triton_bighead_fp16 = attn_triton_bighead_fp32 = attn_chunked_cuda
load_backstepping_smallhead = load_backstepping_longhead = load_chunked_cuda
load_chunked_cuda_varlen = load_chunked_cuda


def _attend(r, w, k, v, a, b, s0, cu_seqlens=None):
    before = turned(s0)
    y, s1 = wkv7(r, w, k, v, a, b, before, cu_seqlens=cu_seqlens, decay="raw")
    return y, turned(s1)
