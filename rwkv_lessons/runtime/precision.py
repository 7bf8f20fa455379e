"""In which precision an operation computes: its own, whatever torch.autocast says."""

import functools

import torch


def sum_dtype(dtype):
    """What sums over numbers of `dtype` are made in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def outside_autocast(operation):
    """Makes an operation compute as outside of torch.autocast, on the device of its first tensor.

    Autocast would make products of 16 bits out of those in float32.
    """

    @functools.wraps(operation)
    def outside(*given, **named):
        tensors = (x for x in (*given, *named.values()) if isinstance(x, torch.Tensor))
        x = next(tensors, None)
        if x is not None and _casts(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return operation(*given, **named)
        return operation(*given, **named)

    return outside


def _casts(device):
    return device != "meta" and torch.is_autocast_enabled(device)  # it knows no "meta"
