"""dw sees what happens in its chunk, not what passes through it."""

import triton
import triton.language as tl


@triton.jit
def backward_sweep(
    r, k, v, w, u, before, do, ds1, dr, dk, dv, dw, du, ds0,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    earlier = o_c[:, None] > o_c[None, :]  # column s before row t
    o_s = o_n[:, None] * N + o_n[None, :]
    b_g = tl.load(ds1 + tl.program_id(0) * N * N + o_s)  # [N, N], of the state after the chunk
    b_u = tl.load(u + i_h * N + o_n)[None, :]
    b_du = tl.zeros([N], tl.float32)
    for step in range(tl.cdiv(T, BT)):
        i_c = tl.cdiv(T, BT) - 1 - step
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_r = tl.load(r + o_x, m_t, 0)
        b_k = tl.load(k + o_x, m_t, 0)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0)
        b_do = tl.load(do + o_x, m_t, 0)
        b_s = tl.load(before + ((i_b * tl.cdiv(T, BT) + i_c) * H + i_h) * N * N + o_s)
        b_after = tl.cumsum(b_w, 0)
        b_before = b_after - b_w
        b_last = tl.sum(b_w, 0)  # [N]
        b_middle = tl.sum(tl.where((o_c < BT // 2)[:, None], b_w, 0), 0)[None, :]
        b_start, b_end = tl.exp(b_before), tl.exp(b_last[None, :] - b_after)  # to either end
        # Through the states.
        b_dr_s = b_start * tl.dot(b_do, tl.trans(b_s), input_precision=PRECISION)
        b_dk_s = b_end * tl.dot(b_v, tl.trans(b_g), input_precision=PRECISION)
        b_dv = tl.dot(b_k * b_end, b_g, input_precision=PRECISION)
        b_sg = tl.exp(b_last) * tl.sum(b_s * b_g, 1)  # [N]: the part of dw that crosses the chunk
        b_g *= tl.exp(b_last)[:, None]
        b_g += tl.dot(tl.trans(b_r * b_start), b_do, input_precision=PRECISION)
        # Within the chunk: the scores, and what the outputs want of them.
        b_to, b_from = tl.exp(b_before - b_middle), tl.exp(b_middle - b_after)
        b_left, b_right = b_r * b_to, b_k * b_from
        b_scores = tl.dot(b_left, tl.trans(b_right), input_precision=PRECISION)
        b_scores = tl.where(earlier, b_scores, 0)
        b_dscores = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_dscores = tl.where(earlier, b_dscores, 0)
        b_dr_c = b_to * tl.dot(b_dscores, b_right, input_precision=PRECISION)
        b_dk_c = b_from * tl.dot(tl.trans(b_dscores), b_left, input_precision=PRECISION)
        b_dv += tl.dot(tl.trans(b_scores), b_do, input_precision=PRECISION)
        # The decay of token t: what comes from before it and is read, or left, after it.
        b_rdr, b_kdk = b_r * b_dr_c, b_k * b_dk_c
        b_dw = 0 * b_sg[None, :] + tl.cumsum(b_k * b_dk_s, 0) - b_k * b_dk_s
        b_dw += tl.cumsum(b_r * b_dr_s + b_rdr - b_kdk, 0, reverse=True) - b_r * b_dr_s - b_rdr
        # The bonus.
        b_vdo = tl.sum(b_v * b_do, 1)[:, None]
        b_du += tl.sum(b_r * b_k * b_vdo, 0)
        b_dv += tl.sum(b_r * b_u * b_k, 1)[:, None] * b_do
        tl.store(dr + o_x, b_dr_s + b_dr_c + b_u * b_k * b_vdo, m_t)
        tl.store(dk + o_x, b_dk_s + b_dk_c + b_u * b_r * b_vdo, m_t)
        tl.store(dv + o_x, b_dv, m_t)
        tl.store(dw + o_x, b_dw, m_t)
    tl.store(ds0 + tl.program_id(0) * N * N + o_s, b_g)
    tl.store(du + tl.program_id(0) * N + o_n, b_du)
