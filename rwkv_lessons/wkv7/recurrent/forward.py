"""WKV-7 as a fused recurrent Triton kernel: one token after the other, the state in registers.

A program owns some values (columns of the state) of one head and all its keys. Columns never meet:
z and o are sums over keys, inside the program. A token costs it one small step with two such sums,
whose loads were started some tokens earlier; what bounds it is the latency of T such steps after
one another, so it is the method for few tokens. r, w, k, v, a, b and o move once; r, w, k, a and b
once more for each further block of values. backward.py has the gradients, ../step.py one token in
place.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.arguments import empty_results, holds_float64, sequences_in
from ...sequences.recurrence import tile_for
from ...sequences.spans import count_spans, first_span, sequence_bounds
from ..arguments import check_call
from ..autograd import define
from ..decays import FORMS, log_of
from ..wy import wkv7_wy
from .backward import SPAN, gradients

LARGEST = 256  # keys; of more, the gradients' three tiles would not fit the registers


@assembled
@triton.jit(do_not_specialize=["has_s0", "T", "H", "scale"])
def wkv7_recurrent_fwd_kernel(
    r, w, k, v, a, b, s0, cu_seqlens, o, s1, states, reads, has_s0, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SPAN: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """states: gets the state after each span of SPAN tokens; reads: z of each. Either may be None.

    s1 may be s0.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = (tl.program_id(0) // NV // H).to(tl.int64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n = (end - start).to(tl.int32)
    i_span = first_span(cu_seqlens, start, i_n, T, SPAN)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_h * K * V + o_k[:, None] * V + o_v[None, :]
    at_k, at_v = (start * H + i_h) * K + o_k, (start * H + i_h) * V + o_v

    # Loaded also where there is none: the layout of this load is the one that the loop is fast in.
    b_s = tl.load(s0 + i_n * H * K * V + o_s, m_s & (has_s0 != 0), 0.0).to(tl.float32)

    for t in tl.range(0, n, num_stages=STAGES):
        b_r = tl.load(r + at_k, m_k, 0.0).to(tl.float32) * scale
        b_w = log_of(tl.load(w + at_k, m_k, 0.0), m_k, DECAY).to(tl.float32)
        b_k = tl.load(k + at_k, m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at_v, m_v, 0.0).to(tl.float32)
        b_a = tl.load(a + at_k, m_k, 0.0).to(tl.float32)
        b_b = tl.load(b + at_k, m_k, 0.0).to(tl.float32)
        b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
        b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]
        b_s += b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_r[:, None] * b_s, 0)
        tl.store(o + at_v, b_o.to(o.dtype.element_ty), m_v)
        if reads is not None:
            tl.store(reads + at_v, b_z, m_v)
        if states is not None:
            if ((t + 1) % SPAN == 0) | (t + 1 == n):
                tl.store(states + (i_span + t // SPAN) * H * K * V + o_s, b_s, m_s)
        at_k += H * K
        at_v += H * V

    tl.store(s1 + i_n * H * K * V + o_s, b_s, m_s)


def forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """o, s1 and, where `keep`, the states that the backward kernel starts from."""
    shape = states_shape(r, v, cu_seqlens, keep)
    new = torch.empty if cu_seqlens is None else torch.zeros  # between sequences some stay unused
    states = new(shape, dtype=torch.float32, device=r.device)
    arguments = (r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    o, s1 = run_forward(*arguments, states if keep else None)
    return o, s1, states, r.new_empty(0)


def states_shape(r, v, cu_seqlens, keep):
    """[count, H, K, V], without reading cu_seqlens; count is 0 unless `keep`."""
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    count = count_spans(*r.shape[:2], sequences, SPAN) if keep else 0
    return count, *r.shape[2:], v.shape[3]


def run_forward(
    r, w, k, v, a, b, s0, cu_seqlens, scale, decay, states=None, s1=None
):  # fmt: skip
    """Allocates o, and s1 unless it is given (and may be s0), and launches the kernel."""
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = (r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
            return run_forward(*arguments, states, s1)
    tensors = [x.contiguous() for x in (r, w, k, v, a, b)]
    (_, T, H, K), V = r.shape, v.shape[3]
    S = sequences_in(r, cu_seqlens)
    o = torch.empty_like(tensors[3])
    if s1 is None:
        s1 = torch.empty((S, H, K, V), dtype=torch.float32, device=r.device)
    before = s1 if s0 is None else s0.contiguous()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()

    programs, num_warps, sizes, stages = tile_for(S * H, T, K, V, devices.gpu_of(r.device).sms)
    launch(
        wkv7_recurrent_fwd_kernel, programs, num_warps,
        (*tensors, before, cu_seqlens, o, s1, states, None),
        (int(s0 is not None), T, H, scale), (*sizes, SPAN, stages, FORMS[decay]),
    )  # fmt: skip
    return o, s1


def forward_shapes(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """What `forward` returns, without values."""
    states = r.new_empty(states_shape(r, v, cu_seqlens, keep), dtype=torch.float32)
    return *empty_results(r, v, cu_seqlens), states, r.new_empty(0)


recurrent = define("recurrent", forward, forward_shapes, gradients)


def wkv7_recurrent(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Same arguments and results as `wkv7`, for few tokens on a GPU; `wkv7_wy` elsewhere.

    That is also with more than 256 keys, and for float64.
    """
    check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    arguments = (r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
    if not r.is_cuda or holds_float64(r, w, s0) or r.shape[3] > LARGEST:
        return wkv7_wy.checked(*arguments)
    return recurrent(*arguments)
