"""Gradients of expanded prefill: the scores again, tile by tile, from the log-sum-exp.

    p = exp(scale · s − lse)      dv = pᵀ do          ds = p (do vᵀ − delta) · scale
    dq = ds k                     dk = dsᵀ q          delta = Σ do · o − dlse, one number a row

Two kernels, so that no sum is shared between programs: one owns a tile of queries and loops over
its keys, the other a tile of keys and loops over the queries that see them. The rope keys serve all
heads; their gradients are written per head and added up after.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from . import tiles as prefill_tiles
from .forward import bounds
from .tiles import AttentionGradientSizes, backward_tiles, descriptor, power_of_2, registers

LOG2E = tl.constexpr(prefill_tiles.LOG2E)


@assembled
@triton.jit
def queries_kernel(
    q, q_rope, k, k_rope, v, do, lse, delta, lengths, left_padding, dq, dq_rope, scale, M, N, H, BH,
    SIZES: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = SIZES.K
    P: tl.constexpr = SIZES.P
    BM: tl.constexpr = SIZES.BM
    BN: tl.constexpr = SIZES.BN
    BK: tl.constexpr = SIZES.BK
    BP: tl.constexpr = SIZES.BP
    BV: tl.constexpr = SIZES.BV
    PRECISION: tl.constexpr = SIZES.PRECISION
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    i_m, i_b, i_h = program // BH * BM, program % BH // H, program % H
    o_m, o_n = i_m + tl.arange(0, BM), tl.arange(0, BN)
    o_k, o_p = tl.arange(0, BK), tl.arange(0, BP)
    first, last = bounds(lengths, left_padding, i_b, N)
    position = last - M + o_m
    end = tl.minimum(last - M + i_m + BM, last)

    b_q = q.load([i_b, i_m, i_h, 0]).reshape(BM, BK)
    b_qr = q_rope.load([i_b, i_m, i_h, 0]).reshape(BM, BP)
    b_do = do.load([i_b, i_m, i_h, 0]).reshape(BM, BV)
    m_m, o_o = o_m < M, (i_b.to(tl.int64) * M + o_m) * H + i_h
    b_lse = tl.load(lse + o_o, m_m, float("inf"))[:, None]  # in powers of two; inf: sees nothing
    b_delta = tl.load(delta + o_o, m_m, 0.0)[:, None]
    b_dq = tl.zeros([BM, BK], tl.float32)
    b_dqr = tl.zeros([BM, BP], tl.float32)
    for n in range(first, end, BN):
        b_k = k.load([i_b, i_h, n, 0]).reshape(BN, BK)
        b_kr = k_rope.load([i_b, n, 0]).reshape(BN, BP)
        b_v = v.load([i_b, i_h, n, 0]).reshape(BN, BV)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)  # [BM, BN]
        b_s = tl.dot(b_qr, tl.trans(b_kr), b_s, input_precision=PRECISION)
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_ds = tl.exp2(b_s * (scale * LOG2E) - b_lse) * (b_dp - b_delta)
        b_ds = tl.where(n + o_n[None, :] <= position[:, None], b_ds, 0.0).to(b_k.dtype)
        if lengths is not None:  # what nobody may see may be NaN
            b_k = tl.where((n + o_n < last)[:, None], b_k, 0.0)
            b_kr = tl.where((n + o_n < last)[:, None], b_kr, 0.0)
        b_dq = tl.dot(b_ds, b_k, b_dq, input_precision=PRECISION)
        b_dqr = tl.dot(b_ds, b_kr, b_dqr, input_precision=PRECISION)

    tl.store(dq + o_o[:, None] * K + o_k, b_dq * scale, m_m[:, None] & (o_k < K))
    tl.store(dq_rope + o_o[:, None] * P + o_p, b_dqr * scale, m_m[:, None] & (o_p < P))


@assembled
@triton.jit
def keys_kernel(
    q, q_rope, k, k_rope, v, do, lse, delta, lengths, left_padding, dk, dk_rope, dv,
    scale, M, N, H, BH, SIZES: tl.constexpr,
):  # fmt: skip
    """All tiles are [keys, queries]: transposed, so that p and ds are multiplied as they lie."""
    K: tl.constexpr = SIZES.K
    P: tl.constexpr = SIZES.P
    V: tl.constexpr = SIZES.V
    BM: tl.constexpr = SIZES.BM
    BN: tl.constexpr = SIZES.BN
    BK: tl.constexpr = SIZES.BK
    BP: tl.constexpr = SIZES.BP
    BV: tl.constexpr = SIZES.BV
    PRECISION: tl.constexpr = SIZES.PRECISION
    # The first keys are seen by the most queries: they start first.
    i_n, i_b = tl.program_id(0) // BH * BN, tl.program_id(0) % BH // H
    i_h = tl.program_id(0) % H
    o_m, o_n, o_k = tl.arange(0, BM), i_n + tl.arange(0, BN), tl.arange(0, BK)
    o_p, o_v = tl.arange(0, BP), tl.arange(0, BV)
    first, last = bounds(lengths, left_padding, i_b, N)
    start = tl.maximum(i_n - last + M, 0)  # the first query that sees key i_n
    start = tl.where((i_n < last) & (i_n + BN > first), start, M)
    has_token = (o_n >= first) & (o_n < last)

    b_k = k.load([i_b, i_h, i_n, 0]).reshape(BN, BK)
    b_kr = k_rope.load([i_b, i_n, 0]).reshape(BN, BP)
    b_v = v.load([i_b, i_h, i_n, 0]).reshape(BN, BV)
    b_dk = tl.zeros([BN, BK], tl.float32)
    b_dkr = tl.zeros([BN, BP], tl.float32)
    b_dv = tl.zeros([BN, BV], tl.float32)
    for m in range(start, M, BM):
        b_q = q.load([i_b, i_h, m, 0]).reshape(BM, BK)
        b_qr = q_rope.load([i_b, i_h, m, 0]).reshape(BM, BP)
        b_do = do.load([i_b, i_h, m, 0]).reshape(BM, BV)
        o_o, m_m = (i_b.to(tl.int64) * M + m + o_m) * H + i_h, m + o_m < M
        b_lse = tl.load(lse + o_o, m_m, float("inf"))[None, :]
        b_delta = tl.load(delta + o_o, m_m, 0.0)[None, :]
        is_visible = (o_n[:, None] <= last - M + m + o_m[None, :]) & has_token[:, None]

        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION)  # [BN, BM]
        b_s = tl.dot(b_kr, tl.trans(b_qr), b_s, input_precision=PRECISION)
        b_p = tl.where(is_visible, tl.exp2(b_s * (scale * LOG2E) - b_lse), 0.0)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision=PRECISION)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
        b_ds = tl.where(is_visible, b_p * (b_dp - b_delta), 0.0).to(b_q.dtype)
        b_dk = tl.dot(b_ds, b_q, b_dk, input_precision=PRECISION)
        b_dkr = tl.dot(b_ds, b_qr, b_dkr, input_precision=PRECISION)

    m_n, o_o = (o_n < N)[:, None], ((i_b.to(tl.int64) * H + i_h) * N + o_n)[:, None]
    tl.store(dk + o_o * K + o_k, b_dk * scale, m_n & (o_k < K))
    tl.store(dk_rope + o_o * P + o_p, b_dkr * scale, m_n & (o_p < P))
    tl.store(dv + o_o * V + o_v, b_dv, m_n & (o_v < V))


def backward(q, q_rope, k, k_rope, v, o, lse, do, dlse, scale, lengths, left_padding):
    """dq, dq_rope, dk, dk_rope, dv, in the shapes of q, q_rope, k, k_rope, v."""
    (B, M, H, K), P, V, N = q.shape, q_rope.shape[-1], v.shape[-1], k.shape[2]
    delta = (do.float() * o.float()).sum(-1) - dlse
    lse = (lse * prefill_tiles.LOG2E).masked_fill(lse == -torch.inf, torch.inf)
    dq, dq_rope, dk, dv = (x.new_empty(x.shape) for x in (q, q_rope, k, v))
    dk_rope = q.new_empty(B, H, N, P, dtype=torch.float32)
    BK, BP, BV = power_of_2(K), power_of_2(P), power_of_2(V)

    gpu = devices.gpu_of(q.device)
    rows, keys = backward_tiles(BK, BV, q.dtype, gpu)
    if B * M == 0:
        return tuple(x.zero_() for x in (dq, dq_rope, dk, torch.empty_like(k_rope), dv))
    BM, BN = rows.BM, rows.BN
    queries_kernel[(triton.cdiv(M, BM) * B * H,)](
        *(descriptor(x, 1, BM, 1, b) for x, b in ((q, BK), (q_rope, BP))),
        descriptor(k, 1, 1, BN, BK), descriptor(k_rope, 1, BN, BP), descriptor(v, 1, 1, BN, BV),
        descriptor(do, 1, BM, 1, BV), lse, delta, lengths, left_padding, dq, dq_rope,
        scale, M, N, H, B * H, AttentionGradientSizes(K, P, V, BM, BN, BK, BP, BV),
        num_warps=rows.warps, num_stages=rows.stages, maxnreg=registers(gpu),
    )  # fmt: skip
    BM, BN = keys.BM, keys.BN
    by_head = [x.transpose(1, 2) for x in (q, q_rope, do)]
    keys_kernel[(triton.cdiv(N, BN) * B * H,)](
        *(descriptor(x, 1, 1, BM, b) for x, b in zip(by_head[:2], (BK, BP), strict=True)),
        descriptor(k, 1, 1, BN, BK), descriptor(k_rope, 1, BN, BP), descriptor(v, 1, 1, BN, BV),
        descriptor(by_head[2], 1, 1, BM, BV), lse, delta, lengths, left_padding, dk, dk_rope, dv,
        scale, M, N, H, B * H, AttentionGradientSizes(K, P, V, BM, BN, BK, BP, BV),
        num_warps=keys.warps, num_stages=keys.stages, maxnreg=registers(gpu),
    )  # fmt: skip
    return dq, dq_rope, dk, dk_rope.sum(1).to(k_rope.dtype), dv
