"""What a time-x call may be given; every way of computing it asks here."""

import torch

from ..runtime.arguments import check_number

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_arguments(w, k, eps=0.0, dtypes=DTYPES):
    """Returns B, C, T, or raises a TypeError or ValueError that names the argument."""
    for name, x in (("w", w), ("k", k)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in dtypes:
            allowed = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
            raise TypeError(f"{name} must be one of {allowed}, got {x.dtype}")
    check_number("eps", eps)
    if w.device != k.device:
        raise ValueError(f"w must be on k's device {k.device}, got {w.device}")
    if k.ndim != 3 or 0 in k.shape:
        raise ValueError(f"k must be [B, C, T] with sizes of at least 1, got {list(k.shape)}")
    B, C, T = k.shape
    if w.shape != (C, T):
        raise ValueError(f"w must be [C, T] = {[C, T]}, got {list(w.shape)}")
    return B, C, T
