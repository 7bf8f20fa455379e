"""WKV-7 in chunks, as Triton kernels: matrix products on tensor cores, T in parallel.

Two launches. maps.py makes of each chunk a map from the state before it and its v to its o and the
state after it; sweep.py applies them one after the other. Only the second is a chain along T, of
two products a chunk. Where heads are few, segments.py cuts it into several, side by side.
backward.py runs the transposed sweep. docs/designs_wkv7.md counts what moves, and has the designs
that were weighed.
"""

import torch
import triton

from ...runtime import devices
from ...runtime.assembler import distrusted
from ...sequences.arguments import empty_results, holds_float64, sequences_in
from ...sequences.spans import span_bounds
from ..arguments import check_call
from ..autograd import define
from ..wy import wkv7_wy
from .backward import gradients, run_launches, weak_and_strong
from .kept import Kept, chunk_count, chunk_of, kept_dtype, tiles_for
from .maps import wkv7_maps_kernel
from .segments import sweep_launches

LARGEST = 256  # keys: the sweep holds all of them for its values
SMALL_LARGEST = 128  # on GPUs other than Hopper, where tiles of more do not fit shared memory


def forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep, between=None):
    """o, s1 and, where `keep`, what the gradients start from: see `Kept`.

    between: see `run_launches` of backward.py; it may write to s0.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep, between)
    r, w, k, v, a, b = (x.contiguous() for x in (r, w, k, v, a, b))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    (_, T, H, K), V, S = r.shape, v.shape[3], sequences_in(r, cu_seqlens)
    C, chunks = chunk_of(r), chunk_count(r, cu_seqlens)
    bounds = span_bounds(cu_seqlens, T, C)
    saved = r.new_empty(Kept.size(chunks, H, K, V, C, keep), dtype=kept_dtype(r))
    of = Kept(saved, chunks, H, K, V, C, keep)
    across = torch.empty((chunks, H, K), dtype=torch.float32, device=r.device)
    o, s1 = torch.empty_like(v), torch.empty((S, H, K, V), dtype=torch.float32, device=r.device)
    before = s1 if s0 is None else s0.contiguous()

    longest = triton.cdiv(T, C)
    tiles = tiles_for(S * H, longest, K, V, r.dtype, devices.gpu_of(r.device), decay)
    count = chunks * H
    strong = torch.empty(count, dtype=torch.int8, device=r.device)
    of_maps = (
        r,
        w,
        k,
        a,
        b,
        bounds,
        of.readers,
        of.written,
        across,
        of.l,
        of.p,
        of.q,
        of.t,
        strong,
    )
    launches = weak_and_strong(
        wkv7_maps_kernel, count, tiles.of_maps, of_maps, (T, H, count, scale),
        tiles.maps,
    )  # fmt: skip
    launches += sweep_launches(
        (v, cu_seqlens, of.readers, of.written, across, of.l, of.p, of.q, None), before,
        (o, s1, of.states, of.z), s0 is not None, T, (S, H, K, V), tiles, False,
        between is not None,
    )  # fmt: skip
    which = decay, keep, bounds is None, tiles.segments > 1
    run_launches(("wkv7 forward", r.device, r.dtype, w.dtype, *which), launches, between)
    return (o, s1, saved, across) if keep else (o, s1, saved.new_empty(0), across.new_empty(0))


def forward_shapes(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep):
    """What `forward` returns, without values."""
    (_, _, H, K), V = r.shape, v.shape[3]
    chunks = chunk_count(r, cu_seqlens) if keep else 0
    saved = r.new_empty(Kept.size(chunks, H, K, V, chunk_of(r), True), dtype=kept_dtype(r))
    across = r.new_empty((chunks, H, K) if keep else 0, dtype=torch.float32)
    return *empty_results(r, v, cu_seqlens), saved, across


chunked = define("chunked", forward, forward_shapes, gradients)


def largest(gpu):
    """The most keys of a head."""
    return LARGEST if gpu.like_hopper else SMALL_LARGEST


def has_kernel(r, w, s0):
    """Whether these kernels compute what is on this device and of these types and sizes."""
    if not r.is_cuda or holds_float64(r, w, s0):
        return False
    gpu = devices.gpu_of(r.device)
    if r.dtype == torch.float32 and distrusted(gpu.capability):
        return False
    return r.shape[3] <= largest(gpu)


def wkv7_chunked(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Same arguments and results as `wkv7`, for many tokens on a GPU; `wkv7_wy` elsewhere.

    That is also with more than 256 keys (128 on GPUs other than Hopper), for float64, and in
    float32 where only an assembler is there that makes it wrong
    (`rwkv_lessons.runtime.assembler`). Inputs in bfloat16 are multiplied in bfloat16, what a state
    holds is float32: o, s1 and gradients are right to 5e-3.
    """
    check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    arguments = (r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
    if not has_kernel(r, w, s0):
        return wkv7_wy.checked(*arguments)
    return chunked(*arguments)
