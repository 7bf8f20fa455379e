"""The kernel of both forms in prefill.py: flash attention with an online softmax, in two forms.

A program owns BM query tokens of one head and loops over its keys in tiles of BN:

    expanded   tiles of the keys and of the values of its head, both [BN, …]
    absorbed   the tile is the latent itself, read once and used as keys and as values; W_V is
               applied to the finished sum, BM rows at once

The copy engine (TMA) brings the tiles, two or three on their way while one is multiplied.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.packages import refuse_wrong_triton
from .tiles import (
    LOG2E,
    AttendSizes,
    choose_tiles,
    descriptor,
    heads_in_a_group,
    power_of_2,
    registers,
)

LN2 = tl.constexpr(0.6931471805599453)
MIN_SCORE = tl.constexpr(-1e30)  # below any score; -inf - -inf would be NaN


@triton.jit
def bounds(lengths, left_padding, i_b, N):
    """The first key of a sequence, and the one behind the last."""
    first, last = 0, N
    if lengths is not None:
        last = tl.maximum(tl.minimum(tl.load(lengths + i_b), N), 0).to(tl.int32)
    if left_padding is not None:
        first = tl.minimum(tl.maximum(tl.load(left_padding + i_b), 0), N).to(tl.int32)
    return first, last


@assembled
@triton.jit(do_not_specialize=["GROUP"])
def attend_kernel(
    q, q_rope, k, k_rope, v, w_v, lengths, left_padding, o, lse, scale, M, N, H, BH, GROUP,
    SIZES: tl.constexpr,
):  # fmt: skip
    """q … w_v are descriptors: the copy engine fills a tile, with zeros outside of the tensor."""
    V: tl.constexpr = SIZES.V
    BM: tl.constexpr = SIZES.BM
    BN: tl.constexpr = SIZES.BN
    BK: tl.constexpr = SIZES.BK
    BP: tl.constexpr = SIZES.BP
    BV: tl.constexpr = SIZES.BV
    ABSORBED: tl.constexpr = SIZES.ABSORBED
    ONE_LOOP: tl.constexpr = SIZES.ONE_LOOP
    PRECISION: tl.constexpr = SIZES.PRECISION
    # One group of heads after the other; of each, the last query tokens, which have the most keys,
    # start first.
    tiles = tl.cdiv(M, BM)
    group = tl.program_id(0) // (GROUP * tiles) * GROUP
    size = tl.minimum(GROUP, BH - group)
    program = tl.program_id(0) - group * tiles
    i_m, i_bh = (tiles - 1 - program // size) * BM, group + program % size
    i_b, i_h = i_bh // H, i_bh % H
    o_m, o_n, o_v = i_m + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BV)

    first, last = bounds(lengths, left_padding, i_b, N)
    position = last - M + o_m  # of each query; it sees the keys first … position
    common_end = last - M + i_m + 1  # by every row of this tile
    end = tl.minimum(common_end + BM - 1, last)
    full_end = first + tl.maximum((end if ABSORBED else common_end) - first, 0) // BN * BN
    if ONE_LOOP:
        full_end = first

    if ABSORBED:  # [BM, R] is too large for registers: it stays in shared memory
        b_q = q.load([i_b, i_h, i_m, 0]).reshape(BM, BK)
        b_qr = q_rope.load([i_b, i_h, i_m, 0]).reshape(BM, BP)
    else:  # read with a step from token to token, it goes to registers: room for one more program
        b_q = q.load([i_b, i_m, i_h, 0]).reshape(BM, BK)
        b_qr = q_rope.load([i_b, i_m, i_h, 0]).reshape(BM, BP)
    b_max = tl.full([BM], MIN_SCORE, tl.float32)  # of scale · scores, in powers of two
    b_sum = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BK if ABSORBED else BV], tl.float32)
    for BORDER in tl.static_range(1 if ONE_LOOP else 0, 2):  # first where nothing is hidden
        for n in range(full_end if BORDER else first, end if BORDER else full_end, BN):
            if ABSORBED:
                b_k = k.load([i_b, n, 0]).reshape(BN, BK)
                if BORDER and lengths is not None:
                    b_k = tl.where((n + o_n < last)[:, None], b_k, 0.0)
                b_v = b_k
            else:
                b_k = k.load([i_b, i_h, n, 0]).reshape(BN, BK)
            b_kr = k_rope.load([i_b, n, 0]).reshape(BN, BP)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)  # [BM, BN]
            b_s = tl.dot(b_qr, tl.trans(b_kr), b_s, input_precision=PRECISION)
            if BORDER or ABSORBED:
                b_s = tl.where(n + o_n[None, :] <= position[:, None], b_s, float("-inf"))

            b_new = tl.maximum(b_max, tl.max(b_s, 1) * scale)
            b_p = tl.exp2(b_s * scale - b_new[:, None])
            b_rescale = tl.exp2(b_max - b_new)
            b_sum, b_max = b_sum * b_rescale + tl.sum(b_p, 1), b_new
            if not ABSORBED:
                b_v = v.load([i_b, i_h, n, 0]).reshape(BN, BV)
                if BORDER and lengths is not None:  # 0 · NaN is NaN: what nobody may see is cleared
                    b_v = tl.where((n + o_n < last)[:, None], b_v, 0.0)
            b_o = b_o * b_rescale[:, None]
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)

    b_max = tl.where(b_sum > 0, b_max, float("-inf"))  # a row that sees nothing: 0 and -inf
    b_sum = tl.where(b_sum > 0, b_sum, 1.0)
    b_o /= b_sum[:, None]
    m_m, o_o = o_m < M, (i_b.to(tl.int64) * M + o_m) * H + i_h
    tl.store(lse + o_o, (b_max + tl.log2(b_sum)) * LN2, mask=m_m)
    if ABSORBED:
        b_high = b_o.to(b_q.dtype)  # W_V takes the sum in two parts, so that it is not rounded
        b_low = (b_o - b_high).to(b_q.dtype)
        for i_v in tl.range(0, V, BV, num_stages=1):
            b_w = w_v.load([i_h, i_v, 0]).reshape(BV, BK)
            b_y = tl.dot(b_w, tl.trans(b_high), input_precision=PRECISION)  # [BV, BM]
            if b_q.dtype != tl.float32:
                b_y = tl.dot(b_w, tl.trans(b_low), b_y, input_precision=PRECISION)
            m_o = m_m[None, :] & (i_v + o_v < V)[:, None]
            tl.store(o + o_o[None, :] * V + i_v + o_v[:, None], b_y, mask=m_o)
    else:
        m_o = m_m[:, None] & (o_v < V)[None, :]
        tl.store(o + o_o[:, None] * V + o_v[None, :], b_o, mask=m_o)


def attend(q, q_rope, k, k_rope, v, w_v, scale, lengths=None, left_padding=None, tiles=None):
    """Launches the kernel: expanded with v, absorbed with w_v, where the other is None.

    Args:
        q, q_rope: `[B, M, H, K or R]` and `[B, M, H, P]`, any strides.
        k: `[B, H, N, K]`, or the latent `[B, N, R]`.
        k_rope: `[B, N, P]`.
        v: `[B, H, N, V]`.     w_v: `[H, V, R]`.
    """
    (B, M, H, K), P, N = q.shape, q_rope.shape[-1], k_rope.shape[1]
    V = v.shape[-1] if w_v is None else w_v.shape[1]
    o = q.new_empty(B, M, H, V)
    lse = q.new_empty(B, M, H, dtype=torch.float32)
    if B * M == 0:
        return o, lse
    absorbed = w_v is not None
    if not absorbed and K <= 64 and q.element_size() == 2:
        refuse_wrong_triton("mla_prefill of keys of up to 64 in 16 bits", triton.__version__)
    gpu = devices.gpu_of(q.device)
    tiles = tiles or choose_tiles(q.dtype, K, V, absorbed, lengths is not None, gpu)
    BM, BN, BV = tiles.BM, tiles.BN, tiles.BV
    BK, BP = power_of_2(K), power_of_2(P)
    rows, shared = (1, BM, 1), (1, 1)
    if absorbed:
        rows, shared = (1, 1, BM), (1,)  # the latent has no heads
        q, q_rope = q.transpose(1, 2), q_rope.transpose(1, 2)
    group = B * H if absorbed else heads_in_a_group(B * H, N * (K + V) * k.element_size())
    if scale <= 0:  # the kernel takes the largest score before it scales
        sign = -1 if scale else 0
        q, q_rope, scale = q * sign, q_rope * sign, -scale or 1.0
    attend_kernel[(triton.cdiv(M, BM) * B * H,)](
        descriptor(q, *rows, BK),
        descriptor(q_rope, *rows, BP),
        descriptor(k, *shared, BN, BK),
        descriptor(k_rope, 1, BN, BP),
        None if v is None else descriptor(v, 1, 1, BN, BV),
        None if w_v is None else descriptor(w_v, 1, BV, BK),
        lengths, left_padding, o, lse, scale * LOG2E, M, N, H, B * H, group,
        AttendSizes(V, BM, BN, BK, BP, BV, absorbed, absorbed and lengths is None),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        maxnreg=registers(gpu),
    )  # fmt: skip
    return o, lse
