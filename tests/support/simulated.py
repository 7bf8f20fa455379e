"""The numba kernels of WKV-6 through the CPU run, called as the library calls them on a GPU."""

import math

import torch

from rwkv_lessons.runtime.launch_numba import ceil_div
from rwkv_lessons.wkv6.cuda import forward as cuda
from rwkv_lessons.wkv6.cuda import forward_sweep as cuda_with_time
from rwkv_lessons.wkv6.cuda import reverse_sweep as cuda_against_time
from rwkv_lessons.wkv6.cuda.tiles import CHECKPOINT, TILE
from warplens.cuda.trace import run


def forward(x, groups=1, go=run, sizes=None, **options):
    """o and s1; both start as NaN. `groups`: threads of a block along the values."""
    r, k, v, w, u, s0 = x
    (B, T, H, K), V = r.shape, v.shape[-1]
    kernel, _, threads, blocks = cuda.build(K, V, r.dtype, w.dtype, groups, **(sizes or {}))
    o, s1 = _empty(v.shape, v.dtype), _empty((B, H, K, V))
    inputs = [_flat(y) for y in (r, k, v, w, u, s1 if s0 is None else s0)]
    arguments = (*inputs, int(s0 is not None), _flat(o), _flat(s1), T, H)
    return o, s1, go(kernel, B * H * blocks, threads, *arguments, **options)


def backward(x, do, ds1, groups=1, go=run, sizes=None, **options):
    """dr, dk, dv, dw, du, ds0, and what `go` returned for each of the two kernels.

    groups: threads of a block along the keys; w may be `[H, K]`, as in WKV-5.
    """
    r, k, v, w, u, s0 = x
    (B, T, H, K), V, per_token = r.shape, v.shape[-1], w.ndim == 4
    tile = (sizes or {}).get("tile", TILE)
    shape = (K, V, r.dtype, w.dtype, per_token, groups)
    with_time, _, threads, blocks = cuda_with_time.build(*shape, **(sizes or {}))
    against_time = cuda_against_time.build(*shape, **(sizes or {}))[0]
    grid = B * H * blocks

    y, saved = _empty(r.shape), _empty(grid * ceil_div(T, CHECKPOINT) * threads * math.prod(tile))
    before = _flat(saved if s0 is None else s0)
    inputs = [_flat(z) for z in (k, v, w, do)]
    arguments = (*inputs, before, int(s0 is not None), _flat(y), _flat(saved), T, H)
    first = go(with_time, grid, threads, *arguments, **options)

    dr, dk = _empty(r.shape, r.dtype), _empty(k.shape, k.dtype)
    dv = _empty((blocks, *v.shape), v.dtype if blocks == 1 else torch.float32)
    dw = _empty(w.shape, w.dtype) if per_token else _empty((B, H, K))
    du, ds0 = _empty((B, H, K)), _empty((B, H, K, V))
    inputs = [_flat(z) for z in (r, k, v, w, u, do, saved if ds1 is None else ds1)]
    results = [_flat(z) for z in (y, saved, dr, dk, dv, dw, du, ds0)]
    arguments = (*inputs, int(ds1 is not None), *results, B, T, H)
    second = go(against_time, grid, threads, *arguments, **options)
    dw = dw if per_token else dw.sum(0)
    return [dr, dk, dv.sum(0).to(v.dtype), dw, du.sum(0), ds0], (first, second)


def _empty(shape, dtype=torch.float32):
    return torch.full(shape if isinstance(shape, tuple | torch.Size) else (shape,), math.nan).to(
        dtype
    )


def _flat(x):
    """A numpy view: the kernel writes into the tensor."""
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).reshape(-1).numpy()
