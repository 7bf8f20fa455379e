"""What earlier splits left is not shrunk when the largest grows."""

import triton
import triton.language as tl


@triton.jit
def combine(
    parts, part_lse, w_v, o,
    B, S, H: tl.constexpr, V: tl.constexpr, R: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    o_b, o_r, o_v = i_b * BB + tl.arange(0, BB), tl.arange(0, R), tl.arange(0, V)
    m_b = o_b < B
    b_max = tl.full([BB], -float("inf"), tl.float32)
    b_sum = tl.zeros([BB], tl.float32)
    b_acc = tl.zeros([BB, R], tl.float32)
    for s in range(S):
        part = (o_b * S + s) * H + i_h
        b_lse = tl.load(part_lse + part, m_b, 0)
        b_part = tl.load(parts + part[:, None] * R + o_r, m_b[:, None], 0)
        larger = tl.maximum(b_max, b_lse)
        weight, shrink = tl.exp(b_lse - larger), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + weight
        b_acc = b_acc + weight[:, None] * b_part
        b_max = larger
    b_w = tl.load(w_v + (i_h * V + o_v[None, :]) * R + o_r[:, None])
    b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)
    tl.store(o + (o_b[:, None] * H + i_h) * V + o_v, b_o.to(b_w.dtype), m_b[:, None])
