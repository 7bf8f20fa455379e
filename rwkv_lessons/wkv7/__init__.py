"""WKV-7, the time mixing of RWKV-7: a matrix state that a token reads, corrects and decays.

For each head, with row vectors r, w, k, v, a, b and a K × V state S:

    z[t] = a[t] S[t-1]
    S[t] = diag(exp(w[t])) S[t-1] + b[t]ᵀ z[t] + k[t]ᵀ v[t]
    o[t] = r[t] S[t]

The delta rule: with a = -κ and b = βκ for a unit vector κ, what the state holds under the key κ is
taken out in part (β) before k writes. With b = 0 it is WKV-6 without its bonus, but o reads the
state after the token.
"""

from .arguments import check_call
from .reference import wkv7_reference
from .wy import wkv7_wy

__all__ = ["METHODS", "method_for", "wkv7", "wkv7_reference", "wkv7_wy"]

METHODS = {"reference": wkv7_reference, "wy": wkv7_wy}


def method_for(T):
    """The method that `wkv7` takes, a key of `METHODS`.

    | T    | method    | because |
    |------|-----------|---------|
    | 1    | reference | nothing to make products of |
    | more | wy        | matrix products, on any device |
    """
    return "reference" if T == 1 else "wy"


def wkv7(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Mixes time with the RWKV-7 recurrence, by the method that suits shape and device.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        w: decay, `[B, T, H, K]`, any of these dtypes; float32 tells slow ones apart. See `decay`.
        v: value, `[B, T, H, V]`, of r's dtype.
        a: what token t reads the state before it with, `[B, T, H, K]`; in models -κ, where κ is a
            unit vector for each head.
        b: where it adds what it read, `[B, T, H, K]`; in models κ times a rate from 0 to 1. With
            |a| |b| above 2 states may grow without bound.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.
        cu_seqlens: where packed sequences start and end along T, `[S + 1]`, int32 or int64, from 0
            to T, rising, on r's device; B must be 1, and states are `[S, H, K, V]`. An empty
            sequence keeps its state. On a GPU the numbers are trusted: the host does not read them.
        scale: r is multiplied by it.
        decay: what w is. "log": the log decay, at most 0 and as low as -inf; the state is
            multiplied by `exp(w)`. "raw": x of `exp(-exp(x))`. "clamp": x of
            `exp(-exp(-0.5) · sigmoid(x))`, as RWKV-7's models store it. dw is the gradient of w
            as it was given.

    Returns:
        o `[B, T, H, V]` in r's dtype and the state after the last token s1 `[B, H, K, V]`, float32
        (float64 where r is). All tensors have gradients, through o and through s1. s0 is not
        written to.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device, or there is no
            such decay.
    """
    B, T, *_ = check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    S = B if cu_seqlens is None else len(cu_seqlens) - 1
    method = METHODS[method_for(-(-B * T // S))].checked
    return method(r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
