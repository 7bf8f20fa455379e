"""The gradients of the fused recurrent WKV-7: one Triton kernel, a reverse sweep.

With S[t] the state after token t and dS[t] its gradient, dS[T] = ds1, first dS[t] += r[t]ᵀ do[t]:

    dr[t] = S[t] do[t]ᵀ      dk[t] = dS[t] v[t]ᵀ      db[t] = dS[t] z[t]ᵀ      dv[t] = k[t] dS[t]
    dz[t] = b[t] dS[t]       da[t] = S[t-1] dz[t]ᵀ    dw[t] = exp(w[t]) Σ_j S[t-1] dS[t]
    dS[t-1] = diag(exp(w[t])) dS[t] + a[t]ᵀ dz[t]

All of them need the states. Dividing the decay out of S again (lesson 23) loses everything where it
is strong. So the forward pass keeps a state every SPAN tokens; from there the kernel recomputes the
states of that span, into memory that stays in the L2 cache, and then goes through them in reverse.
A program owns some values (columns of the state), as in the forward pass: dz and dv are sums over
its keys, and what is a sum over values it writes as a part, which are added up in a fixed order
afterwards. No atomics.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.arguments import sequences_in
from ...sequences.spans import first_span, sequence_bounds
from ..decays import FORMS, dw_of, log_of

SPAN = 32  # tokens between saved states: each takes the memory of r, w, k, v, a, b of 20 in bf16
TILE = 1024  # elements a warp holds of each of three states: 96 registers a thread
STAGES = 2  # of the loops over tokens: loads in flight
MAX_PARTS = 16  # of what is a sum over values
PROGRAMS_PER_SM = 2  # fewer leave it waiting for memory


@assembled
@triton.jit(do_not_specialize=["has_s0", "has_ds1", "B", "T", "H", "span", "scale"])
def wkv7_recurrent_bwd_kernel(
    r, w, k, v, a, b, s0, cu_seqlens, states, do, ds1, scratch, dr, dw, dk, dv, da, db, ds0,
    has_s0, has_ds1, B, T, H, span, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SPAN: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """dr, dw, dk, da, db: [NV, B, T, H, K], a part from each program. scratch: [S, H, span, K, V].

    span: SPAN, or T where that is less.
    """
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
        if i_c > 0:
            i_s = (i_span + i_c - 1) * H + i_h
            b_s = tl.load(states + i_s * K * V + o_s, m_s, 0.0)
        else:
            b_s = tl.load(s0 + i_nh * K * V + o_s, m_s & (has_s0 != 0), 0.0).to(tl.float32)
        i_t = i_c * SPAN
        tokens = tl.minimum(n - i_t, SPAN)

        for t in tl.range(0, tokens, num_stages=STAGES):  # the state before each token
            at = (start + i_t + t) * H + i_h
            tl.store(scratch + (i_nh * span + t) * K * V + o_s, b_s, m_s)
            b_w = log_of(tl.load(w + at * K + o_k, m_k, 0.0), m_k, DECAY).to(tl.float32)
            b_k = tl.load(k + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_a = tl.load(a + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_b = tl.load(b + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_z = tl.sum(b_a[:, None] * b_s, 0)
            b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]
            b_s += b_k[:, None] * b_v[None, :]
        tl.debug_barrier()  # a thread may have stored what another one loads

        for step in tl.range(0, tokens, num_stages=STAGES):
            t = tokens - 1 - step
            at = (start + i_t + t) * H + i_h
            b_r = tl.load(r + at * K + o_k, m_k, 0.0).to(tl.float32) * scale
            b_w = log_of(tl.load(w + at * K + o_k, m_k, 0.0), m_k, DECAY).to(tl.float32)
            b_k = tl.load(k + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_a = tl.load(a + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_b = tl.load(b + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_do = tl.load(do + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_s = tl.load(scratch + (i_nh * span + t) * K * V + o_s, m_s, 0.0)
            b_decay = tl.exp(b_w)
            b_z = tl.sum(b_a[:, None] * b_s, 0)
            b_after = b_decay[:, None] * b_s + b_b[:, None] * b_z[None, :]
            b_after += b_k[:, None] * b_v[None, :]

            b_ds += b_r[:, None] * b_do[None, :]
            b_dz = tl.sum(b_b[:, None] * b_ds, 0)
            b_dv = tl.sum(b_k[:, None] * b_ds, 0)
            b_dr = tl.sum(b_after * b_do[None, :], 1) * scale
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
        tl.debug_barrier()  # the next span's states go where this one's are read

    tl.store(ds0 + i_nh * K * V + o_s, b_ds, m_s)


def gradients(r, w, k, v, a, b, s0, cu_seqlens, states, reads, do, ds1, scale, decay):
    """The gradients of r, w, k, v, a, b and s0 (as if zeros were given, where it is None).

    Args:
        r, w, k, v, a, b, s0, cu_seqlens, scale, decay: as `wkv7` takes them.
        states: those after each span of SPAN tokens, `[…, H, K, V]`, float32, from the forward
            kernel.
        reads: not used.
        do, ds1: gradients of o and s1; None counts as zeros.

    Returns:
        Tensors of the shapes and dtypes of r, w, k, v, a and b; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = (r, w, k, v, a, b, s0, cu_seqlens, states, reads, do, ds1, scale, decay)
            return gradients(*arguments)
    B, T, H, K = r.shape
    V, S = v.shape[-1], sequences_in(r, cu_seqlens)
    do = torch.zeros_like(v) if do is None else do
    *tensors, do = (x.contiguous() for x in (r, w, k, v, a, b, do))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    BK, BV, num_warps = tile_for(S * H, K, V, devices.gpu_of(r.device).sms)
    NV, span = triton.cdiv(V, BV), min(SPAN, T)

    new = {"dtype": torch.float32, "device": r.device}
    parts = results_in_parts(tensors, NV)
    ds0, scratch = torch.empty(S, H, K, V, **new), torch.empty(S, H, span, K, V, **new)
    before, after = (ds0 if x is None else x.contiguous() for x in (s0, ds1))
    launch(
        wkv7_recurrent_bwd_kernel, S * H * NV, num_warps,
        (*tensors, before, cu_seqlens, states, do, after, scratch, *parts, ds0),
        (int(s0 is not None), int(ds1 is not None), B, T, H, span, scale),
        (K, V, BK, BV, SPAN, STAGES, FORMS[decay]),
    )  # fmt: skip
    return *summed(parts, tensors), ds0


def results_in_parts(tensors, NV):
    """Where the gradients of r, w, k, v, a, b go: of all but v, NV parts in float32."""
    if NV == 1:
        return [torch.empty_like(x) for x in tensors]
    return [
        torch.empty_like(x) if n == 3 else x.new_empty(NV, *x.shape, dtype=torch.float32)
        for n, x in enumerate(tensors)
    ]


def summed(parts, tensors):
    """The parts of each gradient added up, in the dtype of its tensor."""
    pairs = zip(parts, tensors, strict=True)
    return [x if x.ndim == y.ndim else x.sum(0).to(y.dtype) for x, y in pairs]


def tile_for(heads, K, V, sms):
    """Keys and values of a program, and its warps."""
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    BV = min(BV, max(TILE // BK, triton.cdiv(BV, MAX_PARTS), 1))
    while BV > 1 and BK * BV > TILE // 2 and heads * triton.cdiv(V, BV) < sms * PROGRAMS_PER_SM:
        if triton.cdiv(V, BV // 2) > MAX_PARTS:
            break
        BV //= 2
    return BK, BV, max(1, min(8, BK * BV // TILE))
