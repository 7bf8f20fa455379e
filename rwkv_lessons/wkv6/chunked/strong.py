"""Chunks of WKV-6 whose decays are too strong for factors up to the end of the chunk.

forward.py writes the state before each group of tokens and marks the groups that such chunks are
in; here o of those is recomputed, many groups at once, with every factor at most 1 or within runs
of 16 tokens (`level_products`). A program that finds no mark returns at once.
"""

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import first_span, program_place, sequence_bounds
from .tiles import level_products, log2_decays, log_decay, of_halves, product

GROUP = 128  # tokens; fewer would mean more states to write, more a longer recomputation
GROUPS_PER_PROGRAM = 2  # that a program checks for marks


@assembled
@triton.jit(do_not_specialize=["T", "H", "segments", "span", "groups", "scale"])
def wkv6_strong_kernel(
    r, k, v, w, u, cu_seqlens, group_states, strong, o, checkpoints,
    T, H, segments, span, groups, scale,
    SIZES: tl.constexpr,
    CHECKPOINT: tl.constexpr, GROUP: tl.constexpr, GROUPS_PER_PROGRAM: tl.constexpr,
    RAW: tl.constexpr,
):  # fmt: skip
    """o of the groups that `strong` marks, and the checkpoints in the middle of their chunks."""
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    DTYPE: tl.constexpr = r.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    parts = tl.cdiv(groups, GROUPS_PER_PROGRAM)
    program, first = tl.program_id(0) // parts, tl.program_id(0) % parts * GROUPS_PER_PROGRAM
    i_n, i_g, i_h, i_v = program_place(program, segments, H, V, BV)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(tl.int64) * span
    n = tl.minimum(end - start - skipped, span).to(tl.int32)
    i_checkpoint = first_span(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT
    i_group, o_group = program.to(tl.int64) * groups, first + tl.arange(0, GROUPS_PER_PROGRAM)
    o_strong = (i_group + o_group)[:, None] * BK + tl.arange(0, BK)[None, :]
    b_strong = tl.load(strong + o_strong, (o_group * GROUP < n)[:, None], 0).to(tl.int32)
    b_strong = tl.max(b_strong, 1)  # [GROUPS_PER_PROGRAM]
    if tl.max(b_strong, 0) == 0:
        return

    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    row, col = o_t[:, None], o_t[None, :]
    m_k, m_v = (o_k < K)[None, :], (o_v < V)[None, :]
    o_tk, o_tv = row * (H * K) + o_k[None, :], row * (H * V) + o_v[None, :]
    o_s, m_s = o_k[:, None] * V + o_v[None, :], (o_k < K)[:, None] & m_v
    b_u = tl.load(u + i_h * K + o_k, o_k < K, 0.0).to(tl.float32)
    halves, b_s = of_halves(row, C), tl.zeros([BK, BV], tl.float32)
    o_before = o_k[:, None] * BV + tl.arange(0, BV)[None, :]
    last = tl.minimum((first + GROUPS_PER_PROGRAM) * GROUP, n)
    for t in tl.range(first * GROUP, last, C, num_stages=1):
        if tl.max(tl.where(o_group == t // GROUP, b_strong, 0), 0) != 0:
            if t % GROUP == 0:
                if checkpoints is None:
                    b_s = tl.load(group_states + (i_group + t // GROUP) * BK * BV + o_before)
                else:
                    at_group = ((i_checkpoint + t // CHECKPOINT) * H + i_h) * K * V
                    b_s = tl.load(checkpoints + at_group + o_s, m_s, 0.0)
                b_s = b_s.to(tl.float32)
            at, m_t = (start + skipped + t) * H + i_h, row < n - t
            b_w = log_decay(w + at * K + o_tk, m_t & m_k, RAW)
            b_r = tl.load(r + at * K + o_tk, m_t & m_k, 0.0).to(tl.float32) * scale
            b_k = tl.load(k + at * K + o_tk, m_t & m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_tv, m_t & m_v, 0.0)
            b_halves = log2_decays(
                halves, b_w, IS_FLOAT32, BY_KEY=True
            )  # eight columns for each half
            b_bonus = tl.sum(b_r * b_k * b_u[None, :], 1)[:, None]  # [C, 1]
            b_a = level_products(b_r, b_k, b_w, row, col, C, DTYPE)
            b_a = tl.where(row > col, b_a, tl.where(row == col, b_bonus, 0.0))
            b_r *= tl.exp2(log2_decays(col < row, b_w, IS_FLOAT32))
            b_o = product(b_r, b_s, tl.zeros([C, BV], tl.float32), DTYPE)
            b_o = product(b_a, b_v, b_o, DTYPE)
            tl.store(o + at * V + o_tv, b_o.to(o.dtype.element_ty), m_t & m_v)
            if checkpoints is not None and C > CHECKPOINT:
                b_first = tl.sum(tl.where(tl.arange(0, 16)[None, :] < 8, b_halves, 0.0), 1) / 8
                to_middle = (col > row) & (col < C // 2)
                b_before = b_k * tl.exp2(log2_decays(to_middle, b_w, IS_FLOAT32))
                b_before = tl.where(row < C // 2, b_before, 0.0)
                b_middle = product(tl.trans(b_before), b_v, b_s * tl.exp2(b_first)[:, None], DTYPE)
                at_checkpoint = ((i_checkpoint + t // CHECKPOINT + 1) * H + i_h) * K * V
                b_middle = b_middle.to(checkpoints.dtype.element_ty)
                tl.store(checkpoints + at_checkpoint + o_s, b_middle, m_s & (t + C // 2 < n))
            b_k *= tl.exp2(log2_decays(col > row, b_w, IS_FLOAT32))
            b_s *= tl.exp2(tl.sum(b_halves, 1) / 8)[:, None]
            b_s = product(tl.trans(b_k), b_v, b_s, DTYPE)
