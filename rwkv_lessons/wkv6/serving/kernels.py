"""Tokens one after the other, and long prompts in chunks, on states of a pool; in Triton.

Both kernels own some values of a head of a sequence and all of its keys. The one for prompts makes
the pairs of tokens of a chunk in levels, where no factor is above 1, so that decays may be as
strong as they are: one launch without scratch memory, not the fastest there is for WKV-6.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.assembler import distrusted
from ...runtime.bounded import remembered
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.states.padding import zeros
from ...sequences.states.rounding import store_state
from ..chunked.sizes import largest
from ..chunked.tiles import finite, level_products, log2_decays, log_of, product

TILE = 2048  # elements of the state of a program of tokens: 64 registers a thread
STAGES = 4  # of the loop over tokens: loads in flight
LONGEST = 16  # tokens that are stepped through
CHUNK = 16  # tokens
MIN_BLOCK = 16  # the least that a tensor core multiplies


def goes_in_chunks(r, V):
    """Whether the kernel for prompts holds heads of this size, in this dtype, on this GPU."""
    gpu = devices.gpu_of(r.device)
    if r.dtype == torch.float32 and distrusted(gpu.capability):
        return False
    return max(r.shape[3], V) <= largest(r.dtype, gpu)


@triton.jit
def log_decays(w, w0, o_w, o_w0, m_w, m_k, RAW: tl.constexpr):
    """The log decays of w0 + w, 0 outside the mask."""
    b_w = tl.load(w + o_w, m_w, 0.0)
    if w0 is not None:
        b_w = b_w.to(tl.float32) + tl.load(w0 + o_w0, m_k, 0.0).to(tl.float32)
        b_w = tl.where(m_w, b_w, 0.0)
    return log_of(b_w, m_w, RAW)


@assembled
@triton.jit(do_not_specialize=["H", "sequences", "total", "scale"])
def wkv6_tokens_kernel(
    r, k, v, w, u, w0, pool, indices, cu_seqlens, seeds, o, H, sequences, total, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr, RAW: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Of sequences of up to LONGEST tokens, of all where it is 0; zeros in rows of padding."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = tl.program_id(0) // NV // H
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    start = tl.load(cu_seqlens + i_n).to(tl.int64)
    if i_n == sequences:  # the rows after the last sequence
        zeros(o, start, total, i_h, o_v, m_v, H, V)
        return
    n = (tl.load(cu_seqlens + i_n + 1).to(tl.int64) - start).to(tl.int32)
    slot = tl.load(indices + i_n).to(tl.int64)
    if slot < 0:
        zeros(o, start, start + n, i_h, o_v, m_v, H, V)
        return
    if LONGEST > 0:
        if n > LONGEST:
            return
    if n <= 0:
        return

    m_s = m_k[:, None] & m_v[None, :]
    o_s = (slot * H + i_h) * K * V + o_k[:, None] * V + o_v[None, :]
    o_hk, o_hv = i_h * K + o_k, i_h * V + o_v
    at_k, at_v = start * H * K + o_hk, start * H * V + o_hv
    b_s = tl.load(pool + o_s, m_s, 0.0).to(tl.float32)
    b_u = tl.load(u + o_hk, m_k, 0.0).to(tl.float32)
    for _ in tl.range(0, n, num_stages=STAGES):
        b_r = tl.load(r + at_k, m_k, 0.0).to(tl.float32) * scale
        b_k = tl.load(k + at_k, m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at_v, m_v, 0.0).to(tl.float32)
        b_w = log_decays(w, w0, at_k, o_hk, m_k, m_k, RAW).to(tl.float32)
        b_kv = b_k[:, None] * b_v[None, :]  # [BK, BV]
        b_o = tl.sum(b_r[:, None] * (b_s + b_u[:, None] * b_kv), 0)
        b_s = tl.exp(b_w)[:, None] * b_s + b_kv
        tl.store(o + at_v, b_o.to(o.dtype.element_ty), m_v)
        at_k += H * K
        at_v += H * V
    store_state(pool + o_s, b_s, m_s, seeds, i_n, n, o_hk, o_hv)


@assembled
@triton.jit(do_not_specialize=["H", "scale"])
def wkv6_prompts_kernel(
    r, k, v, w, u, w0, pool, indices, cu_seqlens, seeds, o, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Of sequences of more than LONGEST tokens, in chunks of C tokens."""
    DTYPE: tl.constexpr = r.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = tl.program_id(0) // NV // H
    start = tl.load(cu_seqlens + i_n).to(tl.int64)
    n = (tl.load(cu_seqlens + i_n + 1).to(tl.int64) - start).to(tl.int32)
    slot = tl.load(indices + i_n).to(tl.int64)
    if (n <= LONGEST) | (slot < 0):
        return

    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    row, col = o_t[:, None], o_t[None, :]
    m_k, m_v = (o_k < K)[None, :], (o_v < V)[None, :]
    o_tk, o_tv = row * (H * K) + o_k[None, :], row * (H * V) + o_v[None, :]
    o_s, m_s = o_k[:, None] * V + o_v[None, :], (o_k < K)[:, None] & m_v
    o_hk = i_h * K + o_k
    at_s = pool + (slot * H + i_h) * K * V + o_s
    b_s = tl.load(at_s, m_s, 0.0).to(tl.float32)
    b_u = tl.load(u + o_hk, o_k < K, 0.0).to(tl.float32)[None, :]
    for t in tl.range(0, n, C, num_stages=1):
        at, m_t = (start + t) * H + i_h, row < n - t
        m_tk = m_t & m_k
        b_w = finite(log_decays(w, w0, at * K + o_tk, o_hk[None, :], m_tk, m_k, RAW))
        b_r = tl.load(r + at * K + o_tk, m_tk, 0.0).to(tl.float32) * scale
        b_k = tl.load(k + at * K + o_tk, m_tk, 0.0).to(tl.float32)
        b_v = tl.load(v + at * V + o_tv, m_t & m_v, 0.0)
        b_bonus = tl.sum(b_r * b_k * b_u, 1)[:, None]  # [C, 1]
        b_a = level_products(b_r, b_k, b_w, row, col, C, DTYPE)
        b_a = tl.where(row > col, b_a, tl.where(row == col, b_bonus, 0.0))
        b_r *= tl.exp2(log2_decays(col < row, b_w, IS_FLOAT32))
        b_o = product(b_r, b_s, tl.zeros([C, BV], tl.float32), DTYPE)
        b_o = product(b_a, b_v, b_o, DTYPE)
        tl.store(o + at * V + o_tv, b_o.to(o.dtype.element_ty), m_t & m_v)
        b_k *= tl.exp2(log2_decays(col > row, b_w, IS_FLOAT32))
        b_all = log2_decays((row >= 0) & (col >= 0), b_w, IS_FLOAT32, BY_KEY=True)  # [BK, C], alike
        b_s *= tl.exp2(tl.sum(b_all, 1) / C)[:, None]
        b_s = product(tl.trans(b_k), b_v, b_s, DTYPE)
    store_state(at_s, b_s, m_s, seeds, i_n, n, o_hk, i_h * V + o_v)


@remembered
def tile_for(K, V):
    """Keys and values of a program of tokens, and its warps: sums over keys stay inside of it."""
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    return BK, min(BV, max(4, TILE // BK)), 1


@remembered
def prompts_tile_for(K, V):
    """Keys and values of a program of prompts, tokens of a chunk, and its warps."""
    BK, BV = (max(MIN_BLOCK, triton.next_power_of_2(x)) for x in (K, V))
    return BK, min(BV, max(MIN_BLOCK, 2 * TILE // BK)), CHUNK, 4  # 64 values with 64 keys


def run(r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds, o, scale, raw_decay, longest):
    """Launches one kernel or, where a sequence may be long, both."""
    (_, total, H, K), V, S = r.shape, v.shape[3], len(indices)
    in_chunks = longest > LONGEST and goes_in_chunks(r, V)
    tensors = (r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds, o)
    BK, BV, warps = tile_for(K, V)
    launch(
        wkv6_tokens_kernel, (S + 1) * H * -(-V // BV), warps, tensors, (H, S, total, scale),
        (K, V, BK, BV, 1 if longest == 1 else STAGES, raw_decay, LONGEST if in_chunks else 0),
    )  # fmt: skip
    if in_chunks:
        BK, BV, C, warps = prompts_tile_for(K, V)
        launch(
            wkv6_prompts_kernel, S * H * -(-V // BV), warps, tensors, (H, scale),
            (K, V, BK, BV, C, raw_decay, LONGEST),
        )  # fmt: skip
