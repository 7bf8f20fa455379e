"""What one launch of the chunked WKV-7 leaves for another, and the tiles it is made in."""

import functools

import torch
import triton

from ..autograd import sequences_in
from ..spans import count_spans

CHUNK = 32  # tokens; of 64, four matrices of tokens alone would fill half of the registers
BLOCK = 64  # keys or values that a program works on at a time
MIN_BLOCK = 16  # the least that a tensor core multiplies
STATE = 64 * 128  # elements of the state that a program sweeps with: 64 registers of four warps
PROGRAMS_PER_SM = 2  # of sweeps: fewer leave it waiting for memory


class Kept:
    """The maps of all chunks, and for gradients the states, in one tensor.

    w, r, b, k: W, R', B̂ and K', `[chunks, H, C, K]`; n, t, m, l: N, T, M and L `[chunks, H, C, C]`;
    z: `[chunks, H, C, V]`; states: those before each chunk, `[chunks, H, V, K]`. All but w, r, b, k
    and n are None unless they are for gradients.
    """

    NAMES = ("w", "r", "b", "k", "n", "t", "m", "l", "z", "states")

    def __init__(self, tensor, chunks, H, K, V, gradients):
        shapes, at = shapes_of(K, V), 0
        for name in self.NAMES:
            wanted = gradients or name in "wrbkn"
            size = chunks * H * shapes[name][0] * shapes[name][1] if wanted else 0
            found = tensor[at : at + size].view(chunks, H, *shapes[name]) if wanted else None
            setattr(self, name, found)
            at += size

    @classmethod
    def size(cls, chunks, H, K, V, gradients):
        """How many elements the tensor has."""
        shapes = shapes_of(K, V)
        wanted = [shapes[name] for name in cls.NAMES if gradients or name in "wrbkn"]
        return chunks * H * sum(rows * columns for rows, columns in wanted)


def shapes_of(K, V):
    """Of each thing that is kept, for one chunk of a head; all but the last are aligned."""
    of_keys, of_tokens = (CHUNK, K), (CHUNK, CHUNK)
    shapes = dict.fromkeys("wrbk", of_keys) | dict.fromkeys("ntml", of_tokens)
    return shapes | {"z": (CHUNK, V), "states": (V, K)}


def chunk_count(r, cu_seqlens):
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    return count_spans(*r.shape[:2], sequences, CHUNK)


def kept_dtype(r):
    """16 bits hold a float16's digits, but not how large a product of its numbers may be."""
    return torch.bfloat16 if r.dtype == torch.bfloat16 else torch.float32


@functools.cache
def tiles_for(heads, K, V, sms):
    """Keys and values at a time of a chunk's program; programs of a head, and sizes, of a sweep."""
    block = [max(MIN_BLOCK, min(BLOCK, triton.next_power_of_2(x))) for x in (K, V)]
    BK = max(MIN_BLOCK, triton.next_power_of_2(K))
    BV = min(block[1], max(MIN_BLOCK, STATE // BK))
    while BV > MIN_BLOCK and heads * triton.cdiv(V, BV) < sms * PROGRAMS_PER_SM * 3 // 4:
        BV //= 2
    return *block, (triton.cdiv(V, BV), (K, V, BK, BV))
