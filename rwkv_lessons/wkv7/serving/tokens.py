"""Tokens one after the other on states of a pool, as a Triton kernel.

One kernel for single tokens, short prompts, drafts and accepted drafts: what a token does to a
state is the same arithmetic in the same order, so that accepted drafts leave the bits that single
tokens leave. The same tile is taken for any number of sequences: results of a sequence do not
depend on what else is in the batch.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ...runtime.bounded import remembered
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.states.padding import zeros
from ...sequences.states.rounding import rounded
from ..decays import FORMS, log_of

TILE = 2048  # elements of the state of a program: 64 registers a thread
STAGES = 4  # of the loop over tokens: loads in flight


class TokenSizes(NamedTuple):
    """What the kernel is compiled for."""

    K: int
    V: int
    BK: int  # keys and values of a program
    BV: int
    STAGES: int
    DECAY: int  # what w is, see ../decays.py
    LONGEST: int  # longer sequences are left to others; 0: none is
    EACH: bool  # the state is rounded after each token, as if that had been a call of its own


@triton.jit
def parameter(at, w0, o_w0, m_k, DECAY: tl.constexpr):
    """The log decay of a token, in float32: of w0 + w where there is a w0."""
    b_w = tl.load(at, m_k, 0.0)
    if w0 is not None:
        b_w = b_w.to(tl.float32) + tl.load(w0 + o_w0, m_k, 0.0).to(tl.float32)
    return log_of(b_w, m_k, DECAY).to(tl.float32)


@assembled
@triton.jit(do_not_specialize=["T", "H", "sequences", "total", "writes", "scale"])
def wkv7_tokens_kernel(
    r, w, k, v, a, b, w0, pool, indices, cu_seqlens, seeds, accepted, o,
    T, H, sequences, total, writes, scale,
    SIZES: tl.constexpr,
):  # fmt: skip
    """o of each token, and the state after the last one where `writes`.

    That is a number: a kernel without a store would get another layout, and add in another order.

    cu_seqlens: of sequences that are packed; T tokens of each if it is None.
    accepted: how many of the T are taken; all if it is None. Then o is None.
    """
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    LONGEST: tl.constexpr = SIZES.LONGEST
    NV: tl.constexpr = (V + BV - 1) // BV
    STATE: tl.constexpr = pool.dtype.element_ty
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = tl.program_id(0) // NV // H
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    if cu_seqlens is None:
        start, n = i_n.to(tl.int64) * T, T
    else:
        if i_n == sequences:  # the rows after the last sequence
            zeros(o, tl.load(cu_seqlens + i_n).to(tl.int64), total, i_h, o_v, m_v, H, V)
            return
        start = tl.load(cu_seqlens + i_n).to(tl.int64)
        n = (tl.load(cu_seqlens + i_n + 1).to(tl.int64) - start).to(tl.int32)
    slot = tl.load(indices + i_n).to(tl.int64)
    if slot < 0:
        if o is not None:
            zeros(o, start, start + n, i_h, o_v, m_v, H, V)
        return
    if accepted is not None:
        n = tl.minimum(tl.load(accepted + i_n).to(tl.int32), T)
    if LONGEST > 0:
        if n > LONGEST:
            return
    if n <= 0:
        return

    m_s = m_k[:, None] & m_v[None, :]
    o_s = (slot * H + i_h) * K * V + o_k[:, None] * V + o_v[None, :]
    o_hk, o_hv = i_h * K + o_k, i_h * V + o_v
    at_k, at_v = start * H * K + o_hk, start * H * V + o_hv
    seed = n  # of no use
    if seeds is not None:
        seed = tl.load(seeds + i_n).to(tl.int32)
    b_s = tl.load(pool + o_s, m_s, 0.0).to(tl.float32)
    for t in tl.range(0, n, num_stages=SIZES.STAGES):
        b_w = parameter(w + at_k, w0, o_hk, m_k, SIZES.DECAY)
        b_k = tl.load(k + at_k, m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at_v, m_v, 0.0).to(tl.float32)
        b_a = tl.load(a + at_k, m_k, 0.0).to(tl.float32)
        b_b = tl.load(b + at_k, m_k, 0.0).to(tl.float32)
        b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
        b_s = tl.fma(b_b[:, None], b_z[None, :], tl.exp(b_w)[:, None] * b_s)
        b_s = tl.fma(b_k[:, None], b_v[None, :], b_s)
        if o is not None:
            b_r = tl.load(r + at_k, m_k, 0.0).to(tl.float32) * scale
            b_o = tl.sum(b_r[:, None] * b_s, 0)
            tl.store(o + at_v, b_o.to(o.dtype.element_ty), m_v)
        if SIZES.EACH:
            b_s = rounded(b_s, seed + t, o_hk, o_hv, STATE, seeds is not None).to(tl.float32)
        at_k += H * K
        at_v += H * V
    if not SIZES.EACH:
        b_s = rounded(b_s, seed + n - 1, o_hk, o_hv, STATE, seeds is not None).to(tl.float32)
    tl.store(pool + o_s, b_s.to(STATE), m_s & (writes != 0))


def run_tokens(
    tensors, w0, state_pool, indices, cu_seqlens, seeds, accepted, o, T, scale, decay,
    longest=0, writes=True, each=False, one_token=False, tile=None,
):  # fmt: skip
    """Launches the kernel.

    Args:
        tensors: r, w, k, v, a, b, contiguous.
        one_token: no sequence has more than one token.
        tile: values of a program and its warps, where they are not `tile_for`'s.
    """
    r, v = tensors[0], tensors[3]
    (_, total, H, K), V, S = r.shape, v.shape[3], len(indices)
    BK, BV, warps = tile_for(K, V)
    BV, warps = tile or (BV, warps)
    groups = S + int(cu_seqlens is not None)
    launch(
        wkv7_tokens_kernel, groups * H * -(-V // BV), warps,
        (*tensors, w0, state_pool, indices, cu_seqlens, seeds, accepted, o),
        (T, H, S, total, int(writes), scale),
        (TokenSizes(K, V, BK, BV, 1 if one_token else STAGES, FORMS[decay], longest, each),),
    )  # fmt: skip


@remembered
def tile_for(K, V):
    """Keys and values of a program, and its warps: one, as sums over keys then stay inside of it.

    What is made of the vectors of a token, a decay above all, is made once a program.
    """
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    return BK, min(BV, max(4, TILE // BK)), 1
