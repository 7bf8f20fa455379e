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
