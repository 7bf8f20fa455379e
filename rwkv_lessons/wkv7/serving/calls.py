"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from . import drafts, packed
from .prompts import goes_in_chunks

TOTAL, SEQUENCES, HEADS = 4096, 8, 64
new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    yield from serving_calls("64 bfloat16 clamp", 64, torch.bfloat16, torch.float16, "clamp")
    yield from serving_calls("64 float32 raw", 64, torch.float32, torch.float32, "raw")
    if goes_in_chunks(new(1, 1, 1, 256, dtype=torch.bfloat16)):
        yield from serving_calls("256 bfloat16 clamp", 256, torch.bfloat16, torch.float32, "clamp")


def serving_calls(name, N, dtype, pool_dtype, decay):
    """Prompts and single tokens with w0, and drafts; float16 states are rounded stochastically."""
    w0, pool = new(HEADS, N), new(SEQUENCES, HEADS, N, N, dtype=pool_dtype)
    indices = new(SEQUENCES, dtype=torch.int32)
    seeds = indices if pool_dtype == torch.float16 else None

    def tokens(*sizes):
        return [new(*sizes, HEADS, N, dtype=dtype) for _ in range(6)]

    def mixed(longest=TOTAL):
        ends = new(SEQUENCES + 1, dtype=torch.int32)
        options = (w0, pool, indices, ends, seeds, None, 1.0, decay, longest)
        packed.serving(*tokens(1, TOTAL), *options)

    yield f"wkv7 serving {name}", mixed
    if N == 64:
        yield f"wkv7 serving {name}, single tokens", partial(mixed, 1)

        def drafted():
            x = (*tokens(SEQUENCES, 4), w0, pool, indices)
            drafts.verify(*x, seeds, 1.0, decay)
            drafts.commit(*x, indices, seeds, decay)

        yield f"wkv7 serving {name}, drafts", drafted
