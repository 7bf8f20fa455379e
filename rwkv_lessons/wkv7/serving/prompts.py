"""Long prompts of a call in chunks, as two Triton kernels on states of a pool.

The mathematics is that of ../chunked: a map of each chunk, all at once, then a sweep over the
chunks of each sequence. Here w0 is added to w, the chunks are those of ../../sequences/states, and
the sweep starts from a slot of the pool and ends there. A w that is not "clamp" may be as strong as
there is: its chunks go in levels.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.assembler import distrusted
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.states.chunks import carved, count_chunks, run_chunks
from ...sequences.states.rounding import rounded
from ...sequences.tiles import MIN_LOG_DECAY, from_middle, product_tf32
from ..chunked.forward import largest
from ..chunked.kept import chunk_of, kept_dtype, tiles_for
from ..chunked.pairs import (
    blocks_times,
    exp,
    inverse,
    level_products,
    load_both,
    quarters,
    store,
    stored,
    stored_product,
    sums,
    upper_lower,
)
from ..decays import FORMS, OF_CLAMP, log_of

LONGEST = 16  # tokens that are stepped through, one chunk
USUAL = 1024  # tokens of a prompt, where nothing is known


def goes_in_chunks(r):
    """Whether the kernels hold heads of this size, in this dtype, on this GPU."""
    gpu = devices.gpu_of(r.device)
    if r.dtype == torch.float32 and distrusted(gpu.capability):
        return False
    return r.shape[3] <= largest(gpu)


@triton.jit
def log_decays(w, w0, o_w, o_w0, m_w, m_k, DECAY: tl.constexpr):
    """The log decays of w0 + w, with a number for -inf, and 0 outside the mask."""
    b_w = tl.load(w + o_w, m_w, 0.0)
    if w0 is not None:
        b_w = b_w.to(tl.float32) + tl.load(w0 + o_w0, m_k, 0.0).to(tl.float32)
        b_w = tl.where(m_w, b_w, 0.0)
    b_w = log_of(b_w, m_w, DECAY)
    least = tl.full([], MIN_LOG_DECAY, tl.float32)
    return tl.where(b_w.to(tl.float32) < least, least.to(b_w.dtype), b_w)


@assembled
@triton.jit(do_not_specialize=["H", "scale"])
def wkv7_serving_maps_kernel(
    r, w, k, a, b, w0, bounds, readers, written, across, of_l, of_p, of_q, H, scale,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """The map of a chunk and head; results as of `chunked.maps`, bounds as of `states.chunks`."""
    DTYPE: tl.constexpr = r.dtype.element_ty
    STRONG: tl.constexpr = DECAY != OF_CLAMP
    HALF: tl.constexpr = C // 2
    i, i_h = tl.program_id(0).to(tl.int64), tl.program_id(0) % H
    start, end = tl.load(bounds + i // H * 2), tl.load(bounds + i // H * 2 + 1)
    if start >= end:
        return
    n, at = tl.minimum(end - start, C).to(tl.int32), (start * H + i_h) * K
    o_t, o_d = tl.arange(0, C), tl.arange(0, 2 * C)
    t, s, col = (o_d % C)[:, None], (o_d % C)[None, :], o_t[None, :]
    is_first = (o_d < C)[:, None]
    until = tl.where(is_first, t, t + 1)  # r reads through its own token's decay, too

    b_m, b_as = tl.zeros([2 * C, 2 * C], tl.float32), ()  # b_as: Ã, in blocks of keys
    for i_k in tl.static_range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)[None, :]
        m_k = o_k < K
        o_w, m_w = at + o_t[:, None] * (H * K) + o_k, (o_t[:, None] < n) & m_k
        b_w = log_decays(w, w0, o_w, i_h * K + o_k, m_w, m_k, DECAY)
        o_tk, m = at + t * (H * K) + o_k, (t < n) & m_k
        b_x = load_both(a + o_tk, r + o_tk, is_first, m, DTYPE)
        b_y = load_both(b + o_tk, k + o_tk, is_first, m, DTYPE).to(tl.float32)
        b_x = b_x.to(tl.float32) * tl.where(is_first, 1.0, scale)
        b_ends = sums(o_t[:, None] // HALF == col // HALF, b_w, None, DTYPE)  # of each half
        b_first, b_second = upper_lower(exp(b_ends), HALF)  # [HALF, BK], in each row the same
        o_half = tl.arange(0, HALF)[:, None]
        tl.store(across + i * K + o_k + o_half, b_first * b_second, (o_half == 0) & m_k)
        if STRONG:
            b_readers = b_x * exp(sums(col < until, b_w, None, DTYPE))
            b_written = b_y * exp(sums(col > t, b_w, None, DTYPE))
            b_m += level_products(b_x, b_y, b_w, t, until, col, s, C, DTYPE)
        else:
            b_sum = sums(from_middle(until, col, C), b_w, None, DTYPE)
            b_back = exp(-upper_lower(b_sum, C)[1])  # by r's sums: b's and k's
            b_x *= exp(b_sum)
            b_y = blocks_times(b_y, b_back)
            b_readers = blocks_times(b_x, b_first)
            b_written = blocks_times(b_y, b_second)
            b_m = product_tf32(b_x, tl.trans(b_y), b_m, DTYPE)
        to, m_to = i * (2 * C * K) + o_d[:, None] * K + o_k, (o_d[:, None] < 2 * C) & m_k
        store(written + to, b_written, m_to)
        b_as = b_as + (upper_lower(stored(b_readers, DTYPE), C)[0],)
        store(readers + to, b_readers, m_to & (o_d >= C)[:, None])
    b_ab, b_ak, b_rb, b_rk = quarters(tl.where(s < until, b_m, 0.0), C)

    row = o_t[:, None]
    o_tt, m_tt = i * (C * C) + row * C + col, (row < C) & (col < C)
    store(of_p + o_tt, b_rb, m_tt)
    store(of_q + o_tt, b_rk, m_tt)
    b_t = inverse(b_ab, row, col, C, DTYPE)
    store(of_l + o_tt, product_tf32(b_t, b_ak, tl.zeros([C, C], tl.float32), DTYPE), m_tt)
    b_none = tl.zeros([C, BK], tl.float32)
    for j in tl.static_range(len(b_as)):
        o_k = j * BK + tl.arange(0, BK)[None, :]
        at_w, m_w = readers + i * (2 * C * K) + row * K + o_k, (row < C) & (o_k < K)
        store(at_w, stored_product(b_t, b_as[j], b_none, DTYPE), m_w)


@assembled
@triton.jit(do_not_specialize=["H"])
def wkv7_serving_sweep_kernel(
    v, pool, indices, cu_seqlens, seeds, first, readers, written, across, of_l, of_p, of_q, o, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """o of the sequences of more than LONGEST tokens, and the state after them in its slot."""
    DTYPE: tl.constexpr = v.dtype.element_ty
    STATE: tl.constexpr = pool.dtype.element_ty
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = tl.program_id(0) // NV // H
    start = tl.load(cu_seqlens + i_n).to(tl.int64)
    n = (tl.load(cu_seqlens + i_n + 1).to(tl.int64) - start).to(tl.int32)
    slot = tl.load(indices + i_n).to(tl.int64)
    if (n <= LONGEST) | (slot < 0):
        return
    i_first = tl.load(first + i_n).to(tl.int64)
    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    o_tk, o_tt = o_t[:, None] * K + o_k[None, :], o_t[:, None] * C + o_t[None, :]
    m_tk = m_k[None, :] & (o_t < C)[:, None]
    i_s = (slot * H + i_h) * K * V
    o_s, m_s = i_s + o_v[:, None] + o_k[None, :] * V, m_v[:, None] & m_k[None, :]
    b_s = tl.load(pool + o_s, m_s, 0.0).to(tl.float32)  # [BV, BK]

    for c in tl.range(0, tl.cdiv(n, C), num_stages=STAGES):
        i, t = (i_first + c) * H + i_h, c * C + o_t
        o_tv = ((start + t) * H + i_h)[:, None] * V + o_v[None, :]
        m_tv = (t < n)[:, None] & m_v[None, :]
        b_v = tl.trans(tl.load(v + o_tv, m_tv, 0.0))  # [BV, C]
        b_w = tl.load(readers + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_r = tl.load(readers + i * (2 * C * K) + C * K + o_tk, m_tk, 0.0)
        b_b = tl.load(written + i * (2 * C * K) + o_tk, m_tk, 0.0)
        b_k = tl.load(written + i * (2 * C * K) + C * K + o_tk, m_tk, 0.0)
        b_l = tl.trans(tl.load(of_l + i * C * C + o_tt))
        b_p = tl.trans(tl.load(of_p + i * C * C + o_tt))
        b_q = tl.trans(tl.load(of_q + i * C * C + o_tt))
        b_decay = tl.load(across + i * K + o_k, m_k, 0.0)

        b_none = tl.zeros([BV, C], tl.float32)
        b_z = stored_product(b_v, b_l, b_none, DTYPE)
        b_o = stored_product(b_v, b_q, b_none, DTYPE)
        b_z = stored_product(b_s, tl.trans(b_w), b_z, DTYPE)
        b_o = stored_product(b_s, tl.trans(b_r), b_o, DTYPE)
        b_s = stored_product(b_z, b_b, b_s * b_decay[None, :], DTYPE)
        b_s = stored_product(b_v, b_k, b_s, DTYPE)
        b_o = stored_product(b_z, b_p, b_o, DTYPE)
        tl.store(o + o_tv, tl.trans(b_o).to(o.dtype.element_ty), m_tv)

    seed = n  # of no use
    if seeds is not None:
        seed = tl.load(seeds + i_n).to(tl.int32) + n - 1
    b_s = rounded(tl.trans(b_s), seed, i_h * K + o_k, i_h * V + o_v, STATE, seeds is not None)
    o_s, m_s = i_s + o_k[:, None] * V + o_v[None, :], m_k[:, None] & m_v[None, :]
    tl.store(pool + o_s, b_s, m_s)


def workspace_of(r, V, S, workspace=None):
    """What the two launches share, in a workspace of bytes, and the bytes that it takes."""
    (_, total, H, K), C, dtype = r.shape, chunk_of(r), kept_dtype(r)
    count = count_chunks(total, S, C, LONGEST)
    shapes = [((S,), torch.int32), ((count, 2), torch.int64), ((count, H, K), torch.float32)]
    shapes += [((count, H, 2 * C, K), dtype)] * 2 + [((count, H, C, C), dtype)] * 3
    return carved(workspace, shapes)


def run_prompts(
    tensors, w0, state_pool, indices, cu_seqlens, seeds, o, workspace, scale, decay, longest
):
    """Launches both for the sequences of more than `LONGEST` tokens."""
    r, w, k, v, a, b = tensors
    (_, total, H, K), V, S, C = r.shape, v.shape[3], len(indices), chunk_of(r)
    first, bounds, across, readers, written, of_l, of_p, of_q = workspace_of(r, V, S, workspace)[0]
    run_chunks(cu_seqlens, indices, first, bounds, C, LONGEST)
    # As many sequences as fill the call if each is as long as it may be: a guess, for the tile.
    heads = max(1, min(S, total // min(longest, USUAL))) * H
    tiles = tiles_for(heads, 1, K, V, r.dtype, devices.gpu_of(r.device))
    warps, registers = tiles.of_maps
    launch(
        wkv7_serving_maps_kernel, len(bounds) * H, warps,
        (r, w, k, a, b, w0, bounds, readers, written, across, of_l, of_p, of_q), (H, scale),
        (K, tiles.block_keys, C, FORMS[decay]), maxnreg=registers,
    )  # fmt: skip
    launch(
        wkv7_serving_sweep_kernel, S * H * triton.cdiv(V, tiles.values), tiles.warps,
        (v, state_pool, indices, cu_seqlens, seeds, first, readers, written, across, of_l, of_p,
         of_q, o), (H,), (K, V, tiles.keys, tiles.values, C, tiles.stages, LONGEST),
        maxnreg=tiles.registers,
    )  # fmt: skip
