"""Ranks whose kernels give their map before o is final, so that no extra pass corrects anything.

Where B·H heads are too few to fill the GPU, the chunked kernels cut a rank's tokens into segments.
Their first launch computes what each segment does to the state, which together is the rank's map,
at almost no extra cost. Ranks gather before the second launch, which starts from the right state:

    maps of segments → fold → gather → main pass

Backward it is the gradient of the state, from the last rank to the first. No decay counts as zero,
and o is rounded once.

RWKV-6 does the same with enough heads to fill the GPU and with packed sequences, whose states only
the gather needs: those of the last sequence on the rank forward, of the first one backward. On
Hopper that kernel stops where everything has decayed.

RWKV-7's fused kernels have no such first launch. They sweep the tokens from zero and the identity
at the same time, and add what the entry state gives after the gather, so o is rounded twice:

    main pass and identity → fold → gather → addition
"""

import torch

from ..runtime import devices
from ..runtime.arguments import learns
from ..runtime.packages import TRITON
from ..runtime.precision import outside_autocast
from ..sequences.arguments import holds_float64
from . import rwkv6
from .maps import entry_state, exit_gradient, gathering, pack, unpack
from .pieces import all_sequences, of_sequence, of_this_rank, s0_gradient, starting_states


def way_of(call, inputs, s0):
    """Whose kernels compute the rank's call, whose arguments were checked; None if no one's."""
    if not TRITON or not inputs[0].is_cuda:
        return None
    ways = (StatesOfRwkv6,) if call.family is rwkv6 else (FusedRwkv7, StatesOfRwkv7)
    return next((way for way in ways if way.suits(call, inputs, s0)), None)


# Programs that compute states alone: of fewer tokens or in more segments they gain nothing.
PROGRAMS_PER_SM, TOKENS_OF_SEGMENT, MOST_SEGMENTS = 4, 512, 16
FUSED_TOKENS = 2048  # of a rank, from which on the fused kernels were measured: faster, always


class StatesFirst(torch.autograd.Function):
    """As `SequenceParallel`, by a `way_of`; ranks of either kind understand each other."""

    @staticmethod
    def forward(ctx, way, call, s0, *inputs):
        tensors, pieces = [x.detach().contiguous() for x in inputs], call.pieces
        r, v = tensors[0], tensors[call.family.V]
        sequences = len(pieces.lengths) if pieces.sequences is not None else r.shape[0]
        start = torch.zeros(sequences, *r.shape[2:], v.shape[-1], device=r.device)
        here, to_save = starting_states(pieces, s0), []
        if here is not None:
            start.copy_(here)

        def exchange(sent):
            """This rank's map, [A | B], for what the ranks before it make: into `start`."""
            # All wait: a main pass that is launched beside the gather leaves it no room on the GPU.
            gathered = gathering(sent, call.group, call.timeout)()
            As, Bs = unpack(gathered, v.shape[-1])
            to_save.append(As.clone())
            if pieces.enters:
                of_sequence(start, pieces, 0).copy_(entry_state(As, Bs, call.rank))

        ctx.way, ctx.call, ctx.s0_dtype = way, call, None if s0 is None else s0.dtype
        keep = any(ctx.needs_input_grad)
        o, s1, *saved = way.forward(tensors, start, call, keep, exchange)
        ctx.save_for_backward(*tensors, start, *to_save, *saved)
        return o, all_sequences(s1, pieces, s0)

    @staticmethod
    @outside_autocast
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        call, count, saved = ctx.call, len(ctx.call.family.INPUTS), ctx.saved_tensors
        tensors, (start, As, *saved_states), pieces = saved[:count], saved[count:], call.pieces
        after = of_this_rank(ds1, pieces).clone()

        def exchange(dE):
            """The gradient of this rank's entry state, for what later ranks add to its last."""
            dEs = gathering(dE, call.group, call.timeout)()
            more = exit_gradient(As, dEs, call.rank)
            of_sequence(after, pieces, -1).add_(more)
            return more

        results = ctx.way.backward(tensors, start, saved_states, do, after, call, exchange)
        *gradients, of_start = results
        ds0 = None
        if ctx.s0_dtype is not None and ctx.needs_input_grad[2]:
            ds0 = s0_gradient(of_start, ds1, pieces, ctx.s0_dtype)
        return None, None, ds0, *gradients


class StatesOfRwkv6:
    """RWKV-6: a segment's map is a decay of each key, and a state."""

    @staticmethod
    def suits(call, inputs, s0):
        from .. import wkv6 as package
        from ..wkv6.chunked.forward import has_kernel
        from ..wkv6.chunked.hopper.tiles import takes_tiles

        if call.operation not in (package.wkv6, package.wkv6_chunked):
            return False
        r, packed = inputs[0], call.pieces.sequences is not None
        (B, T, H, K), V = r.shape, inputs[call.family.V].shape[-1]
        if not has_kernel(*inputs, s0) or (packed and not takes_tiles(inputs[:4], V)):
            return False
        if call.operation is package.wkv6_chunked:
            return True
        S, gpu = len(call.pieces.lengths) if packed else B, devices.gpu_of(r.device)
        sizes = "cuda", r.dtype, -(-B * T // S), S * H, max(K, V), learns(*inputs)
        return package.method_for(*sizes, packed=packed, gpu=gpu) == "chunked"

    @staticmethod
    def forward(tensors, start, call, keep, exchange):
        from ..wkv6.chunked import forward as chunked

        (r, k, v, w, _), pieces = tensors, call.pieces
        scale, raw = _options_of_6(call.options)
        bounds, first = pieces.bounds(r.device), r.shape[1] - pieces.lengths[-1]
        maps = segment_maps(*(x[:, first:] for x in (k, v, w)), raw, bounds is None)
        sent = rank_map(maps, None if pieces.passes else of_sequence(start, pieces, -1))
        if not pieces.passes:  # nothing of an entry state is left after the rank
            sent[..., 0] = 0
        exchange(sent)
        checkpoints = None
        if keep:
            shape, dtype = chunked.describe_checkpoints(r, k, v, w, bounds, True)
            new = r.new_empty if bounds is None else r.new_zeros
            checkpoints = new(shape, dtype=dtype)
        of_segments = maps if bounds is None else None
        results = chunked.run_forward(*tensors, start, bounds, scale, raw, checkpoints, of_segments)
        return *results, checkpoints

    @staticmethod
    def backward(tensors, start, checkpoints, do, after, call, exchange):
        from ..wkv6.chunked.backward import gradients

        pieces, between = call.pieces, None
        scale, raw = _options_of_6(call.options)
        bounds = pieces.bounds(do.device)
        if bounds is None:

            def between(local, totals):
                exchange(entry_gradient(local, totals, after))
        else:
            r, _, _, w, _ = tensors
            do = do.clone(memory_format=torch.contiguous_format) if do.data_ptr() % 16 else do
            first = [x[:, : pieces.lengths[0]] for x in (w, r, do.contiguous())]
            maps = states_on_hopper(*first, *segments_of(*first[1:]), True, raw, scale)
            exchange(entry_gradient(*maps, of_sequence(after, pieces, 0)))
        return gradients(
            *tensors, start, bounds, *checkpoints, do, after, scale, raw, between=between
        )


class FusedRwkv7:
    """RWKV-7 on Hopper, heads of 64: the identity is swept beside the tokens, in the same launch.

    What enters is added afterwards, to o and to the states that gradients need: see
    wkv7/chunked/hopper/cut.py. Where heads are many, no SM is free for the identity.

    Memory: until a forward call returns, the identity's o takes as much as o and, with gradients,
    its states as much as the states that are kept, each the size of r. Backward, its gradients of
    states take as much as those of the tokens. Ranks at the start or end of the sequence need less.
    """

    @staticmethod
    def suits(call, inputs, s0):
        from .. import wkv7 as package
        from ..wkv7.chunked.hopper.fused import takes
        from ..wkv7.chunked.hopper.layouts import N

        if call.operation not in (package.wkv7, package.wkv7_fused):
            return False
        r, w, v = inputs[0], inputs[1], inputs[call.family.V]
        (_, T, _, K), packed = r.shape, call.pieces.sequences is not None
        if packed or K != N.value or T % N.value or holds_float64(s0) or not takes(r, w, v):
            return False
        return call.operation is package.wkv7_fused or T >= FUSED_TOKENS

    @staticmethod
    def forward(tensors, start, call, keep, exchange):
        from ..wkv7.chunked.hopper.forward import forward

        enters, (scale, decay) = call.pieces.enters, _options_of_7(call.options)

        def between(A, B):
            exchange(call.packed(A, B))
            return start if enters else None

        s0 = None if enters else start
        return forward(*tensors, s0, None, scale, decay, keep, between, enters)

    @staticmethod
    def backward(tensors, start, saved, do, after, call, exchange):
        from ..wkv7.chunked.hopper.backward import gradients

        enters, (scale, decay) = not call.is_last, _options_of_7(call.options)

        def between(A, dE):
            more = exchange(dE)
            return more if enters else None

        return gradients(*tensors, start, None, *saved, do, after, scale, decay, between, enters)


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
        if call.pieces.sequences is not None:
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
    def forward(tensors, start, call, keep, exchange):
        from ..wkv7.chunked.forward import forward
        from ..wkv7.chunked.segments import joined, start_from

        def between(ends, matrices):
            exchange(pack(*joined(ends, matrices)))
            if call.pieces.enters:
                start_from(ends, matrices, start)

        scale, decay = _options_of_7(call.options)
        return forward(*tensors, start, None, scale, decay, keep, between)

    @staticmethod
    def backward(tensors, start, saved, do, after, call, exchange):
        from ..wkv7.chunked.backward import gradients
        from ..wkv7.chunked.segments import joined, start_from

        def between(ends, matrices):
            _, dE = joined(ends, matrices, of_matrices=False)
            start_from(ends, matrices, exchange(dE))

        scale, decay = _options_of_7(call.options)
        return gradients(*tensors, start, None, *saved, do, after, scale, decay, between)


def _options_of_6(options):
    return float(options.get("scale", 1.0)), options.get("raw_decay", False)


def _options_of_7(options):
    return float(options.get("scale", 1.0)), options.get("decay", "log")


def segment_maps(k, v, w, raw_decay, of_main_pass=True):
    """What each segment of the chunked kernels of RWKV-6 does to the state.

    of_main_pass: the segments are those of the main pass, if it has several.

    Returns:
        The states `[B, segments, H, K, V]` that they make of zeros, and log2 of the decays across
        them, `[B, segments, H, K]`.
    """
    from ..runtime.launch_triton import launch
    from ..wkv6.chunked.forward import tile_for
    from ..wkv6.chunked.hopper.tiles import takes_tiles
    from ..wkv6.chunked.segments import wkv6_segments_kernel

    (B, T, H, K), V = k.shape, v.shape[-1]
    gpu = devices.gpu_of(k.device)
    programs, segments, span, warps, sizes = tile_for(B * H, T, K, V, k.dtype, gpu)
    if takes_tiles((k, v, w), V):
        if segments == 1 or not of_main_pass:
            segments, span = segments_of(k, v)
        return states_on_hopper(w, k, v, segments, span, False, raw_decay)
    new = {"dtype": torch.float32, "device": k.device}
    states, decays = torch.empty(B, segments, H, K, V, **new), torch.empty(B, segments, H, K, **new)
    # The kernel leaves out the last of the segments that it is told of.
    launch(
        wkv6_segments_kernel, programs * segments, warps, (k, v, w, None, states, decays),
        (T, H, segments + 1, span), (*sizes, raw_decay),
        maxnreg=None if gpu.like_hopper else 255,
    )  # fmt: skip
    return states, decays


def segments_of(x, y):
    """How many segments, and tokens of one, fill a GPU with programs that compute states alone."""
    import triton

    (B, T, H, K), V = x.shape, y.shape[-1]
    room = PROGRAMS_PER_SM * devices.gpu_of(x.device).sms // (B * H * (K // 64) * (V // 64))
    count = max(1, min(room, T // TOKENS_OF_SEGMENT, MOST_SEGMENTS))
    span = triton.cdiv(triton.cdiv(T, count), 64) * 64
    return triton.cdiv(T, span), span


def states_on_hopper(w, x, y, segments, span, reverse, raw_decay, scale=1.0):
    """States and decays of all segments, `[B, segments, H, …]`; in reverse `[B, H, segments, …]`.

    In reverse x and y are r and do, and the states are gradients of those before the segments.
    """
    from ..runtime.launch_tiles import launch_tiles
    from ..wkv6.chunked.hopper.segments import wkv6_segment_states_kernel
    from ..wkv6.chunked.hopper.tiles import tiles
    from ..wkv6.chunked.sizes import CHECKPOINT

    (B, T, H, K), V = x.shape, y.shape[-1]
    order, new = (H, segments) if reverse else (segments, H), {"device": x.device}
    states, decays = (torch.empty(B, *order, *size, **new) for size in ((K, V), (K,)))
    described = [tiles(z, H * z.shape[-1], CHECKPOINT) for z in (w, x, y)]
    launch_tiles(
        wkv6_segment_states_kernel, (B * H * (K // 64) * (V // 64) * segments, 1, 1), 4,
        (*described, None, states, decays), (T, H, segments, span, 0, segments, scale),
        (K, V, reverse, raw_decay, scale != 1, x.dtype == torch.float16),
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
