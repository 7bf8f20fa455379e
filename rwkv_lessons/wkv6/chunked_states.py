"""The first pass of the chunked gradients: that of the state, from the last chunk to the first.

With x[t] the decay from a chunk's start to just before its token t, and S the state before it,

    dS before the chunk = (decay of the chunk) dS after it + Σ_t (r[t] x[t])ᵀ do[t]

`state_gradients` leaves dS after each chunk for the other kernels, which then need no order among
chunks; and Σ_j S dS, the part of dw that passes through the whole chunk, from the unrounded dS.
A head is one long walk. Where there are too few heads to fill the card, tokens are cut into
segments: each first finds what it adds to dS on its own, then walks again from the true dS.

This file also has what those kernels share: the tile of a chunk, and sums over its tokens.
"""

import triton
import triton.language as tl

CHUNK = 32  # tokens; a smaller one has more states to store, a larger one needs too many registers
LOG2E = tl.constexpr(1.4426950408889634)
FAR = tl.constexpr(
    -1e4
)  # stands for -inf in sums, where 0 · inf would be NaN; exp gives 0 for both


@triton.jit
def load_decay(w, mask, RAW: tl.constexpr):
    """The log decay, of 16 bits where it is given so; from a raw parameter float32. 0 if masked."""
    b_w = tl.load(w, mask=mask, other=0)
    if RAW:
        b_w = tl.maximum(-tl.exp2(b_w.to(tl.float32) * LOG2E), FAR)
        return tl.where(mask, b_w, 0.0)
    else:
        return tl.where(b_w > FAR, b_w, FAR).to(b_w.dtype)


@triton.jit
def cut(b_x):
    """The upper 16 bits of float32 numbers, as bfloat16, and what is left of them."""
    b_high = (b_x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return b_high.to(tl.bfloat16), b_x - b_high


@triton.jit
def ordered_dot(b_x, b_y, BY_KEY: tl.constexpr):
    if BY_KEY:
        return tl.dot(tl.trans(b_y), b_x, input_precision="tf32x3")
    else:
        return tl.dot(b_x, b_y, input_precision="tf32x3")


@triton.jit
def weighted_sums(weights, b_x, FULL: tl.constexpr, BY_KEY: tl.constexpr = False):
    """weights [C, C] of -1, 0 and 1 times b_x [C, N]: exact sums of 16-bit numbers.

    Float32 numbers are taken as three of 16 bits, or whole where FULL. BY_KEY: weights [C, M], and
    the result [N, M], which has a row for each key as the state has.
    """
    if b_x.dtype == tl.float32:
        if FULL:
            return ordered_dot(weights.to(tl.float32), b_x, BY_KEY)
        else:
            b_high, b_rest = cut(b_x)
            b_middle, b_rest = cut(b_rest)
            m = weights.to(tl.bfloat16)
            b_sum = ordered_dot(m, b_rest.to(tl.bfloat16), BY_KEY)
            b_sum += ordered_dot(m, b_middle, BY_KEY)
            return b_sum + ordered_dot(m, b_high, BY_KEY)
    else:
        return ordered_dot(weights.to(b_x.dtype), b_x, BY_KEY)


@triton.jit
def product(b_x, b_y, b_sum, FULL: tl.constexpr):
    """b_sum + b_x b_y as float32 inputs deserve (FULL), or with the 11 bits of TF32.

    Numbers of 16 bits lose nothing in TF32; where both factors have them, their own unit is faster.
    """
    if FULL:
        return tl.dot(b_x, b_y, b_sum, input_precision="tf32x3")
    elif b_x.dtype == b_y.dtype and b_x.dtype != tl.float32:
        return tl.dot(b_x, b_y, b_sum)
    else:
        return tl.dot(b_x.to(tl.float32), b_y.to(tl.float32), b_sum, input_precision="tf32")


@triton.jit
def span(cu_seqlens, i_n, T, C: tl.constexpr):
    """First token, length, and first checkpoint of sequence i_n."""
    if cu_seqlens is not None:
        start = tl.load(cu_seqlens + i_n).to(tl.int64)
        length = (tl.load(cu_seqlens + i_n + 1) - start).to(tl.int32)
        return start, length, (start // C + i_n).to(tl.int32)
    else:
        return i_n.to(tl.int64) * T, T, i_n * ((T + C - 1) // C)


@triton.jit(do_not_specialize=["T", "H", "scale", "segment", "segments"])
def state_gradients(
    r, w, kept, do, ds1, local_ds, local_decay, cu_seqlens,
    d_kept, through, decays, where, ds0,
    T, H, scale, segment, segments,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr, FULL: tl.constexpr, LOCAL: tl.constexpr,
):  # fmt: skip
    """dS of one head, a block of keys and one of values, over a segment of chunks.

    LOCAL: dS is zero after the segment, and only what it is before it is left, in local_ds, with
    the decay of the segment. Else: all results.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0)
    i_v, i_k, i_segment = i % NV, i // NV % NK, i // (NV * NK) % segments
    i_h = i // (NV * NK * segments) % H
    i_n = i // (NV * NK * segments) // H
    start, length, slot = span(cu_seqlens, i_n, T, C)
    chunks = tl.cdiv(length, C)
    first = i_segment * segment
    end = tl.minimum(first + segment, chunks)
    if LOCAL:  # nobody asks what the first segment adds
        end = tl.where(i_segment == 0, first, end)

    o_t, o_k, o_v = tl.arange(0, C), i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_state = o_k[:, None] * V + o_v[None, :]
    m_state = m_k[:, None] & m_v[None, :]
    row, column = o_t[:, None], o_t[None, :]
    o_half = tl.arange(0, 16)[None, :]  # eight columns of ones for each half of a chunk
    halves = (row < C // 2) == (o_half < 8)
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

    b_all = tl.zeros([BK], tl.float32)
    for j in tl.range(0, end - first, num_stages=3):
        c = end - 1 - j
        t = c * C + o_t
        m_tk = (t < length)[:, None] & m_k[None, :]
        m_tv = (t < length)[:, None] & m_v[None, :]
        at = (start + c * C) * H + i_h
        b_w = load_decay(w + at * K + o_t[:, None] * (H * K) + o_k[None, :], m_tk, RAW)
        b_r = tl.load(r + at * K + o_t[:, None] * (H * K) + o_k[None, :], mask=m_tk, other=0)
        b_do = tl.load(do + at * V + o_t[:, None] * (H * V) + o_v[None, :], mask=m_tv, other=0)
        b_halves = weighted_sums(halves, b_w, FULL, True) * LOG2E  # [BK, 16]
        b_early = tl.sum(tl.where(o_half < 8, b_halves, 0), 1) / 8
        b_late = tl.sum(tl.where(o_half < 8, 0, b_halves), 1) / 8
        b_total = b_early + b_late
        if not LOCAL:
            at = (slot + c).to(tl.int64) * H + i_h
            b_s = tl.load(kept + at * K * V + o_state, mask=m_state, other=0)
            tl.store(d_kept + at * K * V + o_state, b_ds.to(d_kept.dtype.element_ty), mask=m_state)
        b_ds *= tl.exp2(b_total)[:, None]
        if not LOCAL:
            tl.store(
                through + (at * NV + i_v) * K + o_k, tl.sum(b_s.to(tl.float32) * b_ds, 1), mask=m_k
            )
            if i_v == 0:
                tl.store(decays + at * 2 * K + o_k, b_early, mask=m_k)
                tl.store(decays + (at * 2 + 1) * K + o_k, b_late, mask=m_k)
            if where is not None:
                if i_h + i_k + i_v == 0:
                    tl.store(where + (slot + c) * 2, start + c * C)
                    tl.store(where + (slot + c) * 2 + 1, start + length)
        b_all += b_total
        b_x = tl.exp2(weighted_sums(column < row, b_w, FULL) * LOG2E)
        b_x = b_r.to(tl.float32) * scale * b_x
        if FULL:
            b_ds = product(tl.trans(b_x), b_do, b_ds, FULL)
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
            tl.store(local_decay + at + o_k, b_all, mask=m_k)
    elif i_segment == 0:
        at = (i_n * H + i_h).to(tl.int64) * K * V
        tl.store(ds0 + at + o_state, b_ds.to(ds0.dtype.element_ty), mask=m_state)
