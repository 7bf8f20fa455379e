"""Rows of o that belong to no sequence, in Triton: zeros, so that no NaN of old memory is left."""

import triton
import triton.language as tl

ROWS = tl.constexpr(16)  # that are written at a time


@triton.jit
def zeros(o, start, end, i_h, o_v, m_v, H, V: tl.constexpr):
    """Rows of padding are zeros."""
    o_t = tl.arange(0, ROWS)
    n = (end - start).to(tl.int32)
    for t in range(0, n, ROWS):
        at = ((start + t + o_t)[:, None] * H + i_h) * V + o_v[None, :]
        b_o = tl.zeros([ROWS, o_v.shape[0]], o.dtype.element_ty)
        tl.store(o + at, b_o, (t + o_t < n)[:, None] & m_v[None, :])
