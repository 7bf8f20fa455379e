"""The token's own k·dk stays out of its dw, too."""

import triton
import triton.language as tl


@triton.jit
def decay_gradient(
    r, k, dr_s, dk_s, a, dw,
    T, H: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    i_k, i_c, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_t = i_k * BK + tl.arange(0, BK), i_c * C + tl.arange(0, C)
    m_k = o_k < K
    m = (o_t < T)[:, None] & m_k[None, :]
    o = ((i_b * T + o_t) * H + i_h)[:, None] * K + o_k[None, :]  # [C, BK]
    b_rdr = tl.load(r + o, m, 0) * tl.load(dr_s + o, m, 0)
    b_kdk = tl.load(k + o, m, 0) * tl.load(dk_s + o, m, 0)
    b_a = tl.load(a + ((i_b * tl.cdiv(T, C) + i_c) * H + i_h) * K + o_k, m_k, 0)  # [BK]
    b_dw = b_a[None, :] + tl.cumsum(b_rdr - b_kdk, 0, reverse=True) - b_rdr + b_kdk
    tl.store(dw + o, b_dw, m)
