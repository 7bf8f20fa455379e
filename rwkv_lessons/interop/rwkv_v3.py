"""`TimeX` of RWKV-v2 and v3 (RWKV-LM, src/model.py): change the import and nothing else.

    from rwkv_lessons.interop.rwkv_v3 import TimeX

    wk = TimeX.apply(w, k, B, C, T, eps)

The original needs a T that is a multiple of 4 and at most T_MAX, and a B that is a multiple of its
groups, and compiles CUDA C when it is imported. This one takes any B, C and T.

The models divide one such sum by another, and their k is exp of values up to 60: 1e26 in one token
and 1 in the next. FFT rounds everything relative to the largest value of a row, so it is never used
here, for any T.
"""

import torch

from ..runtime.packages import NUMBA, TRITON
from ..timex import timex_reference


def time_x(w, k, B, C, T, eps):
    """o of `timex`, by a method that rounds each sum by its own terms.

    Args:
        w: weights, `[C, T]`. k: `[B, C, T]`.
        B, C, T: the sizes, which the original does not read from k.
        eps: a number, added to every output.

    Raises:
        TypeError, ValueError: k is not of these sizes, or an argument has the wrong shape, dtype or
            device.
    """
    if not isinstance(k, torch.Tensor):
        raise TypeError(f"k must be a tensor, got {type(k).__name__}")
    if tuple(k.shape) != (B, C, T):
        raise ValueError(f"k must be [B, C, T] = {[B, C, T]}, got {list(k.shape)}")
    if k.is_cuda and TRITON:
        from ..timex import timex_toeplitz as method
    elif k.is_cuda and NUMBA:
        from ..timex import timex_cuda as method
    else:
        method = timex_reference
    return method(w, k, eps)


class TimeX:
    """A class only for its `apply`, which is what the models call."""

    apply = staticmethod(time_x)
