"""Packed sequences, raw decays, and where a kernel is interpreted or compiled."""

import math

import pytest
import torch
from support.wkv6_cases import (
    make,
)

pytest.importorskip("triton")
from warplens.compiled import assembly

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels are compiled")


compiles = pytest.mark.skipif(not assembly.can_compile(), reason=str(assembly.what_is_missing()))


ENDS = [0, 3, 3, 15, 22]  # of packed sequences, an empty one among them


# exp(w) in float32 is right to 2⁻²⁵ of itself, and not on average where w is always the same.
DECAY = 2**-24


def packed(dtype=torch.float64, K=5, V=6, ends=ENDS, device="cpu"):
    """Inputs with one state per sequence, and cu_seqlens."""
    x = make(1, ends[-1], 2, K, V, "mixed", dtype, device=device)
    s0 = make(len(ends) - 1, 1, 2, K, V, "mixed", dtype, device=device)[5]
    return [*x[:5], s0], torch.tensor(ends, dtype=torch.int32, device=device)


def raw_of(x):
    """The same inputs with a raw decay, some of it as strong and as weak as there is."""
    g = torch.Generator().manual_seed(3)
    raw = 2 * torch.randn(x[3].shape, generator=g)
    raw[0, 0, 0, :3] = torch.tensor([math.inf, 9.0, -math.inf])
    return [*x[:3], raw.to(x[3]), *x[4:]]
