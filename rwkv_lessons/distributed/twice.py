"""Packed sequences: each rank runs the operation on its last sequence first, then on all of them.

Only the state after the last sequence matters to later ranks, and only the gradient of the state
before the first one to earlier ranks. Where those sequences are short, computing them twice costs
less than a correction, any method can do it, and the results are those of one process:

    last sequence → gather → main pass
    gradient of the first sequence's entry state → gather → gradients of the main pass
"""

import functools

import torch

from ..runtime.precision import outside_autocast, sum_dtype
from .maps import entry_state, exit_gradient, unpack
from .pieces import added, all_sequences, of_this_rank, s0_gradient, starting_states
from .saved import Saved, SavedStep

MOST = 1 / 4  # of a rank's tokens in a sequence that is computed twice; 1 / 16 was measured


def suits(call):
    """Whether the first and the last sequence of the rank are two, and short."""
    pieces = call.pieces
    lengths = [pieces.lengths[-1], pieces.lengths[0] if pieces.enters else 0]
    return len(pieces.lengths) > 1 and max(lengths) <= MOST * sum(pieces.lengths)


class OperationTwice(torch.autograd.Function):
    """As `SequenceParallel`, for what `suits`; ranks of either kind understand each other."""

    @staticmethod
    def forward(ctx, call, s0, *inputs):
        (_, of_s0, *needs_gradient), pieces, saved = ctx.needs_input_grad, call.pieces, Saved()
        inputs = [x.detach() for x in inputs]
        r, V = inputs[0], inputs[call.family.V].shape[-1]
        size = len(pieces.lengths), r.shape[2], r.shape[3], V
        start = torch.zeros(size, dtype=sum_dtype(r.dtype), device=r.device)
        if s0 is not None:
            start.copy_(starting_states(pieces, s0))

        last = slice(r.shape[1] - pieces.lengths[-1], None)
        _, B = call.operation(*_tokens(inputs, last), start[-1:], **call.options)
        As, Bs = unpack(call.gathered(call.packed(None, B)), V)
        if pieces.enters:
            start[:1] = entry_state(As, Bs, call.rank)

        bounds = pieces.bounds(r.device)
        operation = functools.partial(call.operation, cu_seqlens=bounds, **call.options)
        main = SavedStep(saved)
        o, states = main.results(operation, (*inputs, start), (*needs_gradient, of_s0))
        if any(ctx.needs_input_grad):
            first = [*_tokens(inputs, slice(pieces.lengths[0])), start[:1]]
            ctx.first = [saved.add(x) for x in first]
            saved.leave(ctx, call, main, As, s0)
        return o, all_sequences(states, pieces, s0)

    @staticmethod
    @outside_autocast
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        with ctx.saved.of(ctx):
            return OperationTwice.gradients(ctx, do, ds1)

    @staticmethod
    def gradients(ctx, do, ds1):
        call, pieces, saved = ctx.call, ctx.call.pieces, ctx.saved
        ds = of_this_rank(ds1, pieces)
        dE = torch.zeros_like(ds[:1])
        if pieces.enters:
            *first, entry = (saved[n].detach() for n in ctx.first)
            with torch.enable_grad():
                results = call.operation(*first, entry.requires_grad_(), **call.options)
                d_results = do[:, : pieces.lengths[0]], ds[:1]
                (dE,) = torch.autograd.grad(results, entry, d_results)
        dB = exit_gradient(saved[ctx.As], call.gathered(dE), call.rank)
        *gradients, of_start = ctx.main.gradients(do, added(ds, pieces, -1, dB))
        learns = ctx.needs_input_grad[1]
        ds0 = s0_gradient(of_start, ds1, pieces, ctx.s0_dtype) if learns else None
        return None, ds0, *gradients


def _tokens(inputs, span):
    """Those of each input; parameters as they are."""
    return [x if x.ndim == 2 else x[:, span] for x in inputs]
