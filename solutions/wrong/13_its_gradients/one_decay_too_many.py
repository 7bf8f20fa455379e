"""The token decays as soon as it comes."""

import triton
import triton.language as tl


@triton.jit
def forward_sweep(
    k, v, w, s0, do, dr_s_parts, kept,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_s = tl.load(s0 + i_bh * K * V + o_s, m_s, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_do = tl.load(do + i_t * V + o_v, m_v, 0)
        b_dr = tl.sum(b_s * b_do[None, :], 1)
        b_s = tl.exp(b_w)[:, None] * (b_s + b_k[:, None] * b_v[None, :])
        tl.store(dr_s_parts + (i_v * B * T * H + i_t) * K + o_k, b_dr, m_k)
        if ((t + 1) % C == 0) | (t == T - 1):
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            tl.store(kept + i_c * K * V + o_s, b_s, m_s)
