"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from .arguments import DECAYS
from .chunked import backward as chunked_backward
from .chunked import forward as chunked
from .chunked.hopper import fused as hopper
from .recurrent import backward as recurrent_backward
from .recurrent import forward as recurrent

SIZES = (64, 256)  # of a head: 128 is between the two in all respects
FEW, MANY = (1, 8192, 2), (8, 4096, 64)  # B, T, H: in segments, and enough to fill any GPU
HALF = (1, 4096, 64)  # in segments, with no SM free for the identity
new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for kind in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, kind)
        for N in SIZES[: 1 if dtype == torch.float16 else None]:
            if N <= chunked.largest(gpu):
                yield from chunked_calls(f"{N} {kind}", N, dtype)
            if dtype == torch.bfloat16 and gpu.is_hopper and N == SIZES[0]:
                yield from fused_calls(f"{N} {kind}", N, dtype)
                yield from fused_calls(f"128 {kind}", 128, dtype)
            if dtype != torch.float16:
                yield from token_calls(f"{N} {kind}", N, dtype)


def delta_rule(B, T, H, N, dtype):
    """r, w, k, v, a, b of a WKV-7 call."""
    return [new(B, T, H, N, dtype=dtype) for _ in range(6)]


def chunked_calls(name, N, dtype):
    """The longest code: decays to be made of a parameter, in segments and of many heads."""

    def training(sizes):
        x = delta_rule(*sizes, N, dtype)
        o, s1, *saved = chunked.forward(*x, None, None, 1.0, "raw", True)
        chunked_backward.gradients(*x, None, None, *saved, o, s1, 1.0, "raw")

    yield f"wkv7 chunked {name} raw training", lambda: training(FEW)
    yield f"wkv7 chunked {name} raw training, many heads", lambda: training(MANY)


def fused_calls(name, N, dtype):
    """Each form of w: the code for strong decays is there, or not. Many heads, and few."""
    between = ((HALF, ", half as many SMs"),) if N == SIZES[0] else ()

    def inference(decay, sizes):
        hopper.forward(*delta_rule(*sizes, N, dtype), None, None, 1.0, decay, False)

    def training(decay, sizes):
        x = delta_rule(*sizes, N, dtype)
        o, s1, *saved = hopper.forward(*x, None, None, 1.0, decay, True)
        hopper.gradients(*x, None, None, *saved, o, s1, 1.0, decay)

    for decay in DECAYS:
        for sizes, heads in ((FEW, ""), *between, (MANY, ", many heads")):
            yield (
                f"wkv7 fused {name} {decay}{heads}",
                lambda decay=decay, sizes=sizes: inference(decay, sizes),
            )
            yield (
                f"wkv7 fused {name} {decay} training{heads}",
                lambda decay=decay, sizes=sizes: training(decay, sizes),
            )


def token_calls(name, N, dtype):
    def few_tokens():
        x = delta_rule(*FEW[:1], 40, FEW[2], N, dtype)
        o, s1, *saved = recurrent.forward(*x, None, None, 1.0, "raw", True)
        recurrent_backward.gradients(*x, None, None, *saved, o, s1, 1.0, "raw")

    yield f"wkv7 recurrent {name} training", few_tokens

    def step():
        x, s = delta_rule(MANY[0], 1, MANY[2], N, dtype), new(MANY[0], MANY[2], N, N)
        recurrent.run_forward(*x, s, None, 1.0, "log", s1=s)

    yield f"wkv7 recurrent {name} one token", step
