"""WKV-7's inputs of Kimi's delta attention: one Triton kernel, and one for the gradients.

With q̂, k̂, the log decay and the rate β as formulas.py makes them, and dk and db the gradients of
β k̂ as the k and the b of WKV-7:

    w = log decay        k = b = β k̂        a = −exp(w) ∘ k̂        r = q̂
    dk̂ = β (dk + db) − exp(w) ∘ da        dβ = k̂ᵀ (dk + db)        d log decay = dw + a ∘ da

A program has a few rows; a row is a head of a token. Memory bounds both kernels. In bfloat16 with
g in float32, S being the size of k, they move 6 S (k, g, w, βk, a) and 9 S (k, w, dw, dk, db, da,
the gradients of k and g); q and k of length 1 add 2 S and 3 S. torch takes several kernels, each of
which writes what the next one reads, mostly in float32.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...sequences.tiles import LOG2E
from .formulas import EPSILON as _EPSILON

EPSILON = tl.constexpr(_EPSILON)
ELEMENTS, WARPS = 2048, 4  # of a program: 16 elements of each tensor a thread
GATES = {"": 0, "softplus": 1, "sigmoid": 2}  # what GATE of a kernel is
SOFTPLUS = tl.constexpr(GATES["softplus"])


class RowSizes(NamedTuple):
    """What a kernel is compiled for."""

    K: int
    BK: int  # K or more, a power of 2
    ROWS: int  # of a program
    GATE: int  # a value of GATES
    RATE: int  # β is RATE · sigmoid(beta), or beta if 0
    ONE_DECAY: bool  # for all keys of a row


@triton.jit
def load(x, at, mask):
    return tl.load(x + at, mask, 0.0).to(tl.float32)


@triton.jit
def unit(b_x):
    """Rows of length 1, and what they were multiplied by."""
    b_inverse = 1 / tl.sqrt(tl.sum(b_x * b_x, 1) + EPSILON)
    return b_x * b_inverse[:, None], b_inverse


@triton.jit
def d_unit(b_dunit, b_unit, b_inverse):
    """The gradient of what `unit` was given."""
    return b_inverse[:, None] * (b_dunit - b_unit * tl.sum(b_unit * b_dunit, 1)[:, None])


@triton.jit
def sigmoid(b_x):
    return 1 / (1 + tl.exp2(-b_x * LOG2E))


@triton.jit
def softplus(b_x):
    """log(1 + exp(x)). Where exp(x) is small the sum is rounded, and its logarithm is corrected."""
    b_exp = tl.exp2(tl.minimum(b_x, 20.0) * LOG2E)
    b_sum = 1 + b_exp
    b_added = b_sum - 1
    b_log = tl.where(b_added > 0, tl.log(b_sum) * b_exp / tl.maximum(b_added, 1e-8), b_exp)
    return tl.where(b_x > 20, b_x, b_log)


@triton.jit
def gate_inputs(b_g, A_log, dt_bias, o_r, o_k, H, K: tl.constexpr):
    """x = g + dt_bias, and exp(A_log) of each row."""
    o_h = (o_r % H).to(tl.int32)
    if dt_bias is not None:
        b_g += load(dt_bias, o_h[:, None] * K + o_k[None, :], (o_k < K)[None, :])
    b_A = tl.full(o_h.shape, 1.0, tl.float32)
    if A_log is not None:
        b_A = tl.exp2(tl.load(A_log + o_h).to(tl.float32) * LOG2E)
    return b_g, b_A[:, None]


@triton.jit
def gated(b_x, b_A, lower_bound, GATE: tl.constexpr):
    if GATE == SOFTPLUS:
        return -b_A * softplus(b_x)
    else:
        return lower_bound * sigmoid(b_A * b_x)


@triton.jit
def d_gated(b_dg, b_x, b_A, lower_bound, GATE: tl.constexpr):
    """Gradients of x, and of A_log from each element."""
    if GATE == SOFTPLUS:
        return -b_A * sigmoid(b_x) * b_dg, -b_A * softplus(b_x) * b_dg
    else:
        b_sigmoid = sigmoid(b_A * b_x)
        b_dx = lower_bound * b_sigmoid * (1 - b_sigmoid) * b_A * b_dg
        return b_dx, b_dx * b_x


@assembled
@triton.jit(do_not_specialize=["R", "H", "lower_bound"])
def kda_mapping_kernel(
    k, g, beta, q, A_log, dt_bias, r, w, written, a, R, H, lower_bound,
    SIZES: tl.constexpr,
):  # fmt: skip
    """[R, K] each, but beta [R], g [R] if a head has ONE_DECAY, A_log [H], dt_bias [H, K].

    written is β k̂. w: None if it is g. q, r: None if q and k keep their lengths.
    """
    o_k = tl.arange(0, SIZES.BK)
    o_r = tl.program_id(0).to(tl.int64) * SIZES.ROWS + tl.arange(0, SIZES.ROWS)
    m_r = o_r < R
    at, m = o_r[:, None] * SIZES.K + o_k[None, :], m_r[:, None] & (o_k < SIZES.K)[None, :]
    b_k, b_beta = load(k, at, m), load(beta, o_r, m_r)
    if SIZES.ONE_DECAY:
        b_w = tl.broadcast_to(load(g, o_r, m_r)[:, None], [SIZES.ROWS, SIZES.BK])
    else:
        b_w = load(g, at, m)
    if q is not None:
        b_k, _ = unit(b_k)
        b_q, _ = unit(load(q, at, m))
        tl.store(r + at, b_q.to(r.dtype.element_ty), m)
    if SIZES.RATE > 0:
        b_beta = SIZES.RATE * sigmoid(b_beta)
    if SIZES.GATE > 0:
        b_x, b_A = gate_inputs(b_w, A_log, dt_bias, o_r, o_k, H, SIZES.K)
        b_w = gated(b_x, b_A, lower_bound, SIZES.GATE)
    if w is not None:
        b_rounded = b_w.to(w.dtype.element_ty)
        tl.store(w + at, b_rounded, m)
        b_w = b_rounded.to(tl.float32)
    tl.store(written + at, (b_beta[:, None] * b_k).to(written.dtype.element_ty), m)
    tl.store(a + at, (-tl.exp2(b_w * LOG2E) * b_k).to(a.dtype.element_ty), m)


@assembled
@triton.jit(do_not_specialize=["R", "H", "lower_bound"])
def kda_mapping_gradients_kernel(
    k, g, beta, q, A_log, dt_bias, w, dr, dw, dk, db, da, d_q, d_k, d_g, d_beta, d_A_log,
    R, H, lower_bound,
    SIZES: tl.constexpr,
):  # fmt: skip
    """Arguments as `kda_mapping_kernel` has them, then w and gradients of what that wrote.

    d_q to d_beta: gradients of its arguments; of A_log, d_A_log [R] has the share of each row.
    g: None unless there is a gate; A_log and d_A_log may be None with one.
    """
    o_k = tl.arange(0, SIZES.BK)
    o_r = tl.program_id(0).to(tl.int64) * SIZES.ROWS + tl.arange(0, SIZES.ROWS)
    m_r = o_r < R
    at, m = o_r[:, None] * SIZES.K + o_k[None, :], m_r[:, None] & (o_k < SIZES.K)[None, :]
    b_k, b_beta = load(k, at, m), load(beta, o_r, m_r)
    if q is not None:
        b_k, b_inverse = unit(b_k)
        b_q, b_inverse_q = unit(load(q, at, m))
        b_dq = d_unit(load(dr, at, m), b_q, b_inverse_q)
        tl.store(d_q + at, b_dq.to(d_q.dtype.element_ty), m)
    if SIZES.RATE > 0:
        b_sigmoid = sigmoid(b_beta)
        b_beta = SIZES.RATE * b_sigmoid

    b_dwritten = load(dk, at, m) + load(db, at, m)
    b_dalpha = tl.exp2(load(w, at, m) * LOG2E) * load(da, at, m)  # −exp(w) ∘ da, turned
    b_dg = load(dw, at, m) - b_k * b_dalpha
    b_dk = b_beta[:, None] * b_dwritten - b_dalpha
    b_dbeta = tl.sum(b_dwritten * b_k, 1)
    if SIZES.RATE > 0:
        b_dbeta *= b_beta * (1 - b_sigmoid)
    tl.store(d_beta + o_r, b_dbeta.to(d_beta.dtype.element_ty), m_r)
    if q is not None:
        b_dk = d_unit(b_dk, b_k, b_inverse)
    tl.store(d_k + at, b_dk.to(d_k.dtype.element_ty), m)

    if SIZES.GATE > 0:
        b_x, b_A = gate_inputs(load(g, at, m), A_log, dt_bias, o_r, o_k, H, SIZES.K)
        b_dg, b_dA = d_gated(b_dg, b_x, b_A, lower_bound, SIZES.GATE)
        if d_A_log is not None:
            tl.store(d_A_log + o_r, tl.sum(b_dA, 1), m_r)
    if SIZES.ONE_DECAY:
        tl.store(d_g + o_r, tl.sum(b_dg, 1).to(d_g.dtype.element_ty), m_r)
    else:
        tl.store(d_g + at, b_dg.to(d_g.dtype.element_ty), m)


def forward(q, k, g, beta, A_log, dt_bias, form):
    """r (None if q and k keep their lengths), w, βk and a: see formulas.py."""
    if k.is_cuda and k.get_device() != torch.cuda.current_device():
        with torch.cuda.device(k.device):
            return forward(q, k, g, beta, A_log, dt_bias, form)
    one_decay, of_w = g.shape != k.shape, form.dtype_of_w(g, k.shape[-1])
    given = k, g, beta, q if form.norm else None, A_log, dt_bias
    k, g, *others = map(contiguous, given)
    written, a = (torch.empty_like(k, dtype=form.dtype) for _ in range(2))
    r = torch.empty_like(k, dtype=form.dtype) if form.norm else None
    makes_w = form.gate or one_decay or g.dtype != of_w
    w = torch.empty_like(k, dtype=of_w) if makes_w else None
    launch_rows(kda_mapping_kernel, (k, g, *others, r, w, written, a), one_decay, form)
    return r, w if makes_w else g, written, a


def gradients(q, k, g, beta, A_log, dt_bias, w, dr, dw, dk, db, da, d_g, form):
    """Of q, k, g, beta, A_log and dt_bias; None of q without `norm`, of the others if they are.

    Args:
        g: None without a gate.
        d_g: gets the gradient of g.
    """
    if k.is_cuda and k.get_device() != torch.cuda.current_device():
        with torch.cuda.device(k.device):
            given = (q, k, g, beta, A_log, dt_bias, w, dr, dw, dk, db, da)
            return gradients(*given, d_g, form)
    q, dr = (q, dr) if form.norm else (None, None)
    k, *others = map(contiguous, (k, g, beta, q, A_log, dt_bias, w, dr, dw, dk, db, da))
    d_q, d_k, d_beta = (None if x is None else x.new_empty(x.shape) for x in (q, k, beta))
    d_A_log = d_dt_bias = None
    if A_log is not None:
        d_A_log = torch.empty(beta.shape, dtype=torch.float32, device=k.device)
    tensors = (k, *others, d_q, d_k, d_g, d_beta, d_A_log)
    launch_rows(kda_mapping_gradients_kernel, tensors, d_g.shape != k.shape, form)
    if A_log is not None:
        d_A_log = d_A_log.sum((0, 1)).to(A_log.dtype)
    if dt_bias is not None:  # of d_g as it was rounded, as for any bias
        d_dt_bias = d_g.sum((0, 1), dtype=torch.float32).to(dt_bias.dtype)
    return d_q, d_k, d_g, d_beta, d_A_log, d_dt_bias


def launch_rows(kernel, tensors, one_decay, form):
    """tensors: k comes first."""
    *_, H, K = tensors[0].shape
    R, BK = tensors[0].numel() // K, triton.next_power_of_2(K)
    rows = max(1, ELEMENTS // BK)
    sizes = RowSizes(K, BK, rows, GATES[form.gate], form.rate, one_decay)
    numbers = (R, H, float(form.lower_bound))
    launch(kernel, triton.cdiv(R, rows), WARPS, tensors, numbers, (sizes,))


def contiguous(x):
    return None if x is None else x.contiguous()


class InTriton(torch.autograd.Function):
    """`formulas.in_torch` by these kernels, but r is None where q keeps its length."""

    @staticmethod
    def forward(ctx, q, k, g, beta, A_log, dt_bias, form):
        r, w, written, a = forward(q, k, g, beta, A_log, dt_bias, form)
        w = w.view(w.shape)
        of_gate = g if form.gate else None  # else w does: half of g's bytes
        ctx.save_for_backward(q if form.norm else None, k, of_gate, beta, A_log, dt_bias, w)
        ctx.form, ctx.g_is = form, (g.shape, g.dtype)
        return r, w, written, written.view(written.shape), a

    @staticmethod
    def backward(ctx, *given):
        shape, dtype = ctx.g_is
        d_g = torch.empty(shape, dtype=dtype, device=given[1].device)
        with torch.no_grad():
            results = gradients(*ctx.saved_tensors, *given, d_g, ctx.form)
        if torch.is_grad_enabled():
            results = NoSecondGradients.apply(*ctx.saved_tensors, *given, *results)
        return *results, None


class NoSecondGradients(torch.autograd.Function):
    """The last 6 tensors as they are, first gradients: to differentiate them is an error."""

    @staticmethod
    def forward(ctx, *tensors):
        return tensors[-6:]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            "chunk_kda has no second gradients in Triton; in float64, or without a GPU, it has"
        )
