"""WKV-6 as fused recurrent Triton kernels: one token after the other, the state in registers.

A program owns some values (columns of the state) of one head and all its keys, so that o is a sum
inside the program. Were the keys split as well, each part of them would write float32 sums to be
read and added again: with two parts in bf16 as much as eight tensors, on top of the five that have
to move: r, k, v, w and o. Values are split until the GPU is full. A token costs a program one
small step, whose loads were started some tokens earlier; what bounds it is the latency of T such
steps after one another, so it is the method for few tokens. backward.py has the gradients,
../step.py one token in place.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...runtime.operators import call
from ...runtime.plain import launches_directly
from ...sequences.arguments import empty_results, holds_float64, sequences_in, wants_gradients
from ...sequences.recurrence import tile_for
from ..autograd import define_forward
from ..doubling import wkv6_doubling
from ..options import check_call
from .backward import CHECKPOINT, backward, log_decay


@assembled
@triton.jit(do_not_specialize=["has_s0", "T", "H", "scale"])
def wkv6_recurrent_fwd_kernel(
    r, k, v, w, u, s0, cu_seqlens, o, s1, checkpoints, has_s0, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CHECKPOINT: tl.constexpr, STAGES: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """checkpoints: gets the states before tokens CHECKPOINT, 2·CHECKPOINT, …, unless it is None."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = (tl.program_id(0) // NV // H).to(tl.int64)
    if cu_seqlens is None:
        first, n = i_n * T, T
        first_checkpoint = i_n * ((T - 1) // CHECKPOINT)
    else:
        first = tl.load(cu_seqlens + i_n).to(tl.int64)
        n = (tl.load(cu_seqlens + i_n + 1) - first).to(tl.int32)
        first_checkpoint = first // CHECKPOINT  # of earlier sequences there are no more
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_h * K * V + o_k[:, None] * V + o_v[None, :]
    at_k, at_v = (first * H + i_h) * K + o_k, (first * H + i_h) * V + o_v

    # Loaded also where there is none: the layout of this load is the one that the loop is fast in.
    b_s = tl.load(s0 + i_n * H * K * V + o_s, m_s & (has_s0 != 0), 0.0).to(tl.float32)
    b_u = tl.load(u + i_h * K + o_k, m_k, 0.0).to(tl.float32)

    for t in tl.range(0, n, num_stages=STAGES):
        b_r = tl.load(r + at_k, m_k, 0.0).to(tl.float32) * scale
        b_k = tl.load(k + at_k, m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at_v, m_v, 0.0).to(tl.float32)
        b_w = log_decay(w + at_k, m_k, RAW)
        if checkpoints is not None:
            if (t > 0) & (t % CHECKPOINT == 0):
                i_checkpoint = first_checkpoint + t // CHECKPOINT - 1
                tl.store(checkpoints + i_checkpoint * H * K * V + o_s, b_s, m_s)
        b_kv = b_k[:, None] * b_v[None, :]  # [BK, BV]
        b_o = tl.sum(b_r[:, None] * (b_s + b_u[:, None] * b_kv), 0)
        b_s = tl.exp(b_w)[:, None] * b_s + b_kv
        tl.store(o + at_v, b_o.to(o.dtype.element_ty), m_v)
        at_k += H * K
        at_v += H * V

    tl.store(s1 + i_n * H * K * V + o_s, b_s, m_s)


def forward(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, keep):
    """o, s1 and, where `keep`, the states that the backward kernel starts from."""
    shape = (count_checkpoints(r, cu_seqlens, keep), *r.shape[2:], v.shape[3])
    new = torch.empty if cu_seqlens is None else torch.zeros  # between sequences some stay unused
    checkpoints = new(shape, dtype=torch.float32, device=r.device)
    o, s1 = run_forward(
        r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, checkpoints if keep else None
    )
    return o, s1, checkpoints


def count_checkpoints(r, cu_seqlens, keep):
    """How many states, without reading cu_seqlens; none of a sequence up to CHECKPOINT tokens."""
    B, T = r.shape[:2]
    return (B * ((T - 1) // CHECKPOINT) if cu_seqlens is None else T // CHECKPOINT) if keep else 0


def run_forward(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, checkpoints=None, s1=None):
    """Allocates o, and s1 unless it is given (and may be s0), and launches the kernel."""
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return run_forward(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, checkpoints, s1)
    r, k, v, w, u = r.contiguous(), k.contiguous(), v.contiguous(), w.contiguous(), u.contiguous()
    (_, T, H, K), V = r.shape, v.shape[3]
    S = sequences_in(r, cu_seqlens)
    o = torch.empty_like(v)
    if s1 is None:
        s1 = torch.empty((S, H, K, V), dtype=torch.float32, device=r.device)
    before = s1 if s0 is None else s0.contiguous()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()

    programs, num_warps, sizes, stages = tile_for(S * H, T, K, V, devices.gpu_of(r.device).sms)
    launch(
        wkv6_recurrent_fwd_kernel, programs, num_warps,
        (r, k, v, w, u, before, cu_seqlens, o, s1, checkpoints),
        (int(s0 is not None), T, H, scale), (*sizes, CHECKPOINT, stages, raw_decay),
    )  # fmt: skip
    return o, s1


def forward_shapes(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, keep):
    """What `forward` returns, without values."""
    shape = (count_checkpoints(r, cu_seqlens, keep), *r.shape[2:], v.shape[3])
    return *empty_results(r, v, cu_seqlens), r.new_empty(shape, dtype=torch.float32)


define_forward("recurrent", forward, forward_shapes, backward)


def wkv6_recurrent(r, k, v, w, u, s0=None, *, cu_seqlens=None, scale=1.0, raw_decay=False):
    """Same arguments and results as `wkv6`, for few tokens on a GPU; matrix products elsewhere.

    s1 is right to 2e-6 and, where w is the same at every token, 6e-8 for each token remembered,
    which is more than 1e-5 from some 200 on: exp(w) is rounded, and multiplied that many times.
    """
    check_call(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    if not r.is_cuda or holds_float64(r, w, u, s0):
        return wkv6_doubling.checked(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    return recurrent(r, k, v, w, u, s0, cu_seqlens, float(scale), raw_decay)


def recurrent(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay):
    """`wkv6_recurrent` of arguments that were checked, on a GPU."""
    arguments = (r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    keep = torch.is_grad_enabled() and wants_gradients(r, k, v, w, u, s0)
    if keep or not launches_directly(*arguments[:7]):
        return call(torch.ops.rwkv_lessons.wkv6_recurrent_forward, *arguments, keep)[:2]
    return run_forward(*arguments)
