"""The gradients of the chunked WKV-7: the transposed sweep, and one program for each chunk.

The sweep (sweep.py) goes from the last chunk to the first with the maps that the forward pass
kept. It leaves dv, ds0, dS after each chunk, and y, the gradient of the right-hand side of z's
equation (../wy.py). With those a chunk is on its own, and all are done at once:

    dA_ab = y zᵀ      dA_ak = y vᵀ      dA_rb = do zᵀ      dA_rk = do vᵀ      (below the diagonal)
    dÃ = y Sᵀ         dR̃ = do Sᵀ        dB̂ = z dSᵀ         dK̂ = v dSᵀ

and from those, through the decays, dr, da, db, dk and dw (pairs.py). The maps themselves have no
gradient that anybody writes: r, w, k, a, b, v, do, z, y, S and dS are read, 5 gradients written.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.compile_triton import assembled, compile_together
from ...runtime.launch_triton import launch
from ...wkv6.chunked.tiles import FITS, product_tf32, weighted_sums
from ..autograd import sequences_in
from ..decays import FORMS, LOG2E, dw_of
from ..spans import bounds_of_span, span_bounds
from .kept import Kept, chunk_count, chunk_of, tiles_for
from .pairs import (
    LEAST_DECAY,
    PROGRAMS_TOGETHER,
    chunk_decays,
    decay_gradients,
    from_middle,
    level_gradients,
    log_decay,
    stored_product,
)
from .sweep import wkv7_sweep_kernel

WARPS, STRONG_WARPS = 4, 8  # of a program for one chunk
OPTIONS = {"maxnreg": 255}  # unless told, ptxas gives some of these kernels 32, and spills


@assembled
@triton.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_chunk_gradients_kernel(
    r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, dr, dw, dk, da, db, strong,
    T, H, count, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, TOGETHER: tl.constexpr, STRONG: tl.constexpr,
):  # fmt: skip
    """states: before each chunk; d_states: after it. reads, d_reads: z and y.

    strong: of `count` blocks of keys of all chunks and heads whether decays are too strong; int8.
    """
    for i in range(tl.program_id(0) * TOGETHER, tl.program_id(0) * TOGETHER + TOGETHER):
        wanted = i < count
        if STRONG:
            wanted = tl.load(strong + i, wanted, 0) != 0
        if wanted:
            chunk_gradients(
                r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads,
                dr, dw, dk, da, db, strong, i, T, H, scale, K, V, BK, BV, C, DECAY, STRONG,
            )  # fmt: skip


@triton.jit
def chunk_gradients(
    r, w, k, v, a, b, do, bounds, states, d_states, reads, d_reads, dr, dw, dk, da, db, strong,
    program, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, STRONG: tl.constexpr,
):  # fmt: skip
    """The gradients of one chunk and BK keys."""
    DTYPE: tl.constexpr = r.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    NK: tl.constexpr = (K + BK - 1) // BK
    i_k, i_h, i_c = program % NK, program // NK % H, program // NK // H
    i = tl.cast(program // NK, tl.int64)
    start, end = bounds_of_span(bounds, i_c, T, C)
    n = tl.minimum(end - start, C).to(tl.int32)
    o_t, o_k = tl.arange(0, C), i_k * BK + tl.arange(0, BK)
    row, col = o_t[:, None], o_t[None, :]
    m_t, m_k = row < n, o_k[None, :] < K

    b_dab, b_dak = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    b_drb, b_drk = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    b_da, b_dr = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
    b_db, b_dk = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
    b_across = tl.zeros([BK], tl.float32)
    for i_v in tl.range(0, V, BV, num_stages=1):
        o_v = i_v + tl.arange(0, BV)
        m_v = o_v[None, :] < V
        o_tv, m_tv = (start * H + i_h) * V + row * (H * V) + o_v[None, :], m_t & m_v
        b_v, b_do = tl.load(v + o_tv, m_tv, 0.0), tl.load(do + o_tv, m_tv, 0.0)
        o_reads = i * C * V + row * V + o_v[None, :]
        b_z, b_y = tl.load(reads + o_reads, m_tv, 0.0), tl.load(d_reads + o_reads, m_tv, 0.0)
        o_s, m_s = i * K * V + o_v[:, None] * K + o_k[None, :], (o_v[:, None] < V) & m_k
        b_s, b_ds = tl.load(states + o_s, m_s, 0.0), tl.load(d_states + o_s, m_s, 0.0)
        b_dab = stored_product(b_y, tl.trans(b_z), b_dab, DTYPE)
        b_dak = stored_product(b_y, tl.trans(b_v), b_dak, DTYPE)
        b_drb = stored_product(b_do, tl.trans(b_z), b_drb, DTYPE)
        b_drk = stored_product(b_do, tl.trans(b_v), b_drk, DTYPE)
        b_da = stored_product(b_y, b_s, b_da, DTYPE)
        b_dr = stored_product(b_do, b_s, b_dr, DTYPE)
        b_db = stored_product(b_z, b_ds, b_db, DTYPE)
        b_dk = stored_product(b_v, b_ds, b_dk, DTYPE)
        b_across += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), 0)
    b_dab, b_dak = tl.where(row > col, b_dab, 0.0), tl.where(row > col, b_dak, 0.0)
    b_drb, b_drk = tl.where(row >= col, b_drb, 0.0), tl.where(row >= col, b_drk, 0.0)

    o_tk, m = (start * H + i_h) * K + row * (H * K) + o_k[None, :], m_t & m_k
    b_w = log_decay(w + o_tk, m, DECAY)
    b_before, b_upto, b_later = chunk_decays(b_w, row, col, C, IS_FLOAT32 or STRONG)
    b_across *= tl.exp2(tl.sum(tl.where(row == C - 1, b_upto, 0.0), 0))
    b_da, b_dr = b_da * tl.exp2(b_before), b_dr * tl.exp2(b_upto)
    b_db, b_dk = b_db * tl.exp2(b_later), b_dk * tl.exp2(b_later)
    if STRONG:
        b_a = tl.load(a + o_tk, m, 0.0).to(tl.float32)
        b_r = tl.load(r + o_tk, m, 0.0).to(tl.float32) * scale
        b_b = tl.load(b + o_tk, m, 0.0).to(tl.float32)
        b_k = tl.load(k + o_tk, m, 0.0).to(tl.float32)
        b_given = b_b * b_db + b_k * b_dk
        b_dw = decay_gradients(b_a * b_da, b_r * b_dr, b_given, row, col, C, IS_FLOAT32)
        b_pa, b_pr, b_pb, b_pk, b_pw = level_gradients(
            b_a, b_r, b_b, b_k, b_w, b_dab, b_dak, b_drb, b_drk, row, col, C, DTYPE
        )
        b_dw += b_pw
        store(da + o_tk, b_da + b_pa, m)
        store(dr + o_tk, (b_dr + b_pr) * scale, m)
        store(db + o_tk, b_db + b_pb, m)
        store(dk + o_tk, b_dk + b_pk, m)
    else:  # in an order in which little has to stay in registers
        b_before, b_upto, b_largest = from_middle(b_before, b_upto, row, C)
        b_least = tl.min(tl.min(b_w.to(tl.float32), 1), 0) * LOG2E
        fits = (b_largest <= FITS) & (b_least >= LEAST_DECAY)  # NaN does not
        tl.store(strong + program, 1 - fits.to(tl.int32))
        b_out = tl.exp2(-b_upto)
        b_b = tl.load(b + o_tk, m, 0.0).to(tl.float32)
        b_k = tl.load(k + o_tk, m, 0.0).to(tl.float32)
        b_y = tl.sum(b_b * b_db + b_k * b_dk, 0)  # what all tokens give to the state
        b_across += b_y
        b_y, b_none = b_b * b_out, tl.zeros([C, BK], tl.float32)
        b_pa = product_tf32(b_dab, b_y, b_none, DTYPE)
        b_pr = product_tf32(b_drb, b_y, b_none, DTYPE)
        b_y = b_k * b_out
        b_da += product_tf32(b_dak, b_y, b_pa, DTYPE) * tl.exp2(b_before)
        b_dr += product_tf32(b_drk, b_y, b_pr, DTYPE) * tl.exp2(b_upto)
        store(da + o_tk, b_da, m)
        store(dr + o_tk, b_dr * scale, m)
        b_a = tl.load(a + o_tk, m, 0.0).to(tl.float32)
        b_r = tl.load(r + o_tk, m, 0.0).to(tl.float32) * scale
        b_dw = b_a * b_da + b_r * b_dr
        b_across = b_across[None, :] - b_a * b_da  # a reads the state before its own decay
        b_a, b_r = b_a * tl.exp2(b_before), b_r * tl.exp2(b_upto)
        b_y = product_tf32(tl.trans(b_dab), b_a, b_none, DTYPE)
        b_db += product_tf32(tl.trans(b_drb), b_r, b_y, DTYPE) * b_out
        b_y = product_tf32(tl.trans(b_dak), b_a, b_none, DTYPE)
        b_dk += product_tf32(tl.trans(b_drk), b_r, b_y, DTYPE) * b_out
        store(db + o_tk, b_db, m)
        store(dk + o_tk, b_dk, m)
        b_dw -= tl.load(b + o_tk, m, 0.0).to(tl.float32) * b_db
        b_dw -= tl.load(k + o_tk, m, 0.0).to(tl.float32) * b_dk
        b_dw = weighted_sums(col >= row, b_dw, IS_FLOAT32, 3) + b_across
    if STRONG:
        b_dw += b_across[None, :]
    store(dw + o_tk, dw_of(b_dw, b_w.to(tl.float32), DECAY), m)


@triton.jit
def store(at, b_x, m):
    tl.store(at, b_x.to(at.dtype.element_ty), m)


def gradients(r, w, k, v, a, b, s0, cu_seqlens, kept, across, do, ds1, scale, decay):
    """The gradients of r, w, k, v, a, b and s0 (as if zeros were given, where it is None).

    Args:
        r, w, k, v, a, b, s0, cu_seqlens, scale, decay: as `wkv7` takes them.
        kept: what the forward pass left, see `Kept`.
        across: the decay of each chunk, `[chunks, H, K]`, float32.
        do, ds1: gradients of o and s1; None counts as zeros.

    Returns:
        Tensors of the shapes and dtypes of r, w, k, v, a and b; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            given = (r, w, k, v, a, b, s0, cu_seqlens, kept, across, do, ds1, scale, decay)
            return gradients(*given)
    do = torch.zeros_like(v) if do is None else do
    *tensors, do = (x.contiguous() for x in (r, w, k, v, a, b, do))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    (_, T, H, K), V, S = r.shape, v.shape[3], sequences_in(r, cu_seqlens)
    C, chunks = chunk_of(r), chunk_count(r, cu_seqlens)
    bounds = span_bounds(cu_seqlens, T, C)
    of = Kept(kept, chunks, H, K, V, C, True)
    dr, dw, dk, dv, da, db = (torch.empty_like(x) for x in tensors)
    ds0 = torch.empty((S, H, K, V), dtype=torch.float32, device=r.device)
    d_states, y = torch.empty_like(of.states), torch.empty_like(of.z)

    block_k, block_v, BK, BV, warps, stages = tiles_for(S * H, K, V, devices.gpu_of(r.device))
    after = ds0 if ds1 is None else ds1.contiguous()
    launches = [(
        wkv7_sweep_kernel, S * H * triton.cdiv(V, BV), warps,
        (do, after, cu_seqlens, of.b, of.w, of.r, of.k, across, of.n, of.t, of.m,
         dv, ds0, d_states, y),
        (int(ds1 is not None), T, H), (K, V, BK, BV, C, stages, True), OPTIONS,
    )]  # fmt: skip
    count = chunks * H * triton.cdiv(K, block_k)
    strong = torch.empty(count, dtype=torch.int8, device=r.device)
    given = (*tensors, do, bounds, of.states, d_states, of.z, y, dr, dw, dk, da, db, strong)
    launches += weak_and_strong(
        wkv7_chunk_gradients_kernel, count, given, (T, H, count, scale),
        (K, V, block_k, block_v, C), decay,
    )  # fmt: skip
    run(("wkv7 backward", r.device, r.dtype, w.dtype, decay, bounds is None), launches)
    return dr, dw, dk, dv, da, db, ds0


def weak_and_strong(kernel, count, tensors, numbers, constants, decay):
    """The launches of a kernel of pairs.py: of all chunks, and of those that it marks."""
    weak = (count, WARPS, 1, False)
    strong = (triton.cdiv(count, PROGRAMS_TOGETHER), STRONG_WARPS, PROGRAMS_TOGETHER, True)
    return [
        (kernel, programs, warps, tensors, numbers, (*constants, FORMS[decay], *how), OPTIONS)
        for programs, warps, *how in ((weak,) if decay == "clamp" else (weak, strong))
    ]


def run(kind, launches):
    """Launches, in this order, what was compiled at the same time where it is new.

    kind: what chooses the machine code beside the constants.
    """
    compile_together((*kind, *(constants for *_, constants, _ in launches)), launches)
    for *arguments, options in launches:
        launch(*arguments, **options)
