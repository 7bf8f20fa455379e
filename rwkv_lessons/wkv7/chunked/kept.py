"""What one launch of the chunked WKV-7 leaves for another, and the tiles it is made in."""

import dataclasses

import torch
import triton

from ...runtime.bounded import remembered
from ...sequences.arguments import sequences_in
from ...sequences.spans import count_spans
from ..decays import FORMS
from .gradients import GradientSizes
from .maps import MapSizes
from .sweep import SweepSizes

# Tokens of a chunk: of 16, one warp holds all of it. Of 32 there are half as many states, each of
# which is as large as 2 · keys tokens: that is for heads of more than 64 keys, in bfloat16.
CHUNK, WIDE_CHUNK, NARROW_HEAD = 16, 32, 64
BLOCK = 64  # keys or values that a program works on at a time
MAX_VALUES = 128  # that a sweep's program owns
MIN_BLOCK = 16  # the least that a tensor core multiplies
STATE_PER_WARP = 2048  # elements of the state a warp sweeps with: 64 registers a thread
PROGRAMS_PER_SM = 2  # of sweeps: fewer leave it waiting for memory
MIN_CHUNKS, MIN_SEGMENTS, MAX_SEGMENTS = 8, 4, 16  # of a segment, and of a sequence
CHUNKS_PER_SEARCH = 64  # chunks that a program for strong decays looks at


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
            is_stored = gradients or name in self.FORWARD
            size = chunks * H * shapes[name][0] * shapes[name][1] if is_stored else 0
            view = tensor[at : at + size].view(chunks, H, *shapes[name]) if is_stored else None
            setattr(self, name, view)
            at += size

    @classmethod
    def size(cls, chunks, H, K, V, C, gradients):
        """How many elements the tensor has."""
        shapes = shapes_of(K, V, C)
        stored = [shapes[name] for name in cls.NAMES if gradients or name in cls.FORWARD]
        return chunks * H * sum(rows * columns for rows, columns in stored)


def shapes_of(K, V, C):
    """Of each thing that is kept, for one chunk of a head; all but the last are aligned."""
    shapes = {"readers": (2 * C, K), "written": (2 * C, K)} | dict.fromkeys("lpqt", (C, C))
    return shapes | {"z": (C, V), "states": (V, K)}


def chunk_of(r):
    """The tokens of a chunk."""
    return chunk_for(r.dtype, r.shape[3])


def chunk_for(dtype, K):
    return WIDE_CHUNK if dtype == torch.bfloat16 and K > NARROW_HEAD else CHUNK


def chunk_count(r, cu_seqlens):
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    return count_spans(*r.shape[:2], sequences, chunk_of(r))


def kept_dtype(r):
    """16 bits hold a float16's digits, but not how large a product of its numbers may be."""
    return torch.bfloat16 if r.dtype == torch.bfloat16 else torch.float32


@dataclasses.dataclass(frozen=True)
class ChunkTiles:
    """How a call is cut for the kernels.

    block_keys: at a time of a chunk's program.
    of_maps, of_gradients: its warps and registers. keys, values: of a sweep's program, which has
    so many warps and registers. segments: of a sequence, of `span` chunks each.

    What kernels are compiled for: sweeps, forward and reverse; maps and gradients, where decays
    are mild and, unless w is "clamp", where they are strong.
    """

    block_keys: int
    of_maps: tuple[int, int]
    of_gradients: tuple[int, int]
    keys: int
    values: int
    warps: int
    registers: int
    segments: int
    span: int
    sweeps: tuple[SweepSizes, SweepSizes]
    maps: tuple[MapSizes, ...]
    gradients: tuple[GradientSizes, ...]


@remembered
def tiles_for(heads, chunks, K, V, dtype, gpu, decay="log"):
    """The tiles of a call of `heads` sequences and heads, of at most `chunks` chunks each.

    Only Hopper's shared memory holds more than one chunk of a sweep, and it does not hold two of
    256 keys in float32. (Of 16 values it does, but such a sweep spilled so much that ptxas 12.9,
    13.0 and 13.1 lost a register of it: docs/designs_wkv7.md.)
    """
    of_keys, of_values = (max(MIN_BLOCK, min(BLOCK, triton.next_power_of_2(x))) for x in (K, V))
    BK, BV = (max(MIN_BLOCK, triton.next_power_of_2(x)) for x in (K, V))
    BV = min(BV, MAX_VALUES if gpu.like_hopper and dtype == torch.bfloat16 else BLOCK)
    segments, span = segments_for(heads, chunks, BK, gpu.sms)
    most = heads if segments == 1 else gpu.sms * PROGRAMS_PER_SM  # segments take values whole
    while BV > MIN_BLOCK and most * triton.cdiv(V, BV) < gpu.sms * PROGRAMS_PER_SM * 3 // 4:
        BV //= 2
    stages = 3 if BK < 256 else 1 if dtype == torch.float32 else 2
    stages = stages if gpu.like_hopper else 1
    warps = max(4, min(8, BK * BV // STATE_PER_WARP))
    if dtype != torch.bfloat16:  # products in pieces take registers
        of_maps, of_gradients, registers = (4, 168), (4, 255), 255
    else:
        of_maps, of_gradients = (4, 255), (4, 255)
        if K <= NARROW_HEAD:
            # 8 warps an SM of maps, each of which makes one alone, and 16 of gradients.
            of_maps, of_gradients = (1, 255), (4, 128)
        # 128: four programs an SM. Where one owns fewer values, heads are too few for four.
        registers = 128 if BK <= NARROW_HEAD and BK * BV == NARROW_HEAD**2 else 255
    C = chunk_for(dtype, K)
    ways = [(FORMS[decay], CHUNKS_PER_SEARCH, strong) for strong in (False, True)]
    ways = ways[:1] if decay == "clamp" else ways
    return ChunkTiles(
        of_keys, of_maps, of_gradients, BK, BV, warps, registers, segments, span,
        tuple(SweepSizes(K, V, BK, BV, C, stages, reverse) for reverse in (False, True)),
        tuple(MapSizes(K, of_keys, C, *way) for way in ways),
        tuple(GradientSizes(K, V, of_keys, of_values, C, *way) for way in ways),
    )  # fmt: skip


def segments_for(heads, chunks, BK, sms):
    """How many segments, and the chunks of one.

    With fewer than MIN_SEGMENTS the two sweeps one after the other are as long as one was. With
    more than 128 keys they pay only for four heads or fewer, and in long segments.
    """
    if BK <= NARROW_HEAD:
        programs, least, shortest = PROGRAMS_PER_SM * sms, MIN_SEGMENTS, MIN_CHUNKS
    elif BK <= MAX_VALUES:
        programs, least, shortest = sms, MIN_SEGMENTS, MIN_CHUNKS
    else:
        programs, least, shortest = sms // 4, 2 * MIN_SEGMENTS, 4 * MIN_CHUNKS
    count = min(programs // heads, chunks // shortest, MAX_SEGMENTS)
    if count < least:
        return 1, chunks
    span = triton.cdiv(chunks, count)
    return triton.cdiv(chunks, span), span
