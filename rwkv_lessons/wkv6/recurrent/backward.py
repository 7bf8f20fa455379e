"""The gradients of the fused recurrent WKV-6: one Triton kernel, a reverse sweep.

With S[t] the state after token t and dS[t] its gradient,

    dr[t] = (S[t-1] + diag(u) k[t]ᵀ v[t]) do[t]        dk[t] = (dS[t] + diag(u) r[t]ᵀ do[t]) v[t]
    dv[t] = k[t] (dS[t] + diag(u) r[t]ᵀ do[t])         dw[t] = exp(w[t]) Σ_j S[t-1] dS[t]
    dS[t-1] = diag(exp(w[t])) dS[t] + r[t]ᵀ do[t]

dw needs both states. Dividing the decay out of S again would lose everything where it is strong,
and so would a difference of sums over all later tokens. So the forward pass keeps a state every
CHECKPOINT tokens; from there the kernel recomputes the states of that span, into memory that stays
in the L2 cache, and then goes through them in reverse. A program owns some keys (rows of the state)
and all values: only dv is a sum over programs, added up in a fixed order afterwards. No atomics.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.arguments import sequences_in
from ..autograd import define_backward

CHECKPOINT = 32  # tokens between saved states: each takes the memory of r, k, v, w of 32 in bf16
TILE = 1024  # elements a program, a warp, holds of each of two states: 64 registers a thread
STAGES = 3  # of the loops over tokens: loads in flight
PROGRAMS_PER_SM = 2  # fewer leave it waiting for memory


@triton.jit
def log_decay(at, m, RAW: tl.constexpr):
    """The log decays at these addresses, in float32: of raw parameters x, -exp(x)."""
    b_w = tl.load(at, m, 0.0).to(tl.float32)
    return -tl.exp(b_w) if RAW else b_w


@assembled
@triton.jit(do_not_specialize=["has_s0", "has_ds1", "B", "T", "H", "span", "scale"])
def wkv6_recurrent_bwd_kernel(
    r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, states, dr, dk, dv, dw, du, ds0,
    has_s0, has_ds1, B, T, H, span, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """dv: [NK, B, T, H, V], a part from each program. states: [S, H, span, K, V]. du: [S, H, K]."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i_k, i_h = tl.program_id(0) % NK, tl.program_id(0) // NK % H
    i_n = (tl.program_id(0) // NK // H).to(tl.int64)
    if cu_seqlens is None:
        first, n = i_n * T, T
        first_checkpoint = i_n * ((T - 1) // span)
    else:
        first = tl.load(cu_seqlens + i_n).to(tl.int64)
        n = (tl.load(cu_seqlens + i_n + 1) - first).to(tl.int32)
        first_checkpoint = first // span
    i_nh = i_n * H + i_h
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]
    part = i_k.to(tl.int64) * B * T * H * V

    b_u = tl.load(u + i_h * K + o_k, m_k, 0.0).to(tl.float32)
    b_du = tl.zeros([BK], tl.float32)
    b_ds = tl.load(ds1 + i_nh * K * V + o_s, m_s & (has_ds1 != 0), 0.0).to(tl.float32)

    for c in range(tl.cdiv(n, span)):
        i_c = tl.cdiv(n, span) - 1 - c
        if i_c > 0:
            i_s = (first_checkpoint + i_c - 1) * H + i_h
            b_s = tl.load(checkpoints + i_s * K * V + o_s, m_s, 0.0)
        else:
            b_s = tl.load(s0 + i_nh * K * V + o_s, m_s & (has_s0 != 0), 0.0).to(tl.float32)
        i_t = i_c * span
        tokens = tl.minimum(n - i_t, span)

        for t in tl.range(0, tokens, num_stages=STAGES):  # the state before each token
            at = (first + i_t + t) * H + i_h
            tl.store(states + (i_nh * span + t) * K * V + o_s, b_s, m_s)
            b_k = tl.load(k + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_w = log_decay(w + at * K + o_k, m_k, RAW)
            b_s = tl.exp(b_w)[:, None] * b_s + b_k[:, None] * b_v[None, :]
        tl.debug_barrier()  # a thread may have stored what another one loads

        for step in tl.range(0, tokens, num_stages=STAGES):
            t = tokens - 1 - step
            at = (first + i_t + t) * H + i_h
            b_r = tl.load(r + at * K + o_k, m_k, 0.0).to(tl.float32) * scale
            b_k = tl.load(k + at * K + o_k, m_k, 0.0).to(tl.float32)
            b_v = tl.load(v + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_w = log_decay(w + at * K + o_k, m_k, RAW)
            b_do = tl.load(do + at * V + o_v, m_v, 0.0).to(tl.float32)
            b_s = tl.load(states + (i_nh * span + t) * K * V + o_s, m_s, 0.0)
            b_decay = tl.exp(b_w)

            b_vdo = tl.sum(b_v * b_do, 0)
            b_dr = tl.sum(b_s * b_do[None, :], 1) + b_u * b_k * b_vdo
            b_dk = tl.sum(b_ds * b_v[None, :], 1) + b_u * b_r * b_vdo
            b_dv = tl.sum(b_ds * b_k[:, None], 0) + tl.sum(b_r * b_u * b_k, 0) * b_do
            b_dw = b_decay * tl.sum(b_s * b_ds, 1)
            if RAW:  # where the decay is 0, w is -inf and 0 · -inf is no gradient
                b_dw *= tl.where(b_decay > 0, b_w, 0.0)
            b_du += b_r * b_k * b_vdo
            b_ds = b_decay[:, None] * b_ds + b_r[:, None] * b_do[None, :]

            tl.store(dr + at * K + o_k, (b_dr * scale).to(dr.dtype.element_ty), m_k)
            tl.store(dk + at * K + o_k, b_dk.to(dk.dtype.element_ty), m_k)
            tl.store(dv + part + at * V + o_v, b_dv.to(dv.dtype.element_ty), m_v)
            tl.store(dw + at * K + o_k, b_dw.to(dw.dtype.element_ty), m_k)
        tl.debug_barrier()  # the next span's states go where this one's are read

    tl.store(du + i_nh * K + o_k, b_du, m_k)
    tl.store(ds0 + i_nh * K * V + o_s, b_ds, m_s)


def gradients(r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, scale, raw_decay):
    """The gradients of r, k, v, w, u and s0 (as if zeros were given, where it is None).

    Args:
        r, k, v, w, u, s0, cu_seqlens, scale, raw_decay: as `wkv6` takes them.
        checkpoints: states before tokens CHECKPOINT, 2·CHECKPOINT, …, `[…, H, K, V]`, float32,
            from the forward kernel.
        do, ds1: gradients of o and s1; None counts as zeros.

    Returns:
        Tensors of the shapes and dtypes of r, k, v, w and u; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return gradients(r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, scale, raw_decay)
    B, T, H, K = r.shape
    V, S = v.shape[-1], sequences_in(r, cu_seqlens)
    do = torch.zeros_like(v) if do is None else do
    r, k, v, w, u, do = (x.contiguous() for x in (r, k, v, w, u, do))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    BK, BV, num_warps = tile_for(S * H, K, V, devices.gpu_of(r.device).sms)
    NK, span = triton.cdiv(K, BK), min(CHECKPOINT, T)

    new = {"dtype": torch.float32, "device": r.device}
    dr, dk, dw = torch.empty_like(r), torch.empty_like(k), torch.empty_like(w)
    dv = torch.empty_like(v) if NK == 1 else torch.empty(NK, *v.shape, **new)
    du, ds0 = torch.empty(S, H, K, **new), torch.empty(S, H, K, V, **new)
    states = torch.empty(S, H, span, K, V, **new)
    before, after = (ds0 if x is None else x.contiguous() for x in (s0, ds1))
    inputs = (r, k, v, w, u, before, cu_seqlens, checkpoints, do, after)
    launch(
        wkv6_recurrent_bwd_kernel, S * H * NK, num_warps,
        (*inputs, states, dr, dk, dv, dw, du, ds0),
        (int(s0 is not None), int(ds1 is not None), B, T, H, span, scale),
        (K, V, BK, BV, STAGES, raw_decay),
    )  # fmt: skip
    dv = dv if NK == 1 else dv.sum(0).to(v.dtype)
    return dr, dk, dv, dw, du.sum(0).to(u.dtype), ds0


def tile_for(heads, K, V, sms):
    """Keys and values of a program, and its warps."""
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    BK = min(BK, max(TILE // BV, triton.cdiv(BK, 16)))  # at most 16 parts of dv
    while BK > 1 and BK * BV > TILE // 2 and heads * triton.cdiv(K, BK) < sms * PROGRAMS_PER_SM:
        BK //= 2
    return BK, BV, max(1, min(8, BK * BV // TILE))


backward = define_backward("recurrent", gradients)
