"""What the model's functions may be given, and errors that name it."""

import torch

from rwkv_lessons.runtime.arguments import shown


def check_kind(name, x, kind):
    """Raises a TypeError unless x is of a class, or of one of a union."""
    if not isinstance(x, kind):
        raise TypeError(f"{name} must be a {getattr(kind, '__name__', kind)}, got {shown(x)}")


def check_callable(name, x, optional=False):
    """Raises a TypeError unless x can be called, or is None where it is `optional`."""
    if not callable(x) and not (optional and x is None):
        raise TypeError(f"{name} must be a function, got {shown(x)}")


def check_tokens(name, x, least=1, vocabulary=None):
    """Raises a TypeError or ValueError unless x is a tensor of tokens `[B, T]`.

    Args:
        least: the smallest T.
        vocabulary: how many tokens there are; on a GPU the host does not read them.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64):
        got = x.dtype if isinstance(x, torch.Tensor) else shown(x)
        raise TypeError(f"{name} must be a tensor of int32 or int64, got {got}")
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < least:
        raise ValueError(f"{name} must be [B ≥ 1, T ≥ {least}], got {list(x.shape)}")
    if vocabulary is not None and x.device.type == "cpu" and not torch.compiler.is_compiling():
        first, last = (int(y) for y in x.aminmax())
        if first < 0 or last >= vocabulary:
            raise ValueError(f"{name} must be from 0 to {vocabulary - 1}, got {first} to {last}")
