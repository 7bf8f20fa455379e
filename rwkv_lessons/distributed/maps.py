"""Affine maps of states, S ↦ A S + B, one of each rank: gathered from all ranks, and composed.

A is `[B, H, K, 1]`, a decay of each key (RWKV-6), or `[B, H, K, K]`, a matrix (RWKV-7). Ranks send
A and B side by side, `[B, H, K, 1 or K, + V]`: at H = 64 and K = V = 64 1.06 MB or 2.1 MB.
"""

import datetime
import re

import torch
import torch.distributed as dist

# torch 2.13 renamed it.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class DeadRank(RuntimeError):
    """A rank of the group has ended, or does not answer."""


def gathering(x, group, timeout):
    """Begins to gather x of every rank; returns a function that waits, and returns all.

    Args:
        x: of the same shape on all ranks.
        timeout: seconds that the others may take, where this process waits for them: with gloo.
            With NCCL the GPU waits, and the limit is that of `init_process_group`.

    Returns:
        () → `[ranks, *x.shape]`. It raises DeadRank: the others were not there in time.
    """
    ranks, x = dist.get_world_size(group), x.contiguous()
    out = x.new_empty(ranks, *x.shape)

    def dead(problem):
        return DeadRank(
            f"rank {dist.get_rank(group)} of {ranks}: another rank of the group has ended, or was "
            f"not there within {timeout} s. Every rank must make the same calls, backward too; "
            f"start all of them again. {dist.get_backend(group)} says: {of_backend(problem)}"
        )

    try:
        work = _gather(out.flatten(0, 1), x, group=group, async_op=True)
    except (RuntimeError, ConnectionError) as problem:
        raise dead(problem) from problem

    def finish():
        try:
            if x.is_cuda:
                work.wait()
            else:
                work.wait(datetime.timedelta(seconds=timeout))
        except (RuntimeError, ConnectionError) as problem:
            raise dead(problem) from problem
        return out

    return finish


def of_backend(problem):
    """What a backend says, without the places in its own sources."""
    return re.sub(r"\[/[^\]]*\] ?", "", str(problem))


def apply(A, S):
    """A S."""
    return A * S if A.shape[-1] == 1 else A @ S


def apply_transposed(A, S):
    """Aᵀ S: what a gradient after the map is before it."""
    return A * S if A.shape[-1] == 1 else A.mT @ S


def pack(A, B):
    return torch.cat([A, B], -1)


def unpack(both, V):
    return both[..., :-V], both[..., -V:]


def entry_state(As, Bs, rank):
    """The state before this rank's tokens: the maps of the ranks before it, from the first on."""
    E = Bs[0]
    for A, B in zip(As[1:rank], Bs[1:rank], strict=True):
        E = apply(A, E) + B
    return E


def exit_gradient(As, dEs, rank):
    """The gradient of the state after this rank's tokens, from those of later entry states.

    Args:
        dEs: of each rank, the gradient of its entry state through what it computes itself.
    """
    dE = torch.zeros_like(dEs[0])
    for q in reversed(range(rank + 1, len(dEs))):
        dE = apply_transposed(As[q], dE) + dEs[q]
    return dE
