"""RWKV-7 on Hopper with maps that stay in shared memory: heads of 64 in bfloat16.

Both passes move 30 S, S being the size of r: 8 S forward, with the states kept, 6 S for the sweep
back (reverse.py) and 15 S for the gradients of tiles (gradients.py). ../forward.py and
../backward.py move 56 S.
"""

import torch

from ....runtime import devices
from ....sequences.arguments import holds_float64
from ...arguments import check_call
from ...autograd import define
from ..forward import wkv7_chunked
from .backward import gradients
from .forward import forward, forward_shapes
from .layouts import N

fused = define("fused", forward, forward_shapes, gradients)


def takes(r, w, v):
    """Whether the kernels compute these: heads of 64, all in bfloat16, on Hopper."""
    sizes = r.shape[3] == N.value == v.shape[3]
    dtypes = r.dtype == w.dtype == torch.bfloat16
    return sizes and dtypes and r.numel() > 0 and devices.gpu_of(r.device).is_hopper


def wkv7_fused(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Same arguments and results as `wkv7`, in one launch forward and two backward.

    It needs 64 keys and values, r and w in bfloat16, and a Hopper GPU; the rest is computed by
    `wkv7_chunked`. o and s1 are right to 5e-3, gradients to 6e-3.
    """
    check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    if holds_float64(s0) or not takes(r, w, v):
        return wkv7_chunked(r, w, k, v, a, b, s0, cu_seqlens=cu_seqlens, scale=scale, decay=decay)
    return fused(r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
