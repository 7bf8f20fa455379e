"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from . import cuda

FEW, MANY = (1, 4096, 2), (8, 4096, 64)  # B, T, H: in segments, and enough to fill any GPU


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for kind in ("float32", "bfloat16"):  # without products, float16 is taken as bfloat16
        for N in (64, 1024):
            yield f"wkv5 cuda {N} {kind}", partial(forward, N, getattr(torch, kind))


def forward(N, dtype):
    for B, T, H in (FEW, MANY):
        r, k, v = (torch.empty(B, T, H, N, dtype=dtype, device="meta") for _ in range(3))
        w, u = (torch.empty(H, N, dtype=dtype, device="meta") for _ in range(2))
        cuda.forward(r, k, v, w, u, None)
