"""The options of a WKV-6 call: packed sequences, a scale, a raw decay; see also arguments.py."""

import functools
import math
import os

import torch

from ..runtime.arguments import DTYPES, check_flag, check_number
from ..runtime.packed import Packed
from ..runtime.plain import PLAIN, no_transforms
from ..runtime.precision import outside_autocast, sum_dtype
from .arguments import check_arguments

PACKED = Packed("wkv6_packed", "rkvw", "u")
# exp(-exp(7)) is 0 even in float64. Above it the gradient is 0 too, not 0 · exp(x) = 0 · inf.
MAX_RAW_DECAY = 7.0
LOOKS_AT_CU_SEQLENS = os.environ.get("RWKV_LESSONS_CHECK_CU_SEQLENS") == "1"
LARGEST = 1024  # keys or values of a head: what a block's threads can hold between them


def check_call(r, k, v, w, u, s0=None, cu_seqlens=None, scale=1.0, raw_decay=False, dtypes=DTYPES):
    """Returns B, T, H, K, V, or raises a TypeError or ValueError that names the argument."""
    sizes = check_arguments(r, k, v, w, u, s0 if cu_seqlens is None else None, dtypes)
    check_number("scale", scale)
    check_flag("raw_decay", raw_decay)
    if cu_seqlens is not None:
        wanted = (count_sequences(cu_seqlens, r), *r.shape[2:], v.shape[-1])
        if isinstance(s0, torch.Tensor) and s0.shape != wanted:
            letters = "[S, H, K, V]"
            raise ValueError(f"s0 must be {letters} = {list(wanted)}, got {list(s0.shape)}")
        if s0 is not None:
            check_arguments(r, k, v, w, u, s0[:1] if isinstance(s0, torch.Tensor) else s0, dtypes)
    return sizes


def key_of(tensors, scale, raw_decay):
    """All that `check_call` looks at, hashable, of a call without cu_seqlens; else None.

    A call like one that was right is right, and takes the same method.
    """
    ordinary = type(scale) in (int, float) and abs(scale) < math.inf
    if torch.compiler.is_compiling() or not ordinary or not no_transforms():
        return None
    found = [type(scale), type(raw_decay)]
    for x in tensors:
        if x is None:
            found.append(None)
        elif type(x) in PLAIN:
            found += (x.shape, x.dtype, x.device, x.layout)
        else:
            return None
    return tuple(found)


def count_sequences(cu_seqlens, r):
    """The number of sequences.

    What a GPU holds is not read, since the host would have to wait for it, unless
    `RWKV_LESSONS_CHECK_CU_SEQLENS=1`.
    """
    B, T = r.shape[:2]
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be one of int32, int64, got {cu_seqlens.dtype}")
    if cu_seqlens.device != r.device:
        raise ValueError(f"cu_seqlens must be on r's device {r.device}, got {cu_seqlens.device}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(f"cu_seqlens must be [S + 1] with S ≥ 1, got {list(cu_seqlens.shape)}")
    if B != 1:
        raise ValueError(f"r must have B = 1 where cu_seqlens is given, got B = {B}")
    looks_at_values = LOOKS_AT_CU_SEQLENS or cu_seqlens.device.type == "cpu"
    if looks_at_values and not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != T or ends != sorted(ends):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {T}, got {ends}")
    return len(cu_seqlens) - 1


def log_decay(raw, dtype=None):
    """w = -exp(raw): the state is multiplied by exp(w) = exp(-exp(raw)).

    In `dtype`; else in raw's, and in float32 at least.
    """
    return -raw.to(dtype or sum_dtype(raw.dtype)).clamp(max=MAX_RAW_DECAY).exp()


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


def holds_float64(*tensors):
    for x in tensors:  # a generator costs the host three times as much
        if x is not None and x.dtype is torch.float64:
            return True
    return False


def wants_gradients(*tensors):
    for x in tensors:
        if x is not None and x.requires_grad:
            return True
    return False
