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
from ...sequences.states.rounding import store_state
from ..chunked.forward import largest
from ..chunked.kept import chunk_of, kept_dtype, tiles_for
from ..chunked.maps import store_map
from ..chunked.sweep import apply_maps

LONGEST = 16  # tokens that are stepped through, one chunk
USUAL = 1024  # tokens of a prompt, where nothing is known


def goes_in_chunks(r):
    """Whether the kernels hold heads of this size, in this dtype, on this GPU."""
    gpu = devices.gpu_of(r.device)
    if r.dtype == torch.float32 and distrusted(gpu.capability):
        return False
    return r.shape[3] <= largest(gpu)


@assembled
@triton.jit(do_not_specialize=["H", "scale"])
def wkv7_serving_maps_kernel(
    r, w, k, a, b, w0, bounds, readers, written, across, of_l, of_p, of_q, H, scale,
    SIZES: tl.constexpr,
):  # fmt: skip
    """The map of a chunk and head; results as of `chunked.maps`, bounds as of `states.chunks`."""
    i, i_h = tl.program_id(0).to(tl.int64), tl.program_id(0) % H
    start, end = tl.load(bounds + i // H * 2), tl.load(bounds + i // H * 2 + 1)
    if start >= end:
        return
    n, at = tl.minimum(end - start, SIZES.C).to(tl.int32), (start * H + i_h) * SIZES.K
    store_map(
        r, w, k, a, b, w0, readers, written, across, of_l, of_p, of_q, None, None,
        at, n, i, i_h, H, scale, SIZES,
    )  # fmt: skip


@assembled
@triton.jit(do_not_specialize=["H"])
def wkv7_serving_sweep_kernel(
    v, pool, indices, cu_seqlens, seeds, first, readers, written, across, of_l, of_p, of_q, o, H,
    SIZES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """o of the sequences of more than LONGEST tokens, and the state after them in its slot."""
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    DTYPE: tl.constexpr = v.dtype.element_ty
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

    for c in tl.range(0, tl.cdiv(n, C), num_stages=SIZES.STAGES):
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
        b_s, _, b_o = apply_maps(b_s, b_v, b_w, b_r, b_b, b_k, b_l, b_p, b_q, b_decay, DTYPE)
        tl.store(o + o_tv, tl.trans(b_o).to(o.dtype.element_ty), m_tv)

    at_s, m_s = pool + i_s + o_k[:, None] * V + o_v[None, :], m_k[:, None] & m_v[None, :]
    store_state(at_s, tl.trans(b_s), m_s, seeds, i_n, n, i_h * K + o_k, i_h * V + o_v)


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
    tiles = tiles_for(heads, 1, K, V, r.dtype, devices.gpu_of(r.device), decay)
    warps, registers = tiles.of_maps
    launch(
        wkv7_serving_maps_kernel, len(bounds) * H, warps,
        (r, w, k, a, b, w0, bounds, readers, written, across, of_l, of_p, of_q), (H, scale),
        (tiles.maps[-1],), maxnreg=registers,
    )  # fmt: skip
    launch(
        wkv7_serving_sweep_kernel, S * H * triton.cdiv(V, tiles.values), tiles.warps,
        (v, state_pool, indices, cu_seqlens, seeds, first, readers, written, across, of_l, of_p,
         of_q, o), (H,), (tiles.sweeps[0], LONGEST), maxnreg=tiles.registers,
    )  # fmt: skip
