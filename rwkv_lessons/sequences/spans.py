"""Where sequences are, and the states that a forward pass saves, in Triton.

A sequence is cut into spans of C tokens, the last one may be shorter; a chunk is a span whose
tokens become matrix products. The state before span c of sequence n has index n · ⌈T / C⌉ + c, or,
where sequences are packed along T, ⌊first token / C⌋ + n + c, which does not depend on the lengths
and leaves at most one index a sequence unused.
"""

import torch
import triton
import triton.language as tl


def count_spans(B, T, sequences, C):
    """How many indices: of B sequences of T tokens (`sequences` is None), or packed in T.

    T // C + sequences is enough for any lengths.
    """
    return B * -(-T // C) if sequences is None else T // C + sequences


def span_bounds(cu_seqlens, T, C):
    """Of each index the first token and the end of its sequence, `[…, 2]`, int64.

    For packed sequences, else None. Of an unused index they are the same. Nothing waits for the
    GPU here.
    """
    if cu_seqlens is None:
        return None
    ends = cu_seqlens.long()
    S = len(ends) - 1
    first = ends[:-1] // C + torch.arange(S, device=ends.device)
    i = torch.arange(count_spans(1, T, S, C), device=ends.device)
    n = torch.searchsorted(first, i, right=True) - 1
    start = ends[n] + (i - first[n]) * C
    return torch.stack([torch.minimum(start, ends[n + 1]), ends[n + 1]], 1)


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
def last_segment(tokens, span, segments):
    """Which of the segments of `span` tokens has the last one; of no tokens, the first."""
    return tl.maximum(tl.minimum(tl.cdiv(tokens, span), segments) - 1, 0)


@triton.jit
def first_span(cu_seqlens, start, i_n, T, C: tl.constexpr):
    """The index of the first span of sequence i_n, an int64, whose first token is `start`."""
    if cu_seqlens is None:
        return i_n * tl.cdiv(T, C)
    else:
        return start // C + i_n


@triton.jit
def bounds_of_span(bounds, i, T, C: tl.constexpr):
    """First token of a span, and the end of its sequence; `bounds` as `span_bounds` makes them."""
    if bounds is not None:
        return tl.load(bounds + i * 2), tl.load(bounds + i * 2 + 1)
    else:
        i_b, c = i // tl.cdiv(T, C), i % tl.cdiv(T, C)
        return i_b.to(tl.int64) * T + c * C, (i_b + 1).to(tl.int64) * T
