"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from .cuda import backward as cuda_dw
from .cuda import forward as cuda
from .toeplitz import backward as toeplitz_dw
from .toeplitz import forward as toeplitz

new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for kind in ("float32", "float16", "bfloat16"):
        yield from calls_in(kind, getattr(torch, kind))


def calls_in(kind, dtype):
    """Most batch rows of a block, rows that are aligned and not; and one row."""
    w = {T: new(768, T, dtype=dtype) for T in (768, 333)}

    def in_numba():
        for B in (32, 1):
            k = new(B, 768, 768, dtype=dtype)
            cuda.convolve(w[768], k, 0.0, False)
            cuda.convolve(w[768], k, 0.0, True)
            cuda_dw.correlate(k, k)

    def in_triton():
        for B, T in ((64, 768), (1, 333)):
            k = new(B, 768, T, dtype=dtype)
            toeplitz.convolve(w[T], k, 0.0, False)
            toeplitz.convolve(w[T], k, 0.0, True)
            toeplitz_dw.correlate(k, k)

    yield f"timex cuda {kind}", in_numba
    yield f"timex toeplitz {kind}", in_triton
