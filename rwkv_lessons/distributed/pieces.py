"""Which tokens of which sequences a rank has: plain numbers, known before anything is computed."""

from typing import NamedTuple

import torch


class Pieces(NamedTuple):
    """A rank's part of the tokens, cut at the borders of sequences."""

    first: int  # the sequence of its first token; 0 where nothing is packed
    last: int  # the sequence of its last token
    lengths: tuple[int, ...]  # tokens of each sequence here, of first … last
    enters: bool  # its first sequence began on another rank
    sequences: int | None  # of all ranks; None where nothing is packed

    @property
    def passes(self):
        """Whether what comes in at its start can go out at its end: one sequence all along."""
        return self.enters and len(self.lengths) == 1

    def bounds(self, device):
        """cu_seqlens of its own tokens; None where they are of one sequence."""
        if len(self.lengths) == 1:
            return None
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        return ends.to(device=device, dtype=torch.int32)


def pieces_of(T, rank, cu_seqlens, tokens):
    """The `Pieces` of a rank with T tokens.

    Args:
        cu_seqlens: numbers of all ranks' sequences, or None: the tokens of all ranks are one.
        tokens: of each rank; not read where cu_seqlens is None.
    """
    if cu_seqlens is None:
        return Pieces(0, 0, (T,), rank > 0, None)
    start, lengths, first = sum(tokens[:rank]), [], None
    end, total = start + T, sum(tokens)
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != total or cu_seqlens != sorted(cu_seqlens):
        raise ValueError(
            f"cu_seqlens must increase from 0 to {total}, the tokens of all ranks, got {cu_seqlens}"
        )
    for n, (a, b) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        here = min(b, end) - max(a, start)
        if here > 0:
            first = n if first is None else first
            lengths += [0] * (n - first - len(lengths)) + [here]
    enters = cu_seqlens[first] < start
    return Pieces(first, first + len(lengths) - 1, tuple(lengths), enters, len(cu_seqlens) - 1)


def split_tokens(T, ranks, first=1.0):
    """How many tokens each rank gets, as even as can be.

    Args:
        T: tokens of all ranks, at least one a rank.
        first: how many times as many the first rank gets: it has nothing to correct, and where
            nothing decays, the others have.
    """
    if T < ranks or first <= 0:
        raise ValueError(
            f"T must be at least {ranks}, one token a rank, got {T}, and first above 0, got {first}"
        )
    ends = [round(T * (first + n) / (first + ranks - 1)) for n in range(ranks)]
    ends = [min(max(end, n + 1), T - ranks + n + 1) for n, end in enumerate(ends)]
    return [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def starting_states(pieces, s0):
    """The states that this rank's sequences start from, zeros for one that began elsewhere."""
    if s0 is None:
        return None
    if pieces.sequences is None:
        return None if pieces.enters else s0.detach()
    here = s0.detach()[pieces.first : pieces.last + 1].clone()
    if pieces.enters:
        here[0] = 0
    return here


def of_sequence(states, pieces, n):
    """The states `[B, H, K, V]` of the first (0) or the last (-1) sequence here."""
    if pieces.sequences is None:
        return states
    return states[:1] if n == 0 else states[-1:]


def added(states, pieces, n, x):
    if pieces.sequences is None:
        return states + x
    states = states.clone()
    states[n] += x[0]
    return states


def all_sequences(states, pieces, s0):
    if pieces.sequences is None:
        return states.clone()
    out = states.new_zeros(pieces.sequences, *states.shape[1:])
    if s0 is not None:
        out.copy_(s0)
    out[pieces.first : pieces.last + 1] = states
    return out


def of_this_rank(ds1, pieces):
    return ds1 if pieces.sequences is None else ds1[pieces.first : pieces.last + 1]


def s0_gradient(of_start, ds1, pieces, dtype):
    """ds0 on this rank: zeros of what begins elsewhere; ds1 of a sequence without a token here."""
    if pieces.sequences is None:
        return (torch.zeros_like(ds1) if pieces.enters else of_start).to(dtype)
    out = ds1.clone()
    out[pieces.first : pieces.last + 1] = of_start
    if pieces.enters:
        out[pieces.first] = 0
    return out.to(dtype)
