"""The map of a rank's tokens from those of its segments, as a Triton kernel.

The chunked kernels of RWKV-6 cut a long sequence into segments where heads are few, and find what
each does to the state: S ↦ diag(2^d) S + B. One after the other these are the map of all.
"""

import torch
import triton
import triton.language as tl

from ..runtime.compile_triton import assembled
from ..runtime.launch_triton import launch


@assembled
@triton.jit(do_not_specialize=["has_start", "H", "segments", "of_segment", "of_head"])
def fold_kernel(
    states, decays, start, out, has_start, H, segments, of_segment, of_head,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    COLUMNS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """A program for each sequence, head and block of values; see `folded`."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = (tl.program_id(0) // NV // H).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_s, o_s = m_k[:, None] & (o_v < V)[None, :], o_k[:, None] * V + o_v[None, :]
    i_s = i_n * H + i_h
    b_s = tl.load(start + i_s * K * V + o_s, m_s & (has_start != 0), 0.0).to(tl.float32)
    b_total = tl.zeros([BK], tl.float32)
    for g in range(0, segments):
        i_g = segments - 1 - g if REVERSE else g
        i = i_n * H * segments + i_g * of_segment + i_h * of_head
        b_decay = tl.load(decays + i * K + o_k, m_k, 0.0)
        b_s = b_s * tl.exp2(b_decay)[:, None] + tl.load(states + i * K * V + o_s, m_s, 0.0)
        b_total += b_decay
    o_row = (i_s * K + o_k) * (COLUMNS + V)
    tl.store(out + o_row[:, None] + COLUMNS + o_v[None, :], b_s, m_s)
    if COLUMNS == 1:
        tl.store(out + o_row, tl.exp2(b_total), m_k)


def folded(states, decays, start, H, reverse=False, heads_first=False, with_decay=True):
    """What all segments make of `start`, `[S, H, K, V]`, or zeros if None; float32.

    Args:
        states: what each makes of zeros, `[S, segments, H, K, V]`; the last segment's is applied
            first if `reverse`.
        decays: log2 of the decays across each, `[S, segments, H, K]`.
        heads_first: both have heads before segments.
        with_decay: the decay of all is a column before the values: `[S, H, K, 1 + V]`.
    """
    S, segments, K, V = states.shape[0], states.shape[2 if heads_first else 1], *states.shape[3:]
    columns = int(with_decay)
    out = torch.empty(S, H, K, columns + V, dtype=torch.float32, device=states.device)
    BK, BV = (max(16, triton.next_power_of_2(x)) for x in (K, V))
    BV = min(BV, 64)
    strides = (1, segments) if heads_first else (H, 1)
    launch(
        fold_kernel, S * H * triton.cdiv(V, BV), 4, (states, decays, out if start is None else
        start, out), (int(start is not None), H, segments, *strides),
        (K, V, BK, BV, columns, reverse),
    )  # fmt: skip
    return out
