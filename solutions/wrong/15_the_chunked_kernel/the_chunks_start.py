"""Counts the scores' decays from the chunk's first token: too strong ones overflow."""

import triton
import triton.language as tl


@triton.jit
def kernel(
    r, k, v, w, u, s0, o, s1,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    o_s = tl.program_id(0) * N * N + o_n[:, None] * N + o_n[None, :]
    b_s = tl.load(s0 + o_s)  # [N, N], keys × values
    b_u = tl.load(u + i_h * N + o_n)
    for i_c in range(tl.cdiv(T, BT)):
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_r = tl.load(r + o_x, m_t, 0).to(tl.float32)
        b_k = tl.load(k + o_x, m_t, 0).to(tl.float32)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0).to(tl.float32)
        b_after = tl.cumsum(b_w, 0)
        b_before = b_after - b_w
        b_last = tl.sum(b_w, 0)  # [N]: the log decay of the whole chunk
        # What the tokens read of the state before the chunk.
        b_reads = (b_r * tl.exp(b_before)).to(b_v.dtype)
        b_o = tl.dot(b_reads, b_s.to(b_v.dtype), input_precision=PRECISION)
        # What they read of each other, and of themselves.
        b_left = (b_r * tl.exp(b_before)).to(b_v.dtype)
        b_right = (b_k * tl.exp(-b_after)).to(b_v.dtype)
        b_scores = tl.dot(b_left, tl.trans(b_right), input_precision=PRECISION)
        b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)
        b_itself = tl.sum(b_r * b_u[None, :] * b_k, 1)[:, None]
        b_scores = tl.where(o_c[:, None] == o_c[None, :], b_itself, b_scores)
        b_o += tl.dot(b_scores.to(b_v.dtype), b_v, input_precision=PRECISION)
        # The state after the chunk.
        b_adds = (b_k * tl.exp(b_last[None, :] - b_after)).to(b_v.dtype)
        b_s *= tl.exp(b_last)[:, None]
        b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)
        tl.store(o + o_x, b_o, m_t)
    tl.store(s1 + o_s, b_s)
