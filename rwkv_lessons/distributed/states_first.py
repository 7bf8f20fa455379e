"""RWKV-6 in the chunked kernels: the entry state comes before the main pass, nothing is corrected.

Where B·H heads are too few to fill the GPU, those kernels cut a rank's tokens into segments and
compute the state after each first, forward and, of gradients, backward. That is the rank's map, for
nothing. So ranks gather between the two launches, and the main pass starts from the right state:

    states of segments → fold → gather → main pass

Backward it is the gradient of the state, from the last rank to the first. No decay is taken for
zero, and o is rounded once.
"""

import torch

from ..runtime import devices
from ..runtime.launch_triton import launch
from ..runtime.packages import TRITON
from ..wkv6.options import check_call
from .maps import entry_state, exit_gradient, gathering, unpack


def suits(call, inputs, s0):
    """Whether this rank's call is one of the chunked kernels, and in segments."""
    r = inputs[0]
    if not TRITON or not r.is_cuda or call.pieces.sequences is not None:
        return False
    from .. import wkv6 as package
    from ..wkv6.chunked.forward import has_kernel, tile_for

    if call.operation not in (package.wkv6, package.wkv6_chunked):
        return False
    B, T, H, K, V = check_call(*inputs, None, None, **call.options)
    if not has_kernel(*inputs, s0):
        return False
    gpu = devices.gpu_of(r.device)
    if call.operation is package.wkv6:
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        name = package.method_for("cuda", r.dtype, T, B * H, max(K, V), learns, False, gpu)
        if name != "chunked":
            return False
    return tile_for(B * H, T, K, V, r.dtype, gpu)[1] > 1


class StatesFirst(torch.autograd.Function):
    """As `SequenceParallel`, for what `suits`; ranks of either kind understand each other."""

    @staticmethod
    def forward(ctx, call, s0, *inputs):
        from ..wkv6.chunked import forward as chunked

        ctx.options = call.options.get("scale", 1.0), call.options.get("raw_decay", False)
        ctx.call, ctx.keep = call, any(ctx.needs_input_grad)
        r, k, v, w, u = (x.detach().contiguous() for x in inputs)
        begins = not call.pieces.enters
        start = s0.detach().float().contiguous() if begins and s0 is not None else None
        found = segment_maps(k, v, w, ctx.options[1])
        # All wait: a main pass that is launched beside the gather leaves it no room on the GPU.
        As, Bs = unpack(gathering(rank_map(found, start), call.group, call.timeout)(), v.shape[-1])
        E = start if begins else entry_state(As, Bs, call.rank).contiguous()
        given = (r, k, v, w, u, E, None, float(ctx.options[0]), ctx.options[1])
        checkpoints = None
        if ctx.keep:
            shape = chunked.checkpoints_shape(r, v, None, True)
            checkpoints = r.new_empty(shape, dtype=chunked.checkpoints_dtype(r))
        o, s1 = chunked.run_forward(*given, checkpoints, found)
        ctx.As, ctx.s0_dtype = As.clone(), None if s0 is None else s0.dtype
        ctx.save_for_backward(r, k, v, w, u, E, checkpoints)
        ctx.set_materialize_grads(False)
        return o, s1

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        from ..wkv6.chunked.backward import gradients

        call = ctx.call
        r, k, v, w, u, E, checkpoints = ctx.saved_tensors
        scale, raw = ctx.options
        shape = (r.shape[0], *r.shape[2:], v.shape[-1])
        after = torch.zeros(shape, dtype=torch.float32, device=r.device)
        if ds1 is not None:
            after.copy_(ds1)

        def exchange(local, totals):
            """Adds to `after` what later ranks make of this rank's last state."""
            dE = entry_gradient(local, totals, after)
            dEs = gathering(dE, call.group, call.timeout)()
            after.add_(exit_gradient(ctx.As, dEs, call.rank))

        given = (r, k, v, w, u, E, None, checkpoints, do, after, float(scale), raw)
        *found, dE = gradients(*given, between=exchange)
        ds0 = None
        if ctx.s0_dtype is not None and ctx.needs_input_grad[1]:
            ds0 = (torch.zeros_like(dE) if call.pieces.enters else dE).to(ctx.s0_dtype)
        return None, ds0, *found


def segment_maps(k, v, w, raw_decay):
    """What each segment of the chunked kernels does to the state.

    Returns:
        The states `[B, segments, H, K, V]` that they make of zeros, and log2 of the decays across
        them, `[B, segments, H, K]`.
    """
    from ..wkv6.chunked.forward import tile_for
    from ..wkv6.chunked.segments import wkv6_segments_kernel

    (B, T, H, K), V = k.shape, v.shape[-1]
    gpu = devices.gpu_of(k.device)
    programs, segments, span, warps, sizes = tile_for(B * H, T, K, V, k.dtype, gpu)
    new = {"dtype": torch.float32, "device": k.device}
    states, decays = torch.empty(B, segments, H, K, V, **new), torch.empty(B, segments, H, K, **new)
    # The kernel leaves out the last of the segments that it is told of.
    launch(
        wkv6_segments_kernel, programs * segments, warps, (k, v, w, None, states, decays),
        (T, H, segments + 1, span), (*sizes, raw_decay),
        maxnreg=None if gpu.like_hopper else 255,
    )  # fmt: skip
    return states, decays


def rank_map(found, start):
    """The map of all segments: A, `[B, H, K, 1]`, beside what it makes of `start`."""
    from .fold import folded

    states, decays = found
    return folded(states, decays, start, states.shape[2])


def entry_gradient(local, totals, after):
    """The gradient of the entry state, `[B, H, K, V]`, from that after the rank's tokens."""
    from .fold import folded

    return folded(local, totals, after, local.shape[1], True, True, False)
