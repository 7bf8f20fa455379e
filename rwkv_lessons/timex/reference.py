"""Time-x in plain torch: the sum as written, one distance in time after another."""

import torch

from ..runtime.precision import outside_autocast
from .arguments import check_arguments


@outside_autocast
def timex_reference(w, k, eps=0.0):
    """Same arguments and results as `timex`: T additions of shifted rows.

    Computes in float64 where k or w is float64, else in float32; on any device, gradients of any
    order included.
    """
    _, _, T = check_arguments(w, k, eps)
    real = sum_dtype_of(w, k)
    w, x = w.to(real), k.to(real)
    o = (w[:, -1:] * x + eps).contiguous()  # what a token has of itself
    for distance in range(1, T):
        weight = w[:, T - 1 - distance, None]  # of what lies so many tokens back
        o[..., distance:] += weight * x[..., : T - distance]
    return o.to(k.dtype)


def sum_dtype_of(w, k):
    """What sums are made in: float64 where either is, else float32."""
    return torch.float64 if torch.float64 in (w.dtype, k.dtype) else torch.float32
