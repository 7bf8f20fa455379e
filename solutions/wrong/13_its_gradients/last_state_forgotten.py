"""The gradient of the final state is ignored."""

import triton
import triton.language as tl


@triton.jit
def backward_sweep(
    r, k, v, w, ds1, do, kept, dk_s_parts, dv_s_parts, ds0, a_parts,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_g = tl.zeros([BK, BV], tl.float32)
    for step in range(T):
        t = T - 1 - step
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_do = tl.load(do + i_t * V + o_v, m_v, 0)
        if ((t + 1) % C == 0) | (step == 0):
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            b_s = tl.load(kept + i_c * K * V + o_s, m_s, 0)
            i_a = i_v * B * tl.cdiv(T, C) * H + i_c
            tl.store(a_parts + i_a * K + o_k, tl.sum(b_s * b_g, 1), m_k)
        b_dk = tl.sum(b_g * b_v[None, :], 1)
        b_dv = tl.sum(b_g * b_k[:, None], 0)
        b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * b_do[None, :]
        tl.store(dk_s_parts + (i_v * B * T * H + i_t) * K + o_k, b_dk, m_k)
        tl.store(dv_s_parts + (i_k * B * T * H + i_t) * V + o_v, b_dv, m_v)
    tl.store(ds0 + i_bh * K * V + o_s, b_g, m_s)
