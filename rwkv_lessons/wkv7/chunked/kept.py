"""What one launch of the chunked WKV-7 leaves for another, and the tiles it is made in."""

import functools

import torch
import triton

from ..autograd import sequences_in
from ..spans import count_spans

# Tokens of a chunk: of 64, four matrices of tokens alone would fill half of the registers; and the
# products of the other dtypes are made of pieces, which take registers, too.
CHUNK, OTHER_CHUNK = 32, 16
BLOCK = 64  # keys or values that a program works on at a time
MIN_BLOCK = 16  # the least that a tensor core multiplies
WARP_STATE = 1024  # elements of the state a warp sweeps with: 32 registers a thread
PROGRAMS_PER_SM = 2  # of sweeps: fewer leave it waiting for memory


class Kept:
    """The maps of all chunks, and for gradients the states, in one tensor.

    w, r, b, k: W, R', B̂ and K', `[chunks, H, C, K]`; n, t, m, l: N, T, M and L `[chunks, H, C, C]`;
    z: `[chunks, H, C, V]`; states: those before each chunk, `[chunks, H, V, K]`. All but w, r, b, k
    and n are None unless they are for gradients.
    """

    NAMES = ("w", "r", "b", "k", "n", "t", "m", "l", "z", "states")

    def __init__(self, tensor, chunks, H, K, V, C, gradients):
        shapes, at = shapes_of(K, V, C), 0
        for name in self.NAMES:
            wanted = gradients or name in "wrbkn"
            size = chunks * H * shapes[name][0] * shapes[name][1] if wanted else 0
            found = tensor[at : at + size].view(chunks, H, *shapes[name]) if wanted else None
            setattr(self, name, found)
            at += size

    @classmethod
    def size(cls, chunks, H, K, V, C, gradients):
        """How many elements the tensor has."""
        shapes = shapes_of(K, V, C)
        wanted = [shapes[name] for name in cls.NAMES if gradients or name in "wrbkn"]
        return chunks * H * sum(rows * columns for rows, columns in wanted)


def shapes_of(K, V, C):
    """Of each thing that is kept, for one chunk of a head; all but the last are aligned."""
    shapes = dict.fromkeys("wrbk", (C, K)) | dict.fromkeys("ntml", (C, C))
    return shapes | {"z": (C, V), "states": (V, K)}


def chunk_of(r):
    """The tokens of a chunk."""
    return CHUNK if r.dtype == torch.bfloat16 else OTHER_CHUNK


def chunk_count(r, cu_seqlens):
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    return count_spans(*r.shape[:2], sequences, chunk_of(r))


def kept_dtype(r):
    """16 bits hold a float16's digits, but not how large a product of its numbers may be."""
    return torch.bfloat16 if r.dtype == torch.bfloat16 else torch.float32


@functools.cache
def tiles_for(heads, K, V, gpu):
    """Keys and values at a time of a chunk's program; those of a sweep's, its warps and stages.

    Two stages load a chunk while another one is computed: for 256 keys that takes 202 KB of shared
    memory, which only Hopper has.
    """
    block = [max(MIN_BLOCK, min(BLOCK, triton.next_power_of_2(x))) for x in (K, V)]
    BK, BV = max(MIN_BLOCK, triton.next_power_of_2(K)), block[1]
    while BV > MIN_BLOCK and heads * triton.cdiv(V, BV) < gpu.sms * PROGRAMS_PER_SM * 3 // 4:
        BV //= 2
    return *block, BK, BV, max(4, min(8, BK * BV // WARP_STATE)), 2 if gpu.like_hopper else 1
