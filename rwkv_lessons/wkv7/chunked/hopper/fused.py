"""RWKV-7 on Hopper with maps that stay in shared memory: heads of 64 or 128 in bfloat16.

Both passes move 30 S, S being the size of r: 8 S forward, with the states kept, 6 S for the sweep
back (reverse.py) and 15 S for the gradients of tiles (gradients.py). ../forward.py and
../backward.py move 56 S. Heads of 128 (wide) move 38 S: 10 S forward, 10 S back, and 18 S.
"""

import torch

from ....runtime import devices
from ....sequences.arguments import holds_float64
from ...arguments import check_call
from ...autograd import define
from ..forward import wkv7_chunked
from . import backward as narrow_backward
from . import forward as narrow
from .layouts import N
from .wide import backward as wide_backward
from .wide import sweep as wide


def forward(r, *arguments):
    return (narrow if r.shape[3] == N.value else wide).forward(r, *arguments)


def forward_shapes(r, *arguments):
    return (narrow if r.shape[3] == N.value else wide).forward_shapes(r, *arguments)


def gradients(r, *arguments):
    return (narrow_backward if r.shape[3] == N.value else wide_backward).gradients(r, *arguments)


fused = define("fused", forward, forward_shapes, gradients)


def takes(r, w, v):
    """Whether the kernels compute these: heads of 64 or 128, all in bfloat16, on Hopper."""
    sizes = r.shape[3] == v.shape[3] in (N.value, wide.WIDE.value)
    dtypes = r.dtype == w.dtype == torch.bfloat16
    return sizes and dtypes and r.numel() > 0 and devices.gpu_of(r.device).is_hopper


def wkv7_fused(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Same arguments and results as `wkv7`, in one launch forward and two backward.

    It needs 64 or 128 keys and as many values, r and w in bfloat16, and a Hopper GPU; the rest is
    computed by `wkv7_chunked`. o and s1 are right to 5e-3, gradients to 6e-3.
    """
    check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    if holds_float64(s0) or not takes(r, w, v):
        return wkv7_chunked(r, w, k, v, a, b, s0, cu_seqlens=cu_seqlens, scale=scale, decay=decay)
    return fused(r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
