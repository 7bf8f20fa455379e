"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from .chunked import backward as chunked_backward
from .chunked import forward as chunked
from .cuda import backward as cuda_backward
from .cuda import forward as cuda
from .recurrent import backward as recurrent_backward
from .recurrent import forward as recurrent

SIZES = (16, 64, 100, 128, 256)  # of a head; the kernels pad 100 to 128
FEW, MANY = (1, 4096, 2), (8, 4096, 64)  # B, T, H: in segments, and enough to fill any GPU
new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for kind in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, kind)
        for N in SIZES:
            if N <= chunked.largest(dtype, gpu):
                yield from chunked_calls(gpu, f"{N} {kind}", N, dtype)
        if dtype != torch.float16:  # kernels without products take it as bfloat16
            for N in SIZES:
                yield from recurrent_calls(f"{N} {kind}", N, dtype)
            for N in (64, 1024):
                yield from numba_calls(f"{N} {kind}", N, dtype)


def time_mixing(B, T, H, N, dtype, w_dtype=None):
    """r, k, v, w, u of a WKV-6 call."""
    r, k, w = (new(B, T, H, N, dtype=x) for x in (dtype, dtype, w_dtype or dtype))
    return r, k, new(B, T, H, N, dtype=dtype), w, new(H, N, dtype=dtype)


def chunked_calls(gpu, name, N, dtype):
    """The longest code: float32 decays to be made of a parameter, in segments; and the shortest."""

    def train():
        x = time_mixing(*FEW, N, dtype, torch.float32)
        o, s1, checkpoints = chunked.forward(*x, None, None, 1.0, True, True)
        chunked_backward.gradients(*x, None, None, checkpoints, o, s1, 1.0, True)

    yield f"wkv6 chunked {name} raw segments training", train

    def packed():
        ends = new(9, dtype=torch.int64)
        chunked.run_forward(*time_mixing(1, *MANY[1:], N, dtype), None, ends, 1.0, False)

    yield f"wkv6 chunked {name} packed", packed
    in_one_program = gpu.is_hopper and N == 128 and dtype == torch.bfloat16
    if N == 64 or in_one_program:

        def many():
            x = time_mixing(*MANY, N, dtype)
            o, s1, checkpoints = chunked.forward(*x, None, None, 1.0, False, True)
            chunked_backward.gradients(*x, None, None, checkpoints, o, None, 1.0, False)

        yield f"wkv6 chunked {name} training", many

        def few():
            x = time_mixing(*FEW, N, dtype)
            o, s1, checkpoints = chunked.forward(*x, None, None, 1.0, False, True)
            chunked_backward.gradients(*x, None, None, checkpoints, o, None, 1.0, False)

        def long():
            chunked.run_forward(*time_mixing(2, 16384, 64, N, dtype), None, None, 1.0, False)

        if gpu.is_hopper and dtype != torch.float32:
            yield f"wkv6 chunked {name} segments training", few
            yield f"wkv6 chunked {name} long", long


def recurrent_calls(name, N, dtype):
    def few_tokens():
        x = time_mixing(*FEW[:1], 40, FEW[2], N, dtype)
        o, s1, checkpoints = recurrent.forward(*x, None, None, 1.0, True, True)
        recurrent_backward.gradients(*x, None, None, checkpoints, o, s1, 1.0, True)

    yield f"wkv6 recurrent {name} training", few_tokens

    def step():
        recurrent.run_forward(*time_mixing(MANY[0], 1, MANY[2], N, dtype), None, None, 1.0, False)

    yield f"wkv6 recurrent {name} one token", step


def numba_calls(name, N, dtype):
    def in_numba():
        for B, T, H in (FEW, MANY):
            x = time_mixing(B, T, H, N, dtype)
            o, s1 = cuda.forward(*x, None)
            cuda_backward.gradients(*x, None, o, s1)

    yield f"wkv6 cuda {name}", in_numba
