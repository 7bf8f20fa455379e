"""The product does not say with which precision: float32 becomes TF32."""

import triton
import triton.language as tl


@triton.jit
def checkpoints(
    k, v, w, s0, before,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    o_s = o_n[:, None] * N + o_n[None, :]
    b_s = tl.load(s0 + tl.program_id(0) * N * N + o_s)  # [N, N]
    for i_c in range(tl.cdiv(T, BT)):
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_k = tl.load(k + o_x, m_t, 0)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0)
        i_s = (i_b * tl.cdiv(T, BT) + i_c) * H + i_h
        tl.store(before + i_s * N * N + o_s, b_s)
        b_last = tl.sum(b_w, 0)
        b_adds = b_k * tl.exp(b_last[None, :] - tl.cumsum(b_w, 0))
        b_s *= tl.exp(b_last)[:, None]
        b_s += tl.dot(tl.trans(b_adds), b_v)
