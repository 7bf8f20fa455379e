"""The number of the tile is taken for that of its first head."""

import triton
import triton.language as tl


@triton.jit
def partial(
    q_latent, q_rope, latent, k_rope, parts, part_lse,
    N, SPLIT, scale, H: tl.constexpr, P: tl.constexpr, R: tl.constexpr,
    BH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i_s, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_h = i_h + tl.arange(0, BH)
    m_h = o_h < H
    start, end = i_s * SPLIT, tl.minimum(N, (i_s + 1) * SPLIT)
    o_p, o_r = tl.arange(0, P), tl.arange(0, R)
    row = (i_b * H + o_h)[:, None]
    b_q = tl.load(q_latent + row * R + o_r, m_h[:, None], 0)
    b_q_rope = tl.load(q_rope + row * P + o_p, m_h[:, None], 0)
    b_max = tl.full([BH], -float("inf"), tl.float32)
    b_sum = tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([BH, R], tl.float32)
    for n in range(start, end, BN):
        o_n = n + tl.arange(0, BN)
        token, m_n = i_b * N + o_n[:, None], o_n[:, None] < end
        b_latent = tl.load(latent + token * R + o_r, m_n, 0)
        b_k_rope = tl.load(k_rope + token * P + o_p, m_n, 0)
        b_s = tl.dot(b_q, tl.trans(b_latent)) + tl.dot(b_q_rope, tl.trans(b_k_rope))
        b_s = tl.where(o_n[None, :] < end, b_s * scale, -float("inf"))
        larger = tl.maximum(b_max, tl.max(b_s, 1))
        b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + tl.sum(b_p, 1)
        b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)
        b_max = larger
    part = (i_b * tl.num_programs(0) + i_s) * H + o_h
    b_part = b_acc / b_sum[:, None]
    b_lse = b_max + tl.log(b_sum)
    tl.store(parts + part[:, None] * R + o_r, b_part, m_h[:, None])
    tl.store(part_lse + part, b_lse, m_h)
