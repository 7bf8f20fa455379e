"""`sequence_parallel`: an operation for the tokens of one rank, and its gradients."""

import contextlib
import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..runtime.arguments import check_number, learns
from ..runtime.bounded import Table
from ..runtime.operators import refuse_tangents
from ..runtime.precision import outside_autocast
from . import rwkv6, rwkv7, states_first, twice
from .arguments import check_others, group_of, is_of, rank_of, with_start, without_options
from .maps import (
    DeadRank,
    apply,
    apply_transposed,
    entry_state,
    exit_gradient,
    gathering,
    pack,
    unpack,
)
from .pieces import (
    Pieces,
    added,
    all_sequences,
    of_sequence,
    of_this_rank,
    pieces_of,
    s0_gradient,
    starting_states,
)
from .same_call import tokens_of_ranks
from .saved import Saved, SavedStep

__all__ = ["DeadRank", "sequence_parallel"]


def sequence_parallel(operation, group=None, *, timeout=60.0):
    """Turns `wkv6` or `wkv7` into a function of one rank's tokens.

    Each rank of the group, in order, holds the next tokens of the sequence: any number, but at
    least one. Each calls the function with its own tokens; RWKV-6's parameter u is the same on all.

        mix = sequence_parallel(wkv6, group)
        o, s1 = mix(r, k, v, w, u)

    Args:
        operation: `wkv6`, `wkv7`, or one of their methods, such as `wkv6_chunked`; or a
            `functools.partial` of one, with options.
        group: a process group of torch.distributed with gloo (CPU) or NCCL (GPU), or a
            `DeviceMesh` of one dimension; all processes if None.
        timeout: seconds to wait for the other ranks. With NCCL the GPU waits, not this process, so
            `init_process_group(timeout=…)` is the limit there.

    Returns:
        A function with the operation's arguments: r, k, v, w and so on `[B, this rank's T, H, …]`.
        These differ:

        - s0: the state before the first token of the sequence; only the rank that holds this token
          reads it.
        - cu_seqlens: of all ranks' tokens, the same on every rank; the host reads its values. s0 is
          `[S, H, K, V]` of all sequences, and a rank reads those that begin on it.
        - start: with cu_seqlens, the position of this rank's first token among all ranks' tokens;
          if None, all ranks hold equally many tokens.

        It returns o `[B, T, H, V]` and s1, the state after this rank's last token, float32. With
        packed sequences s1 is `[S, H, K, V]`: the state of each sequence after its last token on
        this rank, and s0 or zeros for sequences without tokens here.

    Gradients are those of the sum of all ranks' losses. Each rank's gradient of u is its own part:
    add them up as for any parameter that ranks share. Every rank has to run the backward pass, even
    if its part of the loss is zero. Second gradients and forward mode raise a RuntimeError.

    Limits:
        CUDA graphs: not supported. The host reads cu_seqlens, the sizes on all ranks at the first
            call of a kind and, before a correction, how far decays reach.
        Precision: exact to the dtype. RWKV-6's chunked kernels, RWKV-7's with few heads, and short
            packed sequences at a rank's ends round o once. RWKV-7's fused kernels and other methods
            round o twice, as they add what the state before a rank gives. Other methods, and only
            these, count decays since a rank's first token as zero below 2^-32 (float32: 2^-64,
            float64: 2^-128).
        Memory: RWKV-7's fused kernels need, during a call, one more tensor of r's size forward, two
            with gradients, and one backward.

    Raises:
        TypeError, ValueError: as the operation does, or operation is none of these.
        DeadRank: another rank has ended, or did not answer in time. It is a RuntimeError.
    """
    family = next((x for x in (rwkv6, rwkv7) if is_of(x, operation)), None)
    if family is None:
        raise TypeError(f"operation must be wkv6, wkv7 or one of their methods, got {operation!r}")
    check_number("timeout", timeout, least=1e-3)
    group, agreed, signature = group_of(group), Table(), with_start(family.OPERATION)
    operation, preset = without_options(operation)

    @outside_autocast
    @functools.wraps(operation)
    def mix(*args, **named):
        bound = signature.bind(*args, **preset | named)
        bound.apply_defaults()
        (*inputs, s0), options = bound.args, bound.kwargs
        cu_seqlens, start = options.pop("cu_seqlens", None), options.pop("start", None)
        sizes = family.CHECK(*inputs, **options)
        options["scale"] = float(options["scale"])
        ends = check_others(inputs[0], inputs[family.V], s0, cu_seqlens, start)
        tensors = [x for x in (s0, *inputs) if x is not None]
        refuse_tangents("sequence_parallel", tensors)
        training = learns(*tensors)
        if not training:  # a node would take what requires gradients elsewhere for what learns here
            s0, *inputs = (x if x is None else x.detach() for x in (s0, *inputs))

        device = inputs[0].device
        rank = rank_of(group, device)
        same = dict(zip(("B", "T", "H", "K", "V"), sizes, strict=True))
        same |= {"operation": family.__name__, "dtype": inputs[0].dtype, "requires_grad": training}
        same |= {"options": sorted(options.items()), "cu_seqlens": ends}
        with on(device):
            tokens = tokens_of_ranks(group, timeout, agreed, same, start, device)
            pieces = pieces_of(sizes[1], rank, ends, tokens)
            call = ParallelCall(operation, family, group, timeout, pieces, options)
            if way := states_first.way_of(call, inputs, s0):
                return states_first.StatesFirst.apply(way, call, s0, *inputs)
            function = SequenceParallel
            if twice.suits(call):
                function = twice.OperationTwice
            return function.apply(call, s0, *inputs)

    mix.__signature__ = signature
    return mix


def on(device):
    """Makes a GPU torch's current one: kernels are launched there, and events recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@dataclass(frozen=True)
class ParallelCall:
    """What a call is made of besides tensors."""

    operation: object
    family: object  # the module rwkv6 or rwkv7
    group: object
    timeout: float
    pieces: Pieces
    options: dict

    @property
    def rank(self):
        return dist.get_rank(self.group)

    @property
    def is_last(self):
        return self.rank == dist.get_world_size(self.group) - 1

    def packed(self, A, B):
        """[A | B]; A is None where nothing of an entry state is left after the rank: zeros."""
        if A is None:
            A = B.new_zeros(*B.shape[:-1], self.family.columns(B))
        return pack(A, B)

    def gathered(self, x):
        return gathering(x, self.group, self.timeout)()


class SequenceParallel(torch.autograd.Function):
    """Main pass, gather, correction; backward the correction's gradients, gather, main pass.

    The main pass has a graph of its own within this node, so that what the correction adds to the
    gradients of the first tokens is added in place. Each pass gathers once, on every rank, and what
    is saved is there, computed again or not, before the backward pass gathers.
    """

    @staticmethod
    def forward(ctx, call, s0, *inputs):
        pieces, (_, of_s0, *needs_gradient) = call.pieces, ctx.needs_input_grad
        learns, saved = any(ctx.needs_input_grad), Saved()
        at_start, carry = starting_states(pieces, s0), None
        segment = (call, inputs, pieces.lengths[0], saved if learns else None)
        if pieces.enters and not call.family.BESIDE:
            # A short sum, for which the host may wait: before the main pass.
            carry = call.family.Carry(*segment)
        bounds, since = pieces.bounds(inputs[0].device), _now(inputs[0])
        operation = functools.partial(call.operation, cu_seqlens=bounds, **call.options)
        main = SavedStep(saved)
        o, states = main.results(
            operation, (*inputs, at_start), (*needs_gradient, of_s0 and at_start is not None)
        )
        if pieces.enters and call.family.BESIDE:
            with _beside(inputs[0].device, since):
                carry = call.family.Carry(*segment)

        B, V = of_sequence(states, pieces, -1), states.shape[-1]
        A = carry.across() if carry else None
        As, Bs = unpack(call.gathered(call.packed(A if pieces.passes else None, B)), V)
        if carry:
            carry.entry = entry_state(As, Bs, call.rank)
            o = carry.correct(o, carry.entry)
            states = added(states, pieces, 0, apply(A, carry.entry))
        if learns:
            ctx.carry = carry and saved.put_away(carry)
            saved.leave(ctx, call, main, As, s0)
        return o, all_sequences(states, pieces, s0)

    @staticmethod
    @outside_autocast
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        with ctx.saved.of(ctx):
            return SequenceParallel.gradients(ctx, do.contiguous(), ds1)

    @staticmethod
    def gradients(ctx, do, ds1):
        call, pieces, saved = ctx.call, ctx.call.pieces, ctx.saved
        carry, ds = ctx.carry and saved.taken_back(ctx.carry), of_this_rank(ds1, pieces)
        dE = torch.zeros_like(of_sequence(ds, pieces, 0))
        if carry:
            dE = carry.entry_gradient(do, carry.entry)
            dE = dE + apply_transposed(carry.across(), of_sequence(ds, pieces, 0))
        dB = exit_gradient(saved[ctx.As], call.gathered(dE), call.rank)
        ds = added(ds, pieces, -1, dB)

        since = _now(do)
        *gradients, of_start = ctx.main.gradients(do, ds)
        if carry:
            after = of_sequence(ds, pieces, 0)  # what the state after its first sequence gets
            if call.family.BESIDE:
                with _beside(do.device, since):
                    carry.find_gradients(do, carry.entry, after)
            carry.add_gradients(gradients, do, carry.entry, after)
        learns = ctx.needs_input_grad[1]
        ds0 = s0_gradient(of_start, ds1, pieces, ctx.s0_dtype) if learns else None
        return None, ds0, *gradients


def _now(x):
    """An event of x's GPU, now; None on a CPU."""
    return torch.cuda.current_stream(x.device).record_event() if x.is_cuda else None


@contextlib.contextmanager
def _beside(device, since):
    """Launches on a stream of its own, beside all that is launched after the event `since`.

    Chains of short steps along the tokens leave most of a GPU to others.
    """
    if since is None:
        yield
        return
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_event(since)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


@functools.cache
def _side_stream(device):
    return torch.cuda.Stream(device, priority=-1)  # before the main pass, which waits for it
