"""The sum runs over the values, not over the keys."""

import triton
import triton.language as tl


@triton.jit
def kernel(
    r, k, v, w, u, s0, o_parts, s1,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.load(s0 + o_s, m_s, 0)
    b_u = tl.load(u + i_h * K + o_k, m_k, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_kv = b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 1)
        b_s = tl.exp(b_w)[:, None] * b_s + b_kv
        tl.store(o_parts + (i_k * B * T * H + i_t) * V + o_v, b_o, m_v)
    tl.store(s1 + o_s, b_s, m_s)
