"""The options of a WKV-6 call: packed sequences, a scale, a raw decay; see also arguments.py."""

import functools
import math

import torch

from ..runtime.arguments import DTYPES, check_flag, check_number
from ..runtime.packed import Packed
from ..runtime.plain import PLAIN, no_transforms
from ..runtime.precision import outside_autocast, sum_dtype
from ..sequences.arguments import check_state, count_sequences
from ..sequences.decays import log_decay
from .arguments import check_arguments

PACKED = Packed("wkv6_packed", "rkvw", "u")
LARGEST = 1024  # keys or values of a head: what a block's threads can hold between them


def check_call(r, k, v, w, u, s0=None, cu_seqlens=None, scale=1.0, raw_decay=False, dtypes=DTYPES):
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    packed = cu_seqlens is not None
    sizes = check_arguments(r, k, v, w, u, None if packed else s0, dtypes)
    check_number("scale", scale)
    check_flag("raw_decay", raw_decay)
    if packed:
        sequences = count_sequences(cu_seqlens, r)
        if s0 is not None:
            check_state("s0", s0, r, v, sequences, "S", dtypes)
    return sizes


def key_of(tensors, scale, raw_decay):
    """All that `check_call` looks at, hashable, of a call without cu_seqlens; else None.

    A call like one that was right is right, and takes the same method.
    """
    ordinary = type(scale) in (int, float) and abs(scale) < math.inf
    if torch.compiler.is_compiling() or not ordinary or not no_transforms():
        return None
    signature = [type(scale), type(raw_decay)]
    for x in tensors:
        if x is None:
            signature.append(None)
        elif type(x) in PLAIN:
            signature += (x.shape, x.dtype, x.device, x.layout)
        else:
            return None
    return tuple(signature)


def takes_options(dtypes=DTYPES):
    """Makes a method with the options of `wkv6`, at the cost of copies, of a plain function.

    That takes `(r, k, v, w, u, s0)`, checked to be of these dtypes, and returns o and s1. The
    attribute `checked` of the method is the method without the check, its options by place.
    """

    def method_of(compute):
        name = compute.__name__
        PACKED.methods[name] = compute

        @outside_autocast
        def checked(r, k, v, w, u, s0=None, cu_seqlens=None, scale=1.0, raw_decay=False):
            dtype = r.dtype
            if scale != 1:  # in float32, so that r is rounded once
                r, k, v = r.to(sum_dtype(dtype)) * scale, *(x.to(sum_dtype(dtype)) for x in (k, v))
            w = log_decay(w) if raw_decay else w
            if cu_seqlens is None:
                o, s1 = compute(r, k, v, w, u, s0)
            else:
                o, s1 = PACKED(name, r, k, v, w, u, s0, cu_seqlens)
            return o.to(dtype).contiguous(), s1.contiguous()

        @functools.wraps(compute)
        def method(r, k, v, w, u, s0=None, *, cu_seqlens=None, scale=1.0, raw_decay=False):
            check_call(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, dtypes)
            return checked(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)

        method.checked = checked
        return method

    return method_of
