"""The RWKV-7 calls of RWKV-LM and RWKV-CUDA, answered by `wkv7`: a compatible API.

In their training code, replace the block that compiles and defines the function by
`from rwkv_lessons.interop.rwkv_lm import RWKV7_CLAMPW_CUDA`. Any T, head size and dtype works.

TorchScript compiles their models with the functions that these call, so the public ones here are
simple enough for it, and leave the work to `_mix`, which it calls as Python.
"""

import torch
from torch import Tensor

from ..wkv7 import wkv7
from .arguments import HEAD_SIZE, arguments_called, heads_of, turned

__all__ = [
    "RUN_CUDA_RWKV7g",
    "RWKV7_CLAMPW_CUDA",
    "RWKV7_STATE_CLAMPW_CUDA",
    "RWKV7_STATE_PASSING_CLAMPW_CUDA",
]


def RWKV7_CLAMPW_CUDA(r, w, k, v, a, b, HEAD_SIZE: int = HEAD_SIZE):
    """Mixes time as RWKV-7 does, from a zero state, as `RWKV7_CLAMPW_CUDA` of RWKV-LM is called.

    Args:
        r, k, v, a, b: `[B, T, C]` with C = H · HEAD_SIZE, any floating dtype. The models give
            a = -κ and b = κ · rate.
        w: logit of the decay exp(-exp(-0.5) · sigmoid(w)), `[B, T, C]`.
        HEAD_SIZE: 64 unless given, as in all released models.

    Returns:
        y `[B, T, C]` in r's dtype. All tensors have gradients.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/BlinkDL/RWKV-LM (`RWKV-v7/train_temp`).
    """
    return _mix(r, w, k, v, a, b, None, HEAD_SIZE, "clamp")[0]


def RWKV7_STATE_CLAMPW_CUDA(s0, r, w, k, v, a, b, HEAD_SIZE: int = HEAD_SIZE):
    """The same from a state s0 `[B, H, N, N]` (values × keys), of which there are gradients."""
    return _mix(r, w, k, v, a, b, s0, HEAD_SIZE, "clamp")[0]


def RWKV7_STATE_PASSING_CLAMPW_CUDA(s0, r, w, k, v, a, b, HEAD_SIZE: int = HEAD_SIZE):
    """The same, and returns y and the state after the last token, float32 (values × keys)."""
    return _mix(r, w, k, v, a, b, s0, HEAD_SIZE, "clamp")


def RUN_CUDA_RWKV7g(q, w, k, v, a, b, HEAD_SIZE: int = HEAD_SIZE):
    """The same by its older name: w is raw, the decay exp(-exp(w)), and q is what is called r."""
    return _mix_q(q, w, k, v, a, b, HEAD_SIZE)


@torch.jit.ignore
def _mix(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, s0: Tensor | None,
    size: int, decay: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    heads = heads_of(size, r=r, w=w, k=k, v=v, a=a, b=b)
    y, s1 = wkv7(*heads, turned(s0), decay=decay)
    return y.flatten(2), turned(s1)


@torch.jit.ignore
def _mix_q(
    q: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, size: int
) -> Tensor:  # fmt: skip
    with arguments_called(r="q"):
        return _mix(q, w, k, v, a, b, None, size, "raw")[0]
