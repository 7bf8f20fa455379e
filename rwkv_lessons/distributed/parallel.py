"""`sequence_parallel`: an operation for the tokens of one rank, and its gradients."""

import contextlib
import functools
import inspect
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..runtime.precision import outside_autocast
from . import rwkv6, rwkv7, states_first
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
from .pieces import Pieces, pieces_of

__all__ = ["DeadRank", "sequence_parallel"]


def sequence_parallel(operation, group=None, *, timeout=60.0):
    """Makes of `wkv6` or `wkv7` a function of the tokens of one rank.

    Ranks hold consecutive runs of tokens, in their order in the group, as many as they like but at
    least one. Each calls the function with its own; the parameter u of RWKV-6 is the same on all.

        mix = sequence_parallel(wkv6, group)
        o, s1 = mix(r, k, v, w, u)

    Args:
        operation: `wkv6`, `wkv7`, or one of their methods, as `wkv6_chunked`.
        group: a process group of torch.distributed with gloo (CPU) or NCCL (GPU); a `DeviceMesh` of
            one dimension will do; None: all processes.
        timeout: seconds to wait for the other ranks. With NCCL the GPU waits, not this process:
            there `init_process_group(timeout=…)` is the limit.

    Returns:
        A function with the operation's arguments: r, k, v, w and so on `[B, this rank's T, H, …]`.
        Different are

        - s0: the state before the first token of all; ranks that do not hold it do not read s0.
        - cu_seqlens: of all ranks' tokens, the same on every rank, its numbers read by the host;
          s0 is `[S, H, K, V]` of all sequences, and a rank reads those that begin on it.
        - start: with cu_seqlens, this rank's first token counted over all ranks; if None, ranks
          hold equally many.

        It returns o `[B, T, H, V]` and s1, the state after this rank's last token (on the last
        rank, after all), float32. Packed, s1 is `[S, H, K, V]`: the state of each sequence after
        its last token here, and s0 or zeros of those that have none.

    Gradients are those of the sum of all ranks' losses. A rank's gradient of u is its own part: add
    them up as for any parameter that ranks share. Every rank has to run the backward pass, also
    where its part of the loss is zero; second gradients raise a RuntimeError. The host reads how
    far decays reach, so that a call cannot be captured in a CUDA graph.

    Exact to the dtype: decays of at least 2^-32 (float32: 2^-64, float64: 2^-128) since a rank's
    first token are followed, smaller ones taken for zero. o is rounded twice where it is corrected.

    Raises:
        TypeError, ValueError: as the operation; or the operation is neither.
        DeadRank: another rank has ended, or did not answer in time. It is a RuntimeError.
    """
    family = next((x for x in (rwkv6, rwkv7) if _takes(operation, x.INPUTS)), None)
    if family is None:
        raise TypeError(f"operation must be wkv6, wkv7 or one of their methods, got {operation}")
    if hasattr(group, "get_group"):
        group = group.get_group()

    @outside_autocast
    @functools.wraps(operation)
    def mix(*given, s0=None, cu_seqlens=None, start=None, **options):
        count = len(family.INPUTS)
        if len(given) not in (count, count + 1):
            wanted = ", ".join(family.INPUTS)
            raise TypeError(f"needs {wanted} and, if any, s0: got {len(given)} arguments")
        inputs, s0 = given[:count], given[count] if len(given) > count else s0
        return _run(operation, family, group, timeout, inputs, s0, cu_seqlens, start, options)

    return mix


def _takes(operation, names):
    try:
        return tuple(inspect.signature(operation).parameters)[: len(names)] == names
    except (TypeError, ValueError):  # not a function, or one of C's
        return False


@dataclass(frozen=True)
class Call:
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

    def gathered(self, x):
        return gathering(x, self.group, self.timeout)()


def _run(operation, family, group, timeout, inputs, s0, cu_seqlens, start, options):
    r, v = inputs[0], inputs[family.V]
    (B, T, H, K), V = r.shape, v.shape[-1]
    rank = dist.get_rank(group)
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"r must have B = 1 where cu_seqlens is given, got B = {B}")
        start = rank * T if start is None else start
        cu_seqlens = torch.as_tensor(cu_seqlens).tolist()
    pieces = pieces_of(T, rank, cu_seqlens, start)
    if s0 is not None:
        S = B if pieces.sequences is None else pieces.sequences
        if s0.shape != (S, H, K, V):
            letters = "B" if pieces.sequences is None else "S"
            wanted = f"[{letters}, H, K, V] = {[S, H, K, V]}"
            raise ValueError(f"s0 must be {wanted}, got {list(s0.shape)}")
    call = Call(operation, family, group, timeout, pieces, options)
    way = SequenceParallel
    if states_first.suits(call, inputs, s0):
        way = states_first.StatesFirst
    return way.apply(call, s0, *inputs)


class SequenceParallel(torch.autograd.Function):
    """Main pass, gather, correction; backward the correction's gradients, gather, main pass.

    The main pass has a graph of its own within this node, so that what the correction adds to the
    gradients of the first tokens is added in place.
    """

    @staticmethod
    def forward(ctx, call, s0, *inputs):
        pieces, wanted = call.pieces, any(ctx.needs_input_grad)
        with torch.set_grad_enabled(wanted):
            leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            at_start = _starting_states(pieces, s0, leaves[0], leaves[call.family.V])
            if at_start is not None:
                at_start.requires_grad_(s0 is not None and s0.requires_grad)
            carry, given = None, (call, leaves, pieces.lengths[0])
            if pieces.enters and not call.family.BESIDE:
                # Before the main pass: what it says about the reach is here when that is launched.
                carry = call.family.Carry(*given)
            bounds, since = pieces.bounds(inputs[0].device), _now(inputs[0])
            o0, ends = call.operation(*leaves, at_start, cu_seqlens=bounds, **call.options)
            if pieces.enters and call.family.BESIDE:
                with _beside(inputs[0].device, since):
                    carry = call.family.Carry(*given)

        o, states = o0.detach(), ends.detach()
        B, V = _of_sequence(states, pieces, -1), states.shape[-1]
        A = carry.across() if carry else None
        sent = A if pieces.passes else B.new_zeros(*B.shape[:-1], call.family.columns(B))
        As, Bs = unpack(call.gathered(pack(sent, B)), V)
        E = None
        if carry:
            E = entry_state(As, Bs, call.rank)
            o = carry.correct(o, E)
            states = _added(states, pieces, 0, apply(A, E))
        ctx.call, ctx.carry, ctx.across, ctx.entry, ctx.As = call, carry, A, E, As.clone()
        ctx.graph = (leaves, at_start, o0, ends) if wanted else None
        ctx.s0_dtype = None if s0 is None else s0.dtype
        ctx.set_materialize_grads(False)
        return o, _all_sequences(states, pieces, s0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, ds1):
        call, carry, pieces = ctx.call, ctx.carry, ctx.call.pieces
        leaves, at_start, o0, ends = ctx.graph
        do = torch.zeros_like(o0) if do is None else do.contiguous()
        ds_all = ds1
        ds = torch.zeros_like(ends) if ds1 is None else _of_this_rank(ds1, pieces)
        dE = torch.zeros_like(_of_sequence(ends, pieces, 0))
        if carry:
            dE = carry.entry_gradient(do, ctx.entry)
            dE = dE + apply_transposed(ctx.across, _of_sequence(ds, pieces, 0))
        dB = exit_gradient(ctx.As, call.gathered(dE), call.rank)
        ds = _added(ds, pieces, -1, dB)

        since = _now(do)
        asked = [x for x in (*leaves, at_start) if x is not None and x.requires_grad]
        found = dict(zip(map(id, asked), _gradients((o0, ends), asked, (do, ds)), strict=True))
        gradients = [found.get(id(x)) for x in leaves]
        if carry:
            after = _of_sequence(ds, pieces, 0)  # what the state after its first sequence gets
            if call.family.BESIDE:
                with _beside(do.device, since):
                    carry.find_gradients(do, ctx.entry, after)
            carry.add_gradients(gradients, do, ctx.entry, after)
        ds0 = None
        if ctx.s0_dtype is not None and ctx.needs_input_grad[1]:
            ds0 = _s0_gradient(found.get(id(at_start)), ds_all, ends, pieces, ctx.s0_dtype)
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


def _gradients(outputs, inputs, given):
    if not inputs:
        return []
    return torch.autograd.grad(outputs, inputs, given)


def _starting_states(pieces, s0, r, v):
    """The states that this rank's sequences start from, zeros for one that began elsewhere."""
    if s0 is None:
        return None
    if pieces.sequences is None:
        return None if pieces.enters else s0.detach()
    here = s0.detach()[pieces.first : pieces.last + 1].clone()
    if pieces.enters:
        here[0] = 0
    return here


def _of_sequence(states, pieces, n):
    """The states `[B, H, K, V]` of the first (0) or the last (-1) sequence here."""
    if pieces.sequences is None:
        return states
    return states[:1] if n == 0 else states[-1:]


def _added(states, pieces, n, x):
    if pieces.sequences is None:
        return states + x
    states = states.clone()
    states[n] += x[0]
    return states


def _all_sequences(states, pieces, s0):
    if pieces.sequences is None:
        return states.clone()
    out = states.new_zeros(pieces.sequences, *states.shape[1:])
    if s0 is not None:
        out.copy_(s0)
    out[pieces.first : pieces.last + 1] = states
    return out


def _of_this_rank(ds1, pieces):
    return ds1 if pieces.sequences is None else ds1[pieces.first : pieces.last + 1]


def _s0_gradient(of_start, ds1, ends, pieces, dtype):
    """ds0: of sequences without a token here s1 is s0."""
    if pieces.sequences is None:
        out = torch.zeros_like(ends) if of_start is None else of_start
        return out.to(dtype)
    out = ends.new_zeros(pieces.sequences, *ends.shape[1:]) if ds1 is None else ds1.clone()
    out[pieces.first : pieces.last + 1] = of_start
    if pieces.enters:
        out[pieces.first] = 0
    return out.to(dtype)
