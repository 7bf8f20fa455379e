"""The tiles of prefill: their sizes, and how the copy engine is told about them."""

from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634
GROUP_BYTES = 4 * 2**20  # several groups run at a time, and an H200 has an L2 cache of 60 MB
CACHED_BYTES = 48 * 2**20  # as much stays in it without groups


class PrefillTiles(NamedTuple):
    BM: int  # query tokens
    BN: int  # keys
    BV: int  # columns of the value; in the absorbed form, that W_V makes at a time
    warps: int
    stages: int  # tiles of keys in flight


class AttendSizes(NamedTuple):
    """What the kernel of the forward pass is compiled for."""

    V: int
    BM: int
    BN: int
    BK: int
    BP: int
    BV: int
    ABSORBED: bool
    ONE_LOOP: bool
    PRECISION: str = "tf32x3"  # of float32 inputs; the others are multiplied as they are


class AttentionGradientSizes(NamedTuple):
    """What the kernels of the gradients are compiled for."""

    K: int
    P: int
    V: int
    BM: int
    BN: int
    BK: int
    BP: int
    BV: int
    PRECISION: str = "tf32x3"


def choose_tiles(dtype, K, V, absorbed, ragged, gpu):
    """What compiles for sm_90 without spills and was fastest on an H200, for half precision.

    For other GPUs, what fits: see records/data/compiled.json.
    """
    BV = power_of_2(V)
    if not gpu.like_hopper:
        return small_tiles(dtype, K, BV, absorbed)
    if dtype == torch.float32:  # three TF32 products instead of one take registers
        return PrefillTiles(16, 16, 16, 8, 1) if absorbed else PrefillTiles(64, 32, BV, 4, 2)
    if absorbed and K > 256:  # two warpgroups share the sum, [64, 512] float32
        return (
            PrefillTiles(64, 32, min(BV, 64), 8, 3)
            if ragged
            else PrefillTiles(64, 64, min(BV, 64), 8, 2)
        )
    if absorbed:
        return PrefillTiles(64, 64, min(BV, 32 if ragged else 64), 4, 2)
    if K + V > 384:
        return PrefillTiles(64, 64, BV, 8, 2)
    # Three or four programs on one SM: one multiplies while another takes exponentials.
    return PrefillTiles(64, 64 if K + V <= 128 else 32, BV, 4, 3)


def heads_in_a_group(heads, bytes_of_a_head):
    """How many heads run at a time: their keys and values stay in the L2 cache until all read them.

    All, if all fit: the tiles with the most keys then start first, and the shortest are the last.

    Args:
        heads: of all sequences. bytes_of_a_head: of its keys and values.
    """
    if heads * bytes_of_a_head <= CACHED_BYTES:
        return heads
    return max(1, min(heads, GROUP_BYTES // bytes_of_a_head))


def small_tiles(dtype, K, BV, absorbed):
    """What fits the 99 KB of shared memory that most GPUs have, with few spills; not timed."""
    if dtype == torch.float32:
        if absorbed:
            return PrefillTiles(16, 16, 16, 8, 1)
        return (
            PrefillTiles(32, 32, BV, 4, 1) if max(K, BV) <= 64 else PrefillTiles(16, 16, BV, 4, 1)
        )
    if absorbed:
        return (
            PrefillTiles(32, 32, min(BV, 32), 4, 2) if K <= 256 else PrefillTiles(16, 32, 16, 8, 1)
        )
    return PrefillTiles(64, 32, BV, 4, 2) if max(K, BV) <= 128 else PrefillTiles(32, 32, BV, 4, 1)


def registers(gpu):
    """`maxnreg`. Unless told, ptxas gives some kernels of other GPUs 32 registers, and spills."""
    return None if gpu.like_hopper else 255


def descriptor(x, *block):
    """`x` as the copy engine reads it: every address a multiple of 16 bytes, else x is copied."""
    unit = 16 // x.element_size()
    steps = [n for n, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    if x.stride(-1) != 1 or x.data_ptr() % 16 or any(n % unit or n == 0 for n in steps):
        D = x.shape[-1]
        copy = x.new_zeros(*x.shape[:-1], triton.cdiv(D, unit) * unit)
        copy[..., :D] = x
        x = copy[..., :D]
    # The step of a size of 1 is never taken, and may be anything.
    strides = [
        n if size > 1 else unit for n, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)
    ]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], list(block))


def power_of_2(n):
    """The next one, from 16 on: what the tensor cores multiply at least."""
    return max(16, triton.next_power_of_2(n))


def backward_tiles(BK, BV, dtype, gpu):
    """Of the kernel that owns queries, and of the one that owns keys; no spills in halves.

    For GPUs other than Hopper, what fits.
    """
    if not gpu.like_hopper:
        n = 16 if dtype == torch.float32 and BK + BV > 128 else 32
        return PrefillTiles(n, n, BV, 4, 1), PrefillTiles(n, n, BV, 4, 1)
    if BK + BV <= 128:
        return PrefillTiles(64, 64, BV, 4, 2), PrefillTiles(64, 64, BV, 4, 2)
    return PrefillTiles(64, 32, BV, 4, 2), PrefillTiles(32, 64, BV, 4, 2)
