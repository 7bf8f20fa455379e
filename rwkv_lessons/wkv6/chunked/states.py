"""The first pass of the chunked gradients: that of the state, from the last chunk to the first.

With x[t] the decay from a chunk's start to just before its token t, and S the state before it,

    dS before the chunk = (decay of the chunk) dS after it + Σ_t (r[t] x[t])ᵀ do[t]

`state_gradients` writes dS after each chunk for the other kernels, which then need no order among
chunks; and Σ_j S dS, the part of dw that passes through the whole chunk, from the unrounded dS.
A head is one long reverse sweep. Small batches do not fill the GPU: there tokens are cut into
segments. A first launch finds what each adds to dS on its own, a second sweeps from the true dS.

It reads r, w, do and the forward pass's states and writes as many: 7 tensors of the size of r, in
16 bits at N = 64. Memory bounds it: 128 registers let four programs share an SM.

On Hopper in 16 bits, hopper/segments.py takes the first launch, and hopper/sweep.py computes all
gradients in its own sweep.
"""

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import first_span, sequence_bounds
from .tiles import log2_decays, log_decay, of_halves, product_tf32

ALL, EACH, OTHERS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what a launch computes


@assembled
@triton.jit(do_not_specialize=["T", "H", "scale", "segment", "segments"])
def state_gradients(
    r, w, checkpoints, do, ds1, local_ds, local_decay, cu_seqlens,
    d_checkpoints, dw_across_chunk, decays, chunk_bounds, ds0,
    T, H, scale, segment, segments,
    SIZES: tl.constexpr,
    RAW: tl.constexpr, WHAT: tl.constexpr,
):  # fmt: skip
    """dS of one head, a block of keys and one of values, over a segment of chunks.

    WHAT: ALL results; or dS is zero after the segment, and only dS before it is written, in
    local_ds, with the decay of the segment, of EACH segment or of all but the first, the OTHERS.
    d_checkpoints, dw_across_chunk, decays: for each checkpoint c, of the chunk after it: dS at its
    end, Σ_j S dS, and the log2 decays of its halves. chunk_bounds: first token and end, if packed.
    """
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    LOCAL: tl.constexpr = WHAT != ALL
    IS_FLOAT32: tl.constexpr = r.dtype.element_ty == tl.float32
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0)
    i_v, i_k, i_segment = i % NV, i // NV % NK, i // (NV * NK) % segments
    i_h = i // (NV * NK * segments) % H
    i_n = i // (NV * NK * segments) // H
    start, after = sequence_bounds(cu_seqlens, i_n, T)
    length = (after - start).to(tl.int32)
    slot = first_span(cu_seqlens, start, i_n, T, C).to(tl.int32)
    chunks = tl.cdiv(length, C)
    first = i_segment * segment
    end = tl.minimum(first + segment, chunks)
    if WHAT == OTHERS:  # what the first segment adds is not needed
        end = tl.where(i_segment == 0, first, end)

    o_t, o_k, o_v = tl.arange(0, C), i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_state = o_k[:, None] * V + o_v[None, :]
    m_state = m_k[:, None] & m_v[None, :]
    row, column = o_t[:, None], o_t[None, :]
    halves, o_half = of_halves(row, C), tl.arange(0, 16)[None, :]
    b_ds = tl.zeros([BK, BV], tl.float32)
    if not LOCAL:
        if ds1 is not None:
            at = (i_n * H + i_h).to(tl.int64) * K * V
            b_ds += tl.load(ds1 + at + o_state, mask=m_state, other=0).to(tl.float32)
        if local_ds is not None:
            # what the later segments make of it, from the last one to the next
            for later in range(tl.cdiv(chunks, segment) - 1, i_segment, -1):
                at = ((i_n * H + i_h) * segments + later).to(tl.int64) * K
                b_total = tl.load(local_decay + at + o_k, mask=m_k, other=0)
                b_ds *= tl.exp2(b_total)[:, None]
                b_ds += tl.load(local_ds + at * V + o_state, mask=m_state, other=0)

    b_segment_total = tl.zeros([BK], tl.float32)
    for j in tl.range(0, end - first, num_stages=3):
        c = end - 1 - j
        t = c * C + o_t
        m_tk = (t < length)[:, None] & m_k[None, :]
        m_tv = (t < length)[:, None] & m_v[None, :]
        at = (start + c * C) * H + i_h
        b_w = log_decay(w + at * K + o_t[:, None] * (H * K) + o_k[None, :], m_tk, RAW)
        b_r = tl.load(r + at * K + o_t[:, None] * (H * K) + o_k[None, :], mask=m_tk, other=0)
        b_do = tl.load(do + at * V + o_t[:, None] * (H * V) + o_v[None, :], mask=m_tv, other=0)
        b_halves = log2_decays(halves, b_w, IS_FLOAT32, 3, BY_KEY=True)  # [BK, 16]
        b_early = tl.sum(tl.where(o_half < 8, b_halves, 0), 1) / 8
        b_late = tl.sum(tl.where(o_half < 8, 0, b_halves), 1) / 8
        b_total = b_early + b_late
        if not LOCAL:
            at = (slot + c).to(tl.int64) * H + i_h
            b_s = tl.load(checkpoints + at * K * V + o_state, mask=m_state, other=0)
            tl.store(
                d_checkpoints + at * K * V + o_state,
                b_ds.to(d_checkpoints.dtype.element_ty),
                mask=m_state,
            )
        b_ds *= tl.exp2(b_total)[:, None]
        if not LOCAL:
            tl.store(
                dw_across_chunk + (at * NV + i_v) * K + o_k,
                tl.sum(b_s.to(tl.float32) * b_ds, 1),
                mask=m_k,
            )
            if i_v == 0:
                tl.store(decays + at * 2 * K + o_k, b_early, mask=m_k)
                tl.store(decays + (at * 2 + 1) * K + o_k, b_late, mask=m_k)
            if chunk_bounds is not None:
                if i_h + i_k + i_v == 0:
                    tl.store(chunk_bounds + (slot + c) * 2, start + c * C)
                    tl.store(chunk_bounds + (slot + c) * 2 + 1, start + length)
        b_segment_total += b_total
        b_x = tl.exp2(log2_decays(column < row, b_w, IS_FLOAT32, 3))
        b_x = b_r.to(tl.float32) * scale * b_x
        if IS_FLOAT32:
            b_ds = product_tf32(tl.trans(b_x), b_do, b_ds, tl.float32)
        else:
            # r as two numbers of 16 bits, so that dS is as good as float32
            b_high = b_x.to(b_do.dtype)
            b_low = (b_x - b_high.to(tl.float32)).to(b_do.dtype)
            b_ds = tl.dot(tl.trans(b_high), b_do, b_ds)
            b_ds = tl.dot(tl.trans(b_low), b_do, b_ds)

    if LOCAL:
        at = ((i_n * H + i_h) * segments + i_segment).to(tl.int64) * K
        tl.store(local_ds + at * V + o_state, b_ds, mask=m_state)
        if i_v == 0:
            tl.store(local_decay + at + o_k, b_segment_total, mask=m_k)
    elif i_segment == 0:
        at = (i_n * H + i_h).to(tl.int64) * K * V
        tl.store(ds0 + at + o_state, b_ds.to(ds0.dtype.element_ty), mask=m_state)
