"""The sweep over the chunks of a head, as Triton kernel: their maps (maps.py), one after the other.

    forward    z = L v + W S           o = R̃ S + A_rb z + A_rk v       S ← decay S + B̂ᵀ z + K̂ᵀ v
    reverse    x = A_rbᵀ do + B̂ dS     dv = K̂ dS + Lᵀ x + A_rkᵀ do     dS ← decay dS + Wᵀ x + R̃ᵀ do

The reverse one is the transpose of the forward one: W and B̂ change places, R̃ and K̂, L and A_rbᵀ.
So it is one kernel. For the gradients of the maps it also writes z and the state before each chunk,
in reverse y = Tᵀ x and dS after it.

A program owns some values of a head and all keys, and holds the state transposed, `[V, K]`, in
float32: then it is the left factor of what reads it, and so is what is added to it, and a tensor
core takes both from registers. On the path from one chunk to the next there are two products.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import first_span, program_place, sequence_bounds
from .pairs import stored_product


class SweepSizes(NamedTuple):
    """What a sweep is compiled for: blocks of keys and values, tokens of a chunk, direction."""

    K: int
    V: int
    BK: int
    BV: int
    C: int
    STAGES: int  # chunks that are loaded at the same time
    REVERSE: bool


@assembled
@triton.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span", "count"])
def wkv7_sweep_kernel(
    v, s0, cu_seqlens, readers, written, across, of_l, of_p, of_q, of_t, ends, o, s1, states, reads,
    has_s0, T, H, segments, span, count,
    SIZES: tl.constexpr,
):  # fmt: skip
    """One sweep; its results are o, s1, states `[chunks, H, V, K]` and reads `[chunks, H, C, V]`.

    ends: the state after each segment of `span` chunks, `[S, count, H, K, V]`, float32, the last of
    which may be left out; None where there is one segment.

    readers: W over R̃, written: B̂ over K̂; of_l, of_p, of_q, of_t: L, A_rb, A_rk and T. In reverse
    v, o, s0 and s1 are do, dv, ds1 and ds0, and readers and written have changed places, and of_l
    and of_p. Forward of_t is None, and states and reads may be.
    """
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    STAGES: tl.constexpr = SIZES.STAGES
    REVERSE: tl.constexpr = SIZES.REVERSE
    DTYPE: tl.constexpr = v.dtype.element_ty
    i_n, i_g, i_h, i_v = program_place(tl.program_id(0), segments, H, V, BV)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n = (end - start).to(tl.int32)
    chunks = tl.cdiv(n, C)
    first = first_span(cu_seqlens, start, i_n, T, C)
    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_tk, o_tt = o_t[:, None] * K + o_k[None, :], o_t[:, None] * C + o_t[None, :]
    m_tk = m_k[None, :] & (o_t < C)[:, None]
    o_s, m_s = o_v[:, None] + o_k[None, :] * V, m_v[:, None] & m_k[None, :]
    i_s = (i_n * H + i_h) * K * V
    from_s0 = (has_s0 != 0) & (i_g == 0)
    b_s = tl.load(s0 + i_s + o_s, m_s & from_s0, 0.0).to(tl.float32)  # [BV, BK]
    if ends is not None:
        i_end = ((i_n * count + i_g - 1) * H + i_h) * K * V
        b_s += tl.load(ends + i_end + o_s, m_s & (i_g > 0), 0.0)

    for step in tl.range(i_g * span, tl.minimum(i_g * span + span, chunks), num_stages=STAGES):
        c = chunks - 1 - step if REVERSE else step
        i = (first + c) * H + i_h
        t = c * C + o_t
        o_tv = ((start + t) * H + i_h)[:, None] * V + o_v[None, :]
        m_tv = (t < n)[:, None] & m_v[None, :]
        b_v = tl.trans(tl.load(v + o_tv, m_tv, 0.0))  # [BV, C]
        b_w = tl.load(readers + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_r = tl.load(readers + i * (2 * C * K) + C * K + o_tk, m_tk, 0.0)
        b_b = tl.load(written + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_k = tl.load(written + i * (2 * C * K) + C * K + o_tk, m_tk, 0.0)
        b_l = turned(tl.load(of_l + i * C * C + o_tt), REVERSE)
        b_p = turned(tl.load(of_p + i * C * C + o_tt), REVERSE)
        b_q = turned(tl.load(of_q + i * C * C + o_tt), REVERSE)
        b_decay = tl.load(across + i * K + o_k, m_k, 0.0)
        if states is not None:
            o_vk = o_v[:, None] * K + o_k[None, :]
            tl.store(states + i * K * V + o_vk, b_s.to(states.dtype.element_ty), m_s)

        b_s, b_x, b_o = apply_maps(b_s, b_v, b_w, b_r, b_b, b_k, b_l, b_p, b_q, b_decay, DTYPE)
        tl.store(o + o_tv, tl.trans(b_o).to(o.dtype.element_ty), m_tv)
        if reads is not None:
            if REVERSE:
                b_none = tl.zeros([BV, C], tl.float32)
                b_x = stored_product(b_x, tl.load(of_t + i * C * C + o_tt), b_none, DTYPE)
            o_reads = i * C * V + o_t[:, None] * V + o_v[None, :]
            tl.store(reads + o_reads, tl.trans(b_x).to(reads.dtype.element_ty), m_v[None, :])

    is_last = i_g == tl.maximum(tl.cdiv(chunks, span) - 1, 0)
    tl.store(s1 + i_s + o_s, b_s, m_s & is_last)


@triton.jit
def apply_maps(b_s, b_v, b_w, b_r, b_b, b_k, b_l, b_p, b_q, b_decay, DTYPE: tl.constexpr):
    """S after the chunk, z and o, of S before it and v; all of them transposed."""
    b_none = tl.zeros(b_v.shape, tl.float32)
    b_z = stored_product(b_v, b_l, b_none, DTYPE)
    b_o = stored_product(b_v, b_q, b_none, DTYPE)
    b_z = stored_product(b_s, tl.trans(b_w), b_z, DTYPE)
    b_o = stored_product(b_s, tl.trans(b_r), b_o, DTYPE)
    b_s = stored_product(b_z, b_b, b_s * b_decay[None, :], DTYPE)
    b_s = stored_product(b_v, b_k, b_s, DTYPE)
    return b_s, b_z, stored_product(b_z, b_p, b_o, DTYPE)


@triton.jit
def turned(b_x, REVERSE: tl.constexpr):
    """The transpose of a map, as the state is transposed; in reverse, the map."""
    return b_x if REVERSE else tl.trans(b_x)
