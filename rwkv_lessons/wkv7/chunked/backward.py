"""The gradients of the chunked WKV-7: the transposed sweep, then all chunks at once.

The sweep (sweep.py) goes from the last chunk to the first with the maps that the forward pass
kept. It leaves dv, ds0, dS after each chunk, and y, the gradient of the right-hand side of z's
equation (../wy.py). With those a chunk is on its own (gradients.py). The maps themselves have no
gradient that anybody writes: r, w, k, a, b, v, do, z, y, S and dS are read, 5 gradients written.
"""

import torch
import triton

from ...runtime import devices
from ...runtime.compile_triton import compile_together
from ...runtime.launch_triton import launch
from ...runtime.packages import refuse_wrong_triton
from ...sequences.arguments import sequences_in
from ...sequences.spans import span_bounds
from .gradients import wkv7_chunk_gradients_kernel
from .kept import CHUNKS_PER_SEARCH, Kept, chunk_count, chunk_of, tiles_for
from .segments import sweep_launches, wkv7_segments_kernel

STRONG_PROGRAM = (4, 255)  # warps and registers of programs for strong decays


def gradients(r, w, k, v, a, b, s0, cu_seqlens, saved, across, do, ds1, scale, decay, between=None):
    """The gradients of r, w, k, v, a, b and s0 (as if zeros were given, where it is None).

    Args:
        r, w, k, v, a, b, s0, cu_seqlens, scale, decay: as `wkv7` takes them.
        saved: what the forward pass left, see `Kept`.
        across: the decay of each chunk, `[chunks, H, K]`, float32.
        do, ds1: gradients of o and s1; None counts as zeros.
        between: see `run_launches`; it may write to ds1.

    Returns:
        Tensors of the shapes and dtypes of r, w, k, v, a and b; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            buffers = (r, w, k, v, a, b, s0, cu_seqlens, saved, across, do, ds1, scale, decay)
            return gradients(*buffers, between)
    do = torch.zeros_like(v) if do is None else do
    *tensors, do = (x.contiguous() for x in (r, w, k, v, a, b, do))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.contiguous()
    (_, T, H, K), V, S = r.shape, v.shape[3], sequences_in(r, cu_seqlens)
    if K > 128 and r.dtype == torch.float32:
        refuse_wrong_triton(
            "gradients of wkv7 in float32 with more than 128 keys", triton.__version__
        )
    C, chunks = chunk_of(r), chunk_count(r, cu_seqlens)
    bounds = span_bounds(cu_seqlens, T, C)
    of = Kept(saved, chunks, H, K, V, C, True)
    dr, dw, dk, dv, da, db = (torch.empty_like(x) for x in tensors)
    ds0 = torch.empty((S, H, K, V), dtype=torch.float32, device=r.device)
    d_states, y = torch.empty_like(of.states), torch.empty_like(of.z)

    longest = triton.cdiv(T, C)
    tiles = tiles_for(S * H, longest, K, V, r.dtype, devices.gpu_of(r.device), decay)
    after = ds0 if ds1 is None else ds1.contiguous()
    launches = sweep_launches(
        (do, cu_seqlens, of.written, of.readers, across, of.p, of.l, of.q, of.t), after,
        (dv, ds0, d_states, y), ds1 is not None, T, (S, H, K, V), tiles, True,
        between is not None,
    )  # fmt: skip
    count = chunks * H * triton.cdiv(K, tiles.block_keys)
    strong = torch.empty(count, dtype=torch.int8, device=r.device)
    buffers = (
        *tensors, do, bounds, of.states, d_states, of.z, y, across, dr, dw, dk, da, db, strong,
    )  # fmt: skip
    launches += weak_and_strong(
        wkv7_chunk_gradients_kernel, count, tiles.of_gradients, buffers, (T, H, count, scale),
        tiles.gradients,
    )  # fmt: skip
    which = decay, bounds is None, tiles.segments > 1
    run_launches(("wkv7 backward", r.device, r.dtype, w.dtype, *which), launches, between)
    return dr, dw, dk, dv, da, db, ds0


def weak_and_strong(kernel, count, of_weak, tensors, numbers, sizes):
    """The launches of a kernel of pairs.py: of all chunks, and of those that it marks.

    of_weak: warps and registers of the first one's programs. sizes: of each launch.
    """
    ways = (count, *of_weak), (triton.cdiv(count, CHUNKS_PER_SEARCH), *STRONG_PROGRAM)
    return [
        (kernel, programs, warps, tensors, numbers, (size,), {"maxnreg": registers})
        for size, (programs, warps, registers) in zip(sizes, ways, strict=False)
    ]


def run_launches(kind, launches, between=None):
    """Launches, in this order, what was compiled at the same time where it is new.

    Args:
        kind: what chooses the machine code beside the constants.
        between: called when U and M of all segments are launched, with both, `[S, segments, …]`.
            It may change the state that the sweep starts from, and U of the first segment.
    """
    compile_together((*kind, *(constants for *_, constants, _ in launches)), launches)
    for kernel, *arguments, options in launches:
        launch(kernel, *arguments, **options)
        if kernel is wkv7_segments_kernel and between is not None:
            between(*arguments[2][-2:])
