"""The entry state before the main pass, in the chunked kernels: then nothing has to be corrected.

Where B·H heads are too few to fill the GPU, those kernels cut a rank's tokens into segments, and
find out first what each does to the state, forward and, of gradients, backward. Together that is
the rank's map, nearly for nothing. So ranks gather between the two launches, and the main pass
starts from the right state:

    maps of segments → fold → gather → main pass

Backward it is the gradient of the state, from the last rank to the first. No decay is taken for
zero, and o is rounded once.
"""

import torch

from ..runtime import devices
from ..runtime.arguments import learns
from ..runtime.packages import TRITON
from ..runtime.precision import outside_autocast
from . import rwkv6
from .maps import entry_state, exit_gradient, gathering, pack, unpack


def suits(call, inputs, s0):
    """Whether the chunked kernels take this rank's call, which is right, and in segments."""
    if not TRITON or not inputs[0].is_cuda or call.pieces.sequences is not None:
        return False
    return _way(call).suits(call, inputs, s0)


def _way(call):
    return StatesOfRwkv6 if call.family is rwkv6 else StatesOfRwkv7


class StatesFirst(torch.autograd.Function):
    """As `SequenceParallel`, for what `suits`; ranks of either kind understand each other."""

    @staticmethod
    def forward(ctx, call, s0, *inputs):
        tensors, begins = [x.detach().contiguous() for x in inputs], not call.pieces.enters
        r, v = tensors[0], tensors[call.family.V]
        start = torch.zeros(r.shape[0], *r.shape[2:], v.shape[-1], device=r.device)
        if begins and s0 is not None:
            start.copy_(s0)
        to_save = []

        def exchange(sent):
            """This rank's map, [A | B], for what the ranks before it make: into `start`."""
            # All wait: a main pass that is launched beside the gather leaves it no room on the GPU.
            gathered = gathering(sent, call.group, call.timeout)()
            As, Bs = unpack(gathered, v.shape[-1])
            to_save.append(As.clone())
            if not begins:
                start.copy_(entry_state(As, Bs, call.rank))

        ctx.call, ctx.s0_dtype = call, None if s0 is None else s0.dtype
        keep = any(ctx.needs_input_grad)
        o, s1, *saved = _way(call).forward(tensors, start, call.options, keep, begins, exchange)
        ctx.save_for_backward(*tensors, start, *to_save, *saved)
        ctx.set_materialize_grads(False)
        return o, s1

    @staticmethod
    @outside_autocast
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        call, count, saved = ctx.call, len(ctx.call.family.INPUTS), ctx.saved_tensors
        tensors, (start, As, *saved_states) = saved[:count], saved[count:]
        after = torch.zeros_like(start)
        if ds1 is not None:
            after.copy_(ds1)

        def exchange(dE):
            """The gradient of this rank's entry state, for what later ranks add to its last."""
            dEs = gathering(dE, call.group, call.timeout)()
            more = exit_gradient(As, dEs, call.rank)
            after.add_(more)
            return more

        results = _way(call).backward(
            tensors, start, saved_states, do, after, call.options, exchange
        )
        *gradients, dE = results
        ds0 = None
        if ctx.s0_dtype is not None and ctx.needs_input_grad[1]:
            ds0 = (torch.zeros_like(dE) if call.pieces.enters else dE).to(ctx.s0_dtype)
        return None, ds0, *gradients


class StatesOfRwkv6:
    """RWKV-6: a segment's map is a decay of each key, and a state."""

    @staticmethod
    def suits(call, inputs, s0):
        from .. import wkv6 as package
        from ..wkv6.chunked.forward import has_kernel, tile_for

        if call.operation not in (package.wkv6, package.wkv6_chunked):
            return False
        r, gpu = inputs[0], devices.gpu_of(inputs[0].device)
        (B, T, H, K), V = r.shape, inputs[call.family.V].shape[-1]
        if not has_kernel(*inputs, s0):
            return False
        if call.operation is package.wkv6:
            name = package.method_for(
                "cuda", r.dtype, T, B * H, max(K, V), learns(*inputs), gpu=gpu
            )
            if name != "chunked":
                return False
        return tile_for(B * H, T, K, V, r.dtype, gpu)[1] > 1

    @staticmethod
    def forward(tensors, start, options, keep, begins, exchange):
        from ..wkv6.chunked import forward as chunked

        r, k, v, w, u = tensors
        scale, raw = _options_of_6(options)
        maps = segment_maps(k, v, w, raw)
        exchange(rank_map(maps, start if begins else None))
        checkpoints = None
        if keep:
            shape, dtype = chunked.describe_checkpoints(r, k, v, w, None, True)
            checkpoints = r.new_empty(shape, dtype=dtype)
        return *chunked.run_forward(
            *tensors, start, None, scale, raw, checkpoints, maps
        ), checkpoints

    @staticmethod
    def backward(tensors, start, checkpoints, do, after, options, exchange):
        from ..wkv6.chunked.backward import gradients

        def between(local, totals):
            exchange(entry_gradient(local, totals, after))

        scale, raw = _options_of_6(options)
        return gradients(
            *tensors, start, None, *checkpoints, do, after, scale, raw, between=between
        )


class StatesOfRwkv7:
    """RWKV-7: a segment's map are a matrix and a state."""

    @staticmethod
    def suits(call, inputs, s0):
        import triton

        from .. import wkv7 as package
        from ..wkv7.chunked.forward import has_kernel
        from ..wkv7.chunked.kept import chunk_of, tiles_for

        if call.operation not in (package.wkv7, package.wkv7_chunked):
            return False
        r, gpu = inputs[0], devices.gpu_of(inputs[0].device)
        (B, T, H, K), V = r.shape, inputs[call.family.V].shape[-1]
        if not has_kernel(r, inputs[1], s0):
            return False
        if call.operation is package.wkv7:
            name = package.method_for("cuda", r.dtype, T, B * H, K, learns(*inputs), gpu)
            if name not in ("chunked", "fused"):
                return False
        return tiles_for(B * H, triton.cdiv(T, chunk_of(r)), K, V, r.dtype, gpu).segments > 1

    @staticmethod
    def forward(tensors, start, options, keep, begins, exchange):
        from ..wkv7.chunked.forward import forward

        def between(ends, matrices):
            exchange(pack(*_joined(ends, matrices)))
            if not begins:
                _start_from(ends, matrices, start)

        scale, decay = _options_of_7(options)
        return forward(*tensors, start, None, scale, decay, keep, between)

    @staticmethod
    def backward(tensors, start, saved, do, after, options, exchange):
        from ..wkv7.chunked.backward import gradients

        def between(ends, matrices):
            _start_from(ends, matrices, exchange(_joined(ends, matrices)[1]))

        scale, decay = _options_of_7(options)
        return gradients(*tensors, start, None, *saved, do, after, scale, decay, between)


def _options_of_6(options):
    return float(options.get("scale", 1.0)), options.get("raw_decay", False)


def _options_of_7(options):
    return float(options.get("scale", 1.0)), options.get("decay", "log")


def segment_maps(k, v, w, raw_decay):
    """What each segment of the chunked kernels of RWKV-6 does to the state.

    Returns:
        The states `[B, segments, H, K, V]` that they make of zeros, and log2 of the decays across
        them, `[B, segments, H, K]`.
    """
    from ..runtime.launch_triton import launch
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


def rank_map(maps, start):
    """The map of all segments: A, `[B, H, K, 1]`, beside what it makes of `start`."""
    from .fold import folded

    states, decays = maps
    return folded(states, decays, start, states.shape[2])


def entry_gradient(local, totals, after):
    """The gradient of the entry state, `[B, H, K, V]`, from that after the rank's tokens."""
    from .fold import folded

    return folded(local, totals, after, local.shape[1], True, True, False)


def _joined(ends, matrices):
    """A and B of all segments, of which the first one's U counts as it is."""
    A, B = matrices[:, 0], ends[:, 0]
    for n in range(1, ends.shape[1]):
        A, B = matrices[:, n] @ A, torch.matmul(matrices[:, n], B).add_(ends[:, n])
    return A, B


def _start_from(ends, matrices, state):
    """Has the first segment, which started from something else or zeros, add this state."""
    ends[:, 0] += matrices[:, 0] @ state
