"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from . import packed

TOTAL, SEQUENCES, HEADS, N = 4096, 8, 64, 64
new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for dtype, pool_dtype in ((torch.bfloat16, torch.float16), (torch.float32, torch.float32)):
        name = str(dtype).removeprefix("torch.")
        yield f"wkv6 serving {N} {name}", partial(mixed, dtype, pool_dtype)


def mixed(dtype, pool_dtype):
    """Prompts and single tokens with w0; float16 states are rounded stochastically."""
    tokens = [new(1, TOTAL, HEADS, N, dtype=dtype) for _ in range(4)]
    u, pool = new(HEADS, N), new(SEQUENCES, HEADS, N, N, dtype=pool_dtype)
    indices, ends = (new(n, dtype=torch.int32) for n in (SEQUENCES, SEQUENCES + 1))
    seeds = indices if pool_dtype == torch.float16 else None
    packed.serving(*tokens, u, u, pool, indices, ends, seeds, 1.0, True, TOTAL)
