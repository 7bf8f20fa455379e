"""Sweeps of few heads: several programs along one sequence, each with the state it starts from.

The chunks of a sequence are cut into segments. What a segment makes of a state S is M S + U, exact
for any decay: U is the state after it from zeros, and M, `[K, K]`, what its chunks make of the
identity where v is zero, S ← decay S + B̂ᵀ W S. One launch makes M and U of all segments, another
joins them one after the other, and then the sweep goes through all segments at once. The maps are
read twice for that, so it is for heads that are too few to fill the GPU, and for long sequences.
"""

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...sequences.spans import first_span, sequence_bounds
from .pairs import stored_product
from .sweep import turned, wkv7_sweep_kernel

JOINED = 64  # keys at a time of the products that join segments, which have 4 warps
MOST_JOINED_VALUES = 32


def sweep_launches(tensors, s0, results, has_s0, T, shape, tiles, reverse, between=False):
    """The launches of a sweep, by segments where there are several.

    Args:
        tensors: v, cu_seqlens, readers, written, across, of_l, of_p, of_q, of_t, see sweep.py.
        s0: the state that it starts from, read if `has_s0`.
        results: o, s1, states, reads.
        shape: S, H, K, V.
        tiles: of `tiles_for`.
        between: U and M of all segments are wanted, the first one's M and the last ones, too.
    """
    v, cu_seqlens, readers, written, across, of_l, *of_maps = tensors
    (S, H, K, V), t = shape, tiles
    sizes = t.sweeps[reverse]
    numbers, ends, launches = (int(has_s0), T, H, t.segments, t.span), None, []
    # Unless told, ptxas gives some of these kernels 32, and spills.
    options = {"maxnreg": t.registers}
    count = t.segments if between else t.segments - 1
    if count:
        new = results[1].new_empty
        ends, matrices = new((S, count, H, K, V)), new((S, count, H, K, K))
        blocks = triton.cdiv(V, t.values) + triton.cdiv(K, t.values)
        launches.append((
            wkv7_segments_kernel, S * count * H * blocks, t.warps,
            (v, s0, cu_seqlens, readers, written, across, of_l, ends, matrices),
            (int(has_s0), T, H, count + 1, t.span), (*sizes, 0 if between else 1), options,
        ))  # fmt: skip
    if t.segments > 1:
        block, values = min(JOINED, t.keys), min(MOST_JOINED_VALUES, t.values)
        launches.append((
            wkv7_join_kernel, S * H * triton.cdiv(V, values), 4, (ends, matrices),
            (H, t.segments, count), (K, V, block, values), {},
        ))  # fmt: skip
    else:
        ends = None
    numbers = (*numbers, count)
    launches.append((
        wkv7_sweep_kernel, S * t.segments * H * triton.cdiv(V, t.values), t.warps,
        (v, s0, cu_seqlens, readers, written, across, of_l, *of_maps, ends, *results),
        numbers, (sizes,), options,
    ))  # fmt: skip
    return launches


def joined(ends, matrices, of_matrices=True):
    """M and U of all segments, `[S, segments, H, …]`, as if they were one; or None and U."""
    M, U = matrices[:, 0] if of_matrices else None, ends[:, 0].clone()  # ends may change afterwards
    for n in range(1, ends.shape[1]):
        M = matrices[:, n] @ M if of_matrices else None
        U = torch.matmul(matrices[:, n], U).add_(ends[:, n])
    return M, U


def start_from(ends, matrices, state):
    """Has the first segment, which started from something else or zeros, add this state."""
    ends[:, 0] += matrices[:, 0] @ state


@assembled
@triton.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span"])
def wkv7_segments_kernel(
    v, s0, cu_seqlens, readers, written, across, of_l, ends, matrices,
    has_s0, T, H, segments, span,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGES: tl.constexpr, REVERSE: tl.constexpr, FIRST_MATRIX: tl.constexpr,
):  # fmt: skip
    """U and M of each segment of `span` chunks but the last, in the direction of the sweep.

    ends: `[S, segments - 1, H, K, V]`, U; of the first segment the state after it, from s0.
    matrices: `[S, segments - 1, H, K, K]`, M, from segment FIRST_MATRIX on. Both float32.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    BLOCKS: tl.constexpr = NV + (K + BV - 1) // BV
    i_x, i_h = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS % H
    i_g = tl.program_id(0) // BLOCKS // H % (segments - 1)
    i_n = (tl.program_id(0) // BLOCKS // H // (segments - 1)).to(tl.int64)
    if i_x < NV:
        segment(
            v, s0, cu_seqlens, readers, written, across, of_l, ends, has_s0, T, H, segments, span,
            i_n, i_g, i_h, i_x, K, V, BK, BV, C, STAGES, REVERSE,
        )  # fmt: skip
    elif i_g >= FIRST_MATRIX:
        segment(
            None, None, cu_seqlens, readers, written, across, of_l, matrices, has_s0, T, H,
            segments, span, i_n, i_g, i_h, i_x - NV, K, K, BK, BV, C, STAGES, REVERSE,
        )  # fmt: skip


@triton.jit
def segment(
    v, s0, cu_seqlens, readers, written, across, of_l, after, has_s0, T, H, segments, span,
    i_n, i_g, i_h, i_v,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGES: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The state after segment i_g, as the sweep computes it; of the identity where v is None."""
    DTYPE: tl.constexpr = readers.dtype.element_ty if v is None else v.dtype.element_ty
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n = (end - start).to(tl.int32)
    chunks = tl.cdiv(n, C)
    first = first_span(cu_seqlens, start, i_n, T, C)
    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_tk, o_tt = o_t[:, None] * K + o_k[None, :], o_t[:, None] * C + o_t[None, :]
    m_tk = m_k[None, :] & (o_t < C)[:, None]
    o_s, m_s = o_v[:, None] + o_k[None, :] * V, m_v[:, None] & m_k[None, :]
    if v is None:
        b_s = (o_v[:, None] == o_k[None, :]).to(tl.float32)  # [BV, BK]
    else:
        i_s = (i_n * H + i_h) * K * V
        from_s0 = (has_s0 != 0) & (i_g == 0)
        b_s = tl.load(s0 + i_s + o_s, m_s & from_s0, 0.0).to(tl.float32)

    for step in tl.range(i_g * span, tl.minimum(i_g * span + span, chunks), num_stages=STAGES):
        c = chunks - 1 - step if REVERSE else step
        i = (first + c) * H + i_h
        b_w = tl.load(readers + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_b = tl.load(written + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_decay = tl.load(across + i * K + o_k, m_k, 0.0)
        b_x = tl.zeros([BV, C], tl.float32)
        if v is not None:
            t = c * C + o_t
            o_tv = ((start + t) * H + i_h)[:, None] * V + o_v[None, :]
            b_v = tl.trans(tl.load(v + o_tv, (t < n)[:, None] & m_v[None, :], 0.0))
            b_k = tl.load(written + i * (2 * C * K) + C * K + o_tk, m_tk, 0.0)
            b_l = turned(tl.load(of_l + i * C * C + o_tt), REVERSE)
            b_x = stored_product(b_v, b_l, b_x, DTYPE)
        b_x = stored_product(b_s, tl.trans(b_w), b_x, DTYPE)
        b_s = stored_product(b_x, b_b, b_s * b_decay[None, :], DTYPE)
        if v is not None:
            b_s = stored_product(b_v, b_k, b_s, DTYPE)

    i_after = ((i_n * (segments - 1) + i_g) * H + i_h) * K * V
    tl.store(after + i_after + o_s, b_s, m_s)


@assembled
@triton.jit(do_not_specialize=["H", "segments", "count"])
def wkv7_join_kernel(
    ends, matrices, H, segments, count,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Makes of U of each segment the state after it, M S + U, one after the other, in place.

    Of all but the last of the segments; both tensors have `count` of them.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = (tl.program_id(0) // NV // H).to(tl.int64)
    o_b, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    for g in range(1, segments - 1):
        i = (i_n * count + g) * H + i_h
        for i_k in range(0, K, BK):
            o_k = i_k + o_b
            o_s = o_k[:, None] * V + o_v[None, :]
            m_s = (o_k < K)[:, None] & (o_v < V)[None, :]
            b_s = tl.load(ends + i * K * V + o_s, m_s, 0.0)
            for j_k in range(0, K, BK):
                o_j = j_k + o_b
                m_m = (o_k < K)[:, None] & (o_j < K)[None, :]
                b_m = tl.load(matrices + i * K * K + o_k[:, None] * K + o_j[None, :], m_m, 0.0)
                o_e, m_e = o_j[:, None] * V + o_v[None, :], (o_j < K)[:, None] & (o_v < V)[None, :]
                b_e = tl.load(ends + (i - H) * K * V + o_e, m_e, 0.0)
                b_s = tl.dot(b_m, b_e, b_s, input_precision="tf32x3")
            tl.store(ends + i * K * V + o_s, b_s, m_s)
        tl.debug_barrier()  # what other threads stored is there
