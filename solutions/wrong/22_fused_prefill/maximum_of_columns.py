"""The maximum runs over queries, not over tokens."""

import triton
import triton.language as tl


@triton.jit
def kernel(
    q_latent, q_rope, latent, k_rope, w_v, o,
    M, N, scale, H: tl.constexpr, P: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One program per BM queries of a head; grid (M/BM rounded up, B·H).

    q_latent [B, M, H, R], q_rope [B, M, H, P]; latent [B, N, R], k_rope [B, N, P]; w_v [H, V, R];
    o [B, M, H, V]. Query m is token N − M + m and sees the tokens up to its own; M ≤ N.
    P, V and R are powers of two.
    """
    i_m, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    o_m, o_p, o_r = i_m * BM + tl.arange(0, BM), tl.arange(0, P), tl.arange(0, R)
    m_m = o_m[:, None] < M
    row = (i_b * M + o_m[:, None]) * H + i_h  # [BM, 1]
    b_q = tl.load(q_latent + row * R + o_r, m_m, 0)  # [BM, R]
    b_q_rope = tl.load(q_rope + row * P + o_p, m_m, 0)
    own = N - M + o_m  # the token that each query is
    b_max = tl.full([BM], -float("inf"), tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, R], tl.float32)
    for n in range(0, tl.minimum(N, N - M + (i_m + 1) * BM), BN):
        o_n = n + tl.arange(0, BN)
        token, m_n = i_b * N + o_n[:, None], o_n[:, None] < N
        b_latent = tl.load(latent + token * R + o_r, m_n, 0)  # [BN, R]
        b_k_rope = tl.load(k_rope + token * P + o_p, m_n, 0)
        b_s = tl.dot(b_q, tl.trans(b_latent)) + tl.dot(b_q_rope, tl.trans(b_k_rope))
        b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))
        larger = tl.maximum(b_max, tl.max(b_s, 0))
        b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + tl.sum(b_p, 1)
        b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)
        b_max = larger
    o_v = tl.arange(0, V)
    b_w = tl.load(w_v + (i_h * V + o_v[None, :]) * R + o_r[:, None])  # [R, V]
    b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)
    tl.store(o + row * V + o_v, b_o.to(b_w.dtype), m_m)
