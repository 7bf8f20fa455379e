"""WKV-7 whose gradients step the state back: the reverse sweep computes the states as it goes.

A step can be inverted, where z[t] = a[t] S[t-1] was kept:

    S[t-1] = diag(exp(-w[t])) (S[t] - b[t]ᵀ z[t] - k[t]ᵀ v[t])

so nothing is computed twice and no state but the present one is held (the equations of all
gradients: recurrent/backward.py). The price is precision: each step divides by the decay what
rounding has left. After SPAN steps that is 2⁻²⁴ · decay⁻ˢᵖᵃⁿ, 1e-3 at RWKV-7's strongest decay of
0.545, and nothing is right below 0.4. So the sweep takes a state that was kept every SPAN tokens,
and a decay below `LEAST_DECAY` is refused. The forward pass is the recurrent kernel, which keeps z
and those states. RWKV-LM's kernels and two of wind_rwkv work like this.
"""

import math

import torch
import triton
import triton.language as tl

from ..runtime import devices
from ..runtime.compile_triton import assembled
from ..runtime.launch_triton import launch
from ..sequences.arguments import empty_results, holds_float64, sequences_in, wants_gradients
from ..sequences.spans import first_span, sequence_bounds
from .arguments import check_call
from .autograd import define
from .decays import FORMS, dw_of, log_of
from .options import CLAMP, log_decay
from .recurrent.backward import results_in_parts, summed, tile_for
from .recurrent.forward import LARGEST, run_forward, states_shape
from .wy import wkv7_wy

SPAN = 16  # tokens between kept states
# exp(-exp(-0.5)), less what rounding a log decay to bfloat16 may take off.
LEAST_DECAY = math.exp(-CLAMP * (1 + 2**-8))
STAGES = 2  # of the loop over tokens: loads in flight


@assembled
@triton.jit(do_not_specialize=["has_ds1", "B", "T", "H", "scale"])
def wkv7_backstepping_kernel(
    r, w, k, v, a, b, cu_seqlens, states, reads, do, ds1, dr, dw, dk, dv, da, db, ds0,
    has_ds1, B, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SPAN: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """dr, dw, dk, da, db: [NV, B, T, H, K], a part from each program."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_h = tl.program_id(0) % NV, tl.program_id(0) // NV % H
    i_n = (tl.program_id(0) // NV // H).to(tl.int64)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    n = (end - start).to(tl.int32)
    i_span = first_span(cu_seqlens, start, i_n, T, SPAN)
    i_nh = i_n * H + i_h
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]
    part = i_v.to(tl.int64) * B * T * H * K

    b_ds = tl.load(ds1 + i_nh * K * V + o_s, m_s & (has_ds1 != 0), 0.0).to(tl.float32)

    for c in range(tl.cdiv(n, SPAN)):
        i_c = tl.cdiv(n, SPAN) - 1 - c
        i_t = i_c * SPAN
        tokens = tl.minimum(n - i_t, SPAN)
        b_s = tl.load(states + ((i_span + i_c) * H + i_h) * K * V + o_s, m_s, 0.0)

        for step in tl.range(0, tokens, num_stages=STAGES):
            at = (start + i_t + tokens - 1 - step) * H + i_h
            b_r = tl.load(r + at * K + o_k, m_k, 0.0).to(tl.float32) * scale
            b_w = log_of(tl.load(w + at * K + o_k, m_k, 0.0), m_k, DECAY).to(tl.float32)
            b_k = tl.load(k + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_a = tl.load(a + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_b = tl.load(b + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_z = tl.load(reads + at * V + o_v, m_v, 0.0)
            b_do = tl.load(do + at * V + o_v, m_v, 0.0).to(tl.float32)

            b_dr = tl.sum(b_s * b_do[None, :], 1) * scale
            b_s -= b_b[:, None] * b_z[None, :] + b_k[:, None] * b_v[None, :]
            b_s *= tl.exp(-b_w)[:, None]  # the state before the token

            b_decay = tl.exp(b_w)
            b_ds += b_r[:, None] * b_do[None, :]
            b_dz = tl.sum(b_b[:, None] * b_ds, 0)
            b_dv = tl.sum(b_k[:, None] * b_ds, 0)
            b_dk = tl.sum(b_ds * b_v[None, :], 1)
            b_db = tl.sum(b_ds * b_z[None, :], 1)
            b_da = tl.sum(b_s * b_dz[None, :], 1)
            b_dw = dw_of(b_decay * tl.sum(b_s * b_ds, 1), b_w, DECAY)
            b_ds = b_decay[:, None] * b_ds + b_a[:, None] * b_dz[None, :]

            at_k = part + at * K + o_k
            tl.store(dr + at_k, b_dr.to(dr.dtype.element_ty), m_k)
            tl.store(dw + at_k, b_dw.to(dw.dtype.element_ty), m_k)
            tl.store(dk + at_k, b_dk.to(dk.dtype.element_ty), m_k)
            tl.store(da + at_k, b_da.to(da.dtype.element_ty), m_k)
            tl.store(db + at_k, b_db.to(db.dtype.element_ty), m_k)
            tl.store(dv + at * V + o_v, b_dv.to(dv.dtype.element_ty), m_v)

    tl.store(ds0 + i_nh * K * V + o_s, b_ds, m_s)


def check_decay(w, decay):
    """Raises a ValueError where stepping back would lose too much; reads w, so the host waits."""
    if decay == "clamp":
        return  # none of them is stronger
    least = log_decay(w.detach(), decay).amin().exp().item()
    if not least >= LEAST_DECAY:
        raise ValueError(
            f"w must keep the decay at {LEAST_DECAY:.4f} or more to step back, got {least:.4g}; "
            "wkv7_recurrent and wkv7_chunked take any"
        )


def gradients(r, w, k, v, a, b, s0, cu_seqlens, states, reads, do, ds1, scale, decay):
    """The gradients of r, w, k, v, a, b and s0 (as if zeros were given, where it is None).

    Args:
        r, w, k, v, a, b, s0, cu_seqlens, scale, decay: as `wkv7` takes them.
        states: those after each span of SPAN tokens, `[…, H, K, V]`, float32.
        reads: z of each token, `[B, T, H, V]`, float32.
        do, ds1: gradients of o and s1; None counts as zeros.

    Returns:
        Tensors of the shapes and dtypes of r, w, k, v, a and b; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            given = (r, w, k, v, a, b, s0, cu_seqlens, states, reads, do, ds1, scale, decay)
            return gradients(*given)
    B, T, H, K = r.shape
    V, S = v.shape[-1], sequences_in(r, cu_seqlens)
    do = torch.zeros_like(v) if do is None else do
    *tensors, do = (x.contiguous() for x in (r, w, k, v, a, b, do))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    BK, BV, num_warps = tile_for(S * H, K, V, devices.gpu_of(r.device).sms)
    NV = triton.cdiv(V, BV)
    found = results_in_parts(tensors, NV)
    ds0 = torch.empty(S, H, K, V, dtype=torch.float32, device=r.device)
    launch(
        wkv7_backstepping_kernel, S * H * NV, num_warps,
        (*tensors, cu_seqlens, states, reads, do, ds0 if ds1 is None else ds1.contiguous(),
         *found, ds0),
        (int(ds1 is not None), B, T, H, scale), (K, V, BK, BV, SPAN, STAGES, FORMS[decay]),
    )  # fmt: skip
    return *summed(found, tensors), ds0


def forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """o, s1 and, where `keep`, states and z.

    Raises:
        ValueError: `keep`, and a decay is too strong to step back.
    """
    if keep:
        check_decay(w, decay)
    new = torch.empty if cu_seqlens is None else torch.zeros  # between sequences some stay unused
    shape = states_shape(r, v, cu_seqlens, keep, SPAN)
    states = new(shape, dtype=torch.float32, device=r.device)
    reads = r.new_empty(v.shape if keep else 0, dtype=torch.float32)
    given = (r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    kept = (states, reads) if keep else (None, None)
    o, s1 = run_forward(*given, *kept, span=SPAN)
    return o, s1, states, reads


def forward_shapes(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """What `forward` returns, without values."""
    states = r.new_empty(states_shape(r, v, cu_seqlens, keep, SPAN), dtype=torch.float32)
    reads = r.new_empty(v.shape if keep else 0, dtype=torch.float32)
    return *empty_results(r, v, cu_seqlens), states, reads


backstepping = define("backstepping", forward, forward_shapes, gradients)


def wkv7_backstepping(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Same arguments and results as `wkv7`, for decays that RWKV-7's models have.

    Gradients compute each state from the one after it, 16 steps at most from one that was kept:
    relative errors of up to 2e-3 where all decays are the strongest allowed, 1e-5 as models start.
    Without a GPU, for float64 and with more than 256 keys it is `wkv7_wy`.

    Raises:
        TypeError, ValueError: as `wkv7`; and a gradient is wanted where some decay is below 0.5439,
            RWKV-7's least as bfloat16 rounds it. To see that, the host waits for w, unless `decay`
            is "clamp".
    """
    check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    given = (r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
    if r.is_cuda and not holds_float64(r, w, s0) and r.shape[3] <= LARGEST:
        return backstepping(*given)
    if torch.is_grad_enabled() and wants_gradients(*given[:7]):
        if not torch.compiler.is_compiling():
            check_decay(w, decay)
    return wkv7_wy.checked(*given)
