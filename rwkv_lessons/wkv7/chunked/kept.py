"""What one launch of the chunked WKV-7 leaves for another, and the tiles it is made in."""

import dataclasses
import functools

import torch
import triton

from ..autograd import sequences_in
from ..spans import count_spans

# Tokens of a chunk: of 64, four matrices of tokens alone would fill half of the registers; and the
# products of the other dtypes are made of pieces, which take registers, too.
CHUNK, OTHER_CHUNK = 32, 16
BLOCK = 64  # keys or values that a program works on at a time
MOST_VALUES = 128  # that a sweep's program owns
MIN_BLOCK = 16  # the least that a tensor core multiplies
WARP_STATE = 2048  # elements of the state a warp sweeps with: 64 registers a thread
PROGRAMS_PER_SM = 2  # of sweeps: fewer leave it waiting for memory
MIN_CHUNKS, MIN_SEGMENTS, MAX_SEGMENTS = 8, 4, 32  # of a segment, and of a sequence


class Kept:
    """The maps of all chunks, and for gradients the states, in one tensor.

    readers: W over R̃; written: B̂ over K̂, `[chunks, H, 2C, K]`; l, p, q, t: L, A_rb, A_rk and T,
    `[chunks, H, C, C]`; z: `[chunks, H, C, V]`; states: those before each chunk,
    `[chunks, H, V, K]`. t, z and states are None unless they are for gradients.
    """

    NAMES = ("readers", "written", "l", "p", "q", "t", "z", "states")
    FORWARD = NAMES[:5]

    def __init__(self, tensor, chunks, H, K, V, C, gradients):
        shapes, at = shapes_of(K, V, C), 0
        for name in self.NAMES:
            wanted = gradients or name in self.FORWARD
            size = chunks * H * shapes[name][0] * shapes[name][1] if wanted else 0
            found = tensor[at : at + size].view(chunks, H, *shapes[name]) if wanted else None
            setattr(self, name, found)
            at += size

    @classmethod
    def size(cls, chunks, H, K, V, C, gradients):
        """How many elements the tensor has."""
        shapes = shapes_of(K, V, C)
        wanted = [shapes[name] for name in cls.NAMES if gradients or name in cls.FORWARD]
        return chunks * H * sum(rows * columns for rows, columns in wanted)


def shapes_of(K, V, C):
    """Of each thing that is kept, for one chunk of a head; all but the last are aligned."""
    shapes = {"readers": (2 * C, K), "written": (2 * C, K)} | dict.fromkeys("lpqt", (C, C))
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


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a call is cut for the kernels.

    block_keys, block_values: at a time of a chunk's program. keys, values: of a sweep's program,
    which has so many warps and loads `stages` chunks at the same time. segments: of a sequence,
    of `span` chunks each.
    """

    block_keys: int
    block_values: int
    keys: int
    values: int
    warps: int
    stages: int
    segments: int
    span: int


@functools.cache
def tiles_for(heads, chunks, K, V, dtype, gpu):
    """The tiles of a call of `heads` sequences and heads, of at most `chunks` chunks each.

    Only Hopper's shared memory holds more than one chunk of a sweep, and it does not hold two of
    256 keys in float32. (Of 16 values it does, but with ptxas 12.9 and 13.0, unlike 12.8, half of
    what such a sweep returns is wrong.)
    """
    block = [max(MIN_BLOCK, min(BLOCK, triton.next_power_of_2(x))) for x in (K, V)]
    BK, BV = (max(MIN_BLOCK, triton.next_power_of_2(x)) for x in (K, V))
    BV = min(BV, MOST_VALUES if gpu.like_hopper and dtype == torch.bfloat16 else BLOCK)
    segments, span = segments_for(heads, chunks, gpu.sms)
    programs = heads * segments
    while BV > MIN_BLOCK and programs * triton.cdiv(V, BV) < gpu.sms * PROGRAMS_PER_SM * 3 // 4:
        BV //= 2
    stages = 3 if BK < 256 else 1 if dtype == torch.float32 else 2
    stages = stages if gpu.like_hopper else 1
    return Tiles(*block, BK, BV, max(4, min(8, BK * BV // WARP_STATE)), stages, segments, span)


def segments_for(heads, chunks, sms):
    """How many segments, and the chunks of one.

    With fewer than MIN_SEGMENTS the two sweeps one after the other are as long as one was.
    """
    wanted = min(PROGRAMS_PER_SM * sms // heads, chunks // MIN_CHUNKS, MAX_SEGMENTS)
    if wanted < MIN_SEGMENTS:
        return 1, chunks
    span = triton.cdiv(chunks, wanted)
    return triton.cdiv(chunks, span), span
