"""The gradients of WKV-6 as two numba kernels: a forward sweep and a reverse sweep.

With S[t] the state after token t and dS[t] its gradient, and without the bonus,

    dr[t] = Σ_j S[t-1] do[t]        dk[t] = Σ_j dS[t] v[t]        dv[t] = Σ_i k[t] dS[t]
    dS[t-1] = exp(w[t]) dS[t] + r[t]ᵀ do[t]
    dw[t] = Σ_j exp(w[t]) S[t-1] dS[t]

for keys i and values j. The last needs two states that no kernel has together. But both kernels
can leave out the token at hand: with Z[t] = exp(w[t]) S[t-1] and dZ[t] = exp(w[t+1]) dS[t+1],

    y[t+1] = Σ_j Z[t] do[t+1]       dr[t+1] = y[t+1] + k[t] (v[t]·do[t+1])
    z[t] = Σ_j dZ[t] v[t]           dk[t] = z[t] + r[t+1] (v[t]·do[t+1])

and dw, which is Σ_j Z[t] dS[t] = Σ_j S[t-1] dZ[t-1], goes from one token to the one before by

    dw[t] = dw[t+1] - k[t] z[t] + r[t+1] y[t+1].

Every term is as small as the decays make dw itself. (With whole dr and dk in their places the
large k r (v·do) would cancel in float32, not in the formula: at w = -8 a thousandth of dw is then
noise.) A sum over all tokens still gathers rounding, so every CHECKPOINT tokens dw starts afresh
from Z, which the forward sweep saves there: Σ_j Z[t] dZ[t] = dw[t+1] - k[t] z[t].

Each block has some of the keys and all values: sums over values (y, z, dw) then stay within a
block. Where a head has several blocks, dv is a sum over them, taken at the end. What bounds it:
arithmetic, 2 and 3 instructions per element of the state and token, and as
many again for what surrounds them.
"""

import torch

from ...runtime import devices
from ...runtime.bounded import remembered
from ...runtime.launch_numba import ceil_div, compiled, launch
from ...runtime.operators import call, refuse_second_gradients
from . import forward_sweep, reverse_sweep
from .tiles import CHECKPOINT, TILE, threads_along, tile_for


@remembered
def compiled_kernels(BH, K, V, dtype, w_dtype, w_per_token, device):
    """Both compiled kernels for a shape; their tile, blocks per head and threads of a block."""
    tile = tile_for(BH, device, few=(TILE[0] // 2, TILE[1]))
    key_groups = threads_along(ceil_div(K, tile[0]), ceil_div(V, tile[1]))
    capability, kernels = devices.gpu_of(device).capability, []
    for sweep in (forward_sweep, reverse_sweep):
        kernel, signature, threads, blocks = sweep.build(
            K, V, dtype, w_dtype, w_per_token, key_groups, tile=tile
        )
        kernels.append(compiled(kernel, signature, threads, capability))
    return *kernels, tile, blocks, threads


def gradients(r, k, v, w, u, s0, do, ds1):
    """The gradients of r, k, v, w, u and s0 (as if zeros were given, where it is None).

    Args:
        r, k, v, u, s0: as `wkv6` takes them.
        w: `[B, T, H, K]`, or `[H, K]` for all tokens alike: WKV-5.
        do, ds1: gradients of o and s1; None counts as zeros.

    Returns:
        Tensors of the shapes of r, k, v, w, u and s0, in their dtypes; ds0 in float32.
    """
    if r.device.index != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return gradients(r, k, v, w, u, s0, do, ds1)
    B, T, H, K = r.shape
    V, w_per_token, w_dtype = v.shape[-1], w.ndim == 4, w.dtype
    do = torch.zeros_like(v) if do is None else do.to(v.dtype)
    w = w if w_per_token else w.float()
    r, k, v, w, do = (x.contiguous() for x in (r, k, v, w, do))
    u_in_float = u.float().contiguous()
    scratch = {"dtype": torch.float32, "device": r.device}
    ds0 = torch.empty(B, H, K, V, **scratch)
    before = ds0 if s0 is None else s0.float().contiguous()
    after = ds0 if ds1 is None else ds1.float().contiguous()

    forward_kernel, reverse_kernel, tile, blocks, threads = compiled_kernels(
        B * H, K, V, r.dtype, w.dtype, w_per_token, r.device
    )
    grid = B * H * blocks
    dr, dk, dv = (torch.empty_like(x) for x in (r, k, v))
    dw = torch.empty_like(w) if w_per_token else torch.empty(B, H, K, **scratch)
    du = torch.empty(B, H, K, **scratch)
    y = dr if dr.dtype == torch.float32 else torch.empty(r.shape, **scratch)
    dvs = dv if blocks == 1 else torch.empty(blocks, *v.shape, **scratch)
    states = grid * ceil_div(T, CHECKPOINT)
    saved = torch.empty(states * threads * tile[0] * tile[1], **scratch)

    arguments = (k, v, w, do, before, int(s0 is not None), y, saved, T, H)
    launch(forward_kernel, grid, threads, *_addresses(arguments))
    inputs = (r, k, v, w, u_in_float, do, after, int(ds1 is not None), y, saved)
    results = (dr, dk, dvs, dw, du, ds0)
    launch(reverse_kernel, grid, threads, *_addresses((*inputs, *results, B, T, H)))
    dv = dv if blocks == 1 else dvs.sum(0).to(v.dtype)
    dw = dw if w_per_token else dw.sum(0).to(w_dtype)
    return dr, dk, dv, dw, du.sum(0).to(u.dtype), ds0


def _addresses(arguments):
    return (x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments)


def gradient_shapes(r, k, v, w, u, s0, do, ds1):
    """What `gradients` returns, without values."""
    shape = (r.shape[0], r.shape[2], r.shape[3], v.shape[3])
    contiguous = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (r, k, v, w)]
    return (
        *contiguous,
        torch.empty(u.shape, dtype=u.dtype, device=u.device),
        r.new_empty(shape, dtype=torch.float32),
    )


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, do, ds1):
    *inputs, s0 = ctx.saved_tensors
    *gradients, ds0 = call(torch.ops.rwkv_lessons.wkv6_backward, *inputs, s0, do, ds1)
    return *gradients, None if s0 is None else ds0.to(s0.dtype)


NAME = "rwkv_lessons::wkv6_backward"
torch.library.define(
    NAME,
    "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? s0, Tensor? do, Tensor? ds1)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl(NAME, "CUDA", gradients)
torch.library.register_fake(NAME, gradient_shapes)
refuse_second_gradients(NAME)
