"""Where the tokens of a chunked WKV-6 program are, and the states that its forward pass saves.

The forward kernel saves the state before tokens 0, C, 2C, … of each sequence, with C = CHECKPOINT,
in `[count_checkpoints(…), H, K, V]`; the backward kernels start from them, a chunk of C tokens
each. Checkpoint c of sequence n has index n · ⌈T / C⌉ + c, or, where sequences are packed along T,
⌊first token / C⌋ + n + c, which does not depend on the lengths and leaves at most one index a
sequence unused.
"""

import triton
import triton.language as tl

# 64 would save the forward kernel a seventh of its traffic, but no backward kernel in Triton with
# chunks of 64 tokens had the registers for them: 6.4 ms against 3.0 with 32 (docs/designs_wkv6.md).
CHECKPOINT = 32


def count_checkpoints(B, T, sequences=None):
    """How many states a head has: of B sequences of T tokens, or of `sequences` packed in T.

    T // CHECKPOINT + sequences is enough for any lengths.
    """
    return B * -(-T // CHECKPOINT) if sequences is None else T // CHECKPOINT + sequences


@triton.jit
def first_checkpoint(cu_seqlens, start, i_n, T, CHECKPOINT: tl.constexpr):
    """The index of the state before sequence i_n, whose first token is `start`."""
    if cu_seqlens is None:
        return i_n * tl.cdiv(T, CHECKPOINT)
    else:
        return start // CHECKPOINT + i_n


@triton.jit
def program_place(program, segments, H, V: tl.constexpr, BV: tl.constexpr):
    """Sequence, segment, head and block of values of a program that sweeps over chunks."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_n = (program // NV // H // segments).to(tl.int64)
    return i_n, program // NV // H % segments, program // NV % H, program % NV


@triton.jit
def sequence_bounds(cu_seqlens, i_n, T):
    """First token of a sequence and the token after its last, in the packed order; int64."""
    if cu_seqlens is None:
        return i_n.to(tl.int64) * T, i_n.to(tl.int64) * T + T
    else:
        return tl.load(cu_seqlens + i_n).to(tl.int64), tl.load(cu_seqlens + i_n + 1).to(tl.int64)


@triton.jit
def bounds_of_chunk(chunk_bounds, i, T, C: tl.constexpr):
    """First token of the chunk of C tokens after checkpoint i, and the end of its sequence.

    chunk_bounds: both, of each checkpoint, `[…, 2]`; None unless sequences are packed.
    """
    if chunk_bounds is not None:
        return tl.load(chunk_bounds + i * 2), tl.load(chunk_bounds + i * 2 + 1)
    else:
        i_b, c = i // tl.cdiv(T, C), i % tl.cdiv(T, C)
        return i_b.to(tl.int64) * T + c * C, (i_b + 1).to(tl.int64) * T
