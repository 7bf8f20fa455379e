"""The options of a WKV-7 call: what w is, packed sequences, a scale."""

import functools
import math

from ..runtime.arguments import DTYPES
from ..runtime.packed import Packed
from ..runtime.precision import outside_autocast, sum_dtype
from ..sequences import decays
from .arguments import check_call

PACKED = Packed("wkv7_packed", "rwkvab")
CLAMP = math.exp(-0.5)  # RWKV-7's models never forget more than to exp(-CLAMP) = 0.545 at a token


def log_decay(w, decay):
    """The log decay, in float32 at least.

    Args:
        decay: what w is: "log", the log decay; "raw", x of exp(-exp(x)); "clamp", x of
            exp(-CLAMP · sigmoid(x)), as RWKV-7's models store it.
    """
    if decay == "log":
        return w
    if decay == "raw":
        return decays.log_decay(w)
    return -CLAMP * w.to(sum_dtype(w.dtype)).sigmoid()


def takes_options(compute):
    """Makes a method with the options of `wkv7`, at the cost of copies, of a plain function.

    That takes `(r, w, k, v, a, b, s0)`, checked, and returns o and s1. The attribute `checked` of
    the method is the method without the check, its options by place.
    """
    name = compute.__name__
    PACKED.methods[name] = compute

    @outside_autocast
    def checked(r, w, k, v, a, b, s0=None, cu_seqlens=None, scale=1.0, decay="log"):
        dtype = r.dtype
        if scale != 1:  # in float32, so that r is rounded once
            real = sum_dtype(dtype)
            r, k, v, a, b = r.to(real) * scale, *(x.to(real) for x in (k, v, a, b))
        w = log_decay(w, decay)
        if cu_seqlens is None:
            o, s1 = compute(r, w, k, v, a, b, s0)
        else:
            o, s1 = PACKED(name, r, w, k, v, a, b, s0, cu_seqlens)
        return o.to(dtype).contiguous(), s1.contiguous()

    @functools.wraps(compute)
    def method(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
        check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, DTYPES)
        return checked(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)

    method.checked = checked
    return method
