"""Several programs along one sequence, where B·H heads are too few to fill the GPU.

A sequence is cut into segments. A first kernel computes the state after each one, from a state of
zeros, and the decay across it, from k, v and w; a program of the second kernel then combines those
of the segments before its own. That reads k, v and w once more, for 8 / 5 of the work. On Hopper
the first kernel is hopper/segments.py in 16 bits.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import sequence_bounds
from .tiles import log2_decays, log_decay, product

MIN_TOKENS_PER_SEGMENT = 512  # a shorter segment does not pay for the second launch
MAX_SEGMENTS = 16  # the program of the last one reads the states of all others
MANY_TOKENS = 2**21  # of all heads together


def segments_for(programs, T, sms, on_hopper=False):
    """How many segments, and how many tokens the longest one has, a multiple of 64.

    Two programs fit an SM, so more than twice as many as there are SMs gain nothing. On Hopper the
    first kernel is quicker, and half as many tokens pay; four segments that fill the GPU once are
    then slower than eight that fill it twice. Eight are faster than sixteen (measured on an H200).
    """
    fitting = 2 * sms // programs
    count = min(fitting, T // MIN_TOKENS_PER_SEGMENT, MAX_SEGMENTS)
    if count < 2:
        return 1, T
    if on_hopper:
        twice = min(8 if fitting == 4 else 0, T // MIN_TOKENS_PER_SEGMENT)
        count = max(min(fitting, 2 * T // MIN_TOKENS_PER_SEGMENT), twice)
        count = min(count, MAX_SEGMENTS)
    span = triton.cdiv(triton.cdiv(T, count), 64) * 64
    return triton.cdiv(T, span), span


class Cut(NamedTuple):
    """How sequences are cut on Hopper.

    skip: tokens before the first segment, swept while the first kernel computes states.
    pieces: of a segment, each of which has a state.
    """

    skip: int
    segments: int
    span: int
    pieces: int


def cut_on_hopper(programs, T, sms, measured):
    """The `Cut` of sequences of T tokens.

    With many tokens, segments that fill the GPU once are faster, if their states come in pieces; of
    two segments, if the first tokens are swept ahead.

    measured: whether that was: on an H200, for heads of 64 in bfloat16, not packed.
    """
    fitting = 2 * sms // programs
    if not measured or T * programs < MANY_TOKENS or fitting not in (2, 4):
        return Cut(0, *segments_for(programs, T, sms, on_hopper=True), 1)
    skipped = int(fitting == 2)  # pieces
    piece = triton.cdiv(triton.cdiv(T, skipped + 2 * fitting), 64) * 64
    return Cut(skipped * piece, fitting, 2 * piece, 2)


@triton.jit
def state_before_segment(
    b_s,
    segment_states,
    segment_decays,
    i_n,
    i_g,
    i_h,
    segments,
    H,
    o_k,
    o_s,
    m_s,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """The state before segment i_g, from b_s, the one before the sequence."""
    for g in range(0, i_g):
        i = (i_n * (segments - 1) + g) * H + i_h
        b_decay = tl.exp2(tl.load(segment_decays + i * K + o_k, o_k < K, 0.0))
        b_s = b_s * b_decay[:, None] + tl.load(segment_states + i * K * V + o_s, m_s, 0.0)
    return b_s


@assembled
@triton.jit(do_not_specialize=["T", "H", "segments", "span"])
def wkv6_segments_kernel(
    k, v, w, cu_seqlens, segment_states, segment_decays, T, H, segments, span,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr,
):  # fmt: skip
    """The state after each segment but the last, from zeros, and the log2 of the decay across it.

    segment_states: [S, segments - 1, H, K, V]; segment_decays: the same without V. Both float32.
    """
    DTYPE: tl.constexpr = k.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_g = tl.program_id(0) // NV // H % (segments - 1)
    i_n = (tl.program_id(0) // NV // H // (segments - 1)).to(tl.int64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    start += i_g.to(tl.int64) * span
    n = tl.minimum(end - start, span).to(tl.int32)
    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    row, col = o_t[:, None], o_t[None, :]
    m_k, m_v = (o_k < K)[None, :], (o_v < V)[None, :]
    o_tk, o_tv = row * (H * K) + o_k[None, :], row * (H * V) + o_v[None, :]
    ones = tl.full([C, 16], 1.0, tl.float32)
    b_s, b_total = tl.zeros([BK, BV], tl.float32), tl.zeros([BK], tl.float32)

    for t in tl.range(0, n, C, num_stages=3):
        at, m_t = (start + t) * H + i_h, row < n - t
        b_w = log_decay(w + at * K + o_tk, m_t & m_k, RAW)
        b_k = tl.load(k + at * K + o_tk, m_t & m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at * V + o_tv, m_t & m_v, 0.0)
        b_across = tl.sum(log2_decays(ones, b_w, IS_FLOAT32, BY_KEY=True), 1) / 16  # [BK]
        b_k *= tl.exp2(log2_decays(col > row, b_w, IS_FLOAT32))  # to the chunk's end
        b_s = product(tl.trans(b_k), b_v, b_s * tl.exp2(b_across)[:, None], DTYPE)
        b_total += b_across

    i = (i_n * (segments - 1) + i_g) * H + i_h
    o_s = o_k[:, None] * V + o_v[None, :]
    tl.store(segment_states + i * K * V + o_s, b_s, (o_k < K)[:, None] & m_v)
    tl.store(segment_decays + i * K + o_k, b_total, o_k < K)
