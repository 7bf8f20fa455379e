"""What a sequence on many GPUs costs, from a few rates: the forward pass, without overlap.

    main pass    n tokens, each its time
    summary      decays of as many tokens as are looked at, summed
    gather       a latency, and a map of every other rank over the link
    fold         those maps read from memory
    correction   the tokens that the entry state reaches, each its time

Where the entry state comes first, the summary are the states of all tokens, which a main pass on
its own would compute as well, and nothing is corrected.

The ranks run at the same time, and all maps are needed before anything is corrected: the slowest
main pass counts. A first rank with more tokens would only delay the others, so parts are best even.
"""

from typing import NamedTuple

FIRST_LOOK = 16384  # tokens whose decays are summed before it is known that more are not needed


class Rates(NamedTuple):
    """Of one GPU and its link, for a batch and heads of one size; seconds and bytes a second."""

    main: float  # seconds a token
    summary: float  # seconds a token whose decay is summed
    correction: float  # seconds a corrected token
    latency: float  # of a gather
    link: float  # bytes a second that a GPU receives
    memory: float  # bytes a second
    map_bytes: int  # of a rank's map
    states: float = 0.0  # seconds a token, of the states of segments
    after: float = 0.0  # seconds a token, of a main pass that is given these


class Costs(NamedTuple):
    """Seconds of each step, of the slowest rank, and how many times as fast as one GPU it is."""

    main: float
    summary: float
    gather: float
    fold: float
    correction: float
    total: float
    speedup: float


def map_bytes(B, H, K, V, version):
    """Bytes of a rank's map in float32: RWKV-6's decays, or RWKV-7's matrix, and a state."""
    return 4 * B * H * K * (V + (1 if version == 6 else K))


def forward(T, ranks, rates, reach=None):
    """The `Costs` of T tokens, as many on each rank.

    Args:
        reach: tokens that an entry state reaches; None: all, nothing decays.
    """
    n = T / ranks
    looked_at, reached = (n, n) if reach is None else (min(FIRST_LOOK, n), min(reach, n))
    summary, correction = looked_at * rates.summary, reached * rates.correction
    return _costs(T, ranks, rates, n * rates.main, summary, correction)


def states_first(T, ranks, rates):
    """The `Costs` of T tokens, as many on each rank, whatever decays."""
    n = T / ranks
    return _costs(T, ranks, rates, n * rates.after, n * rates.states, 0.0)


def _costs(T, ranks, rates, main, summary, correction):
    alone = T * rates.main
    if ranks == 1:
        return Costs(alone, 0.0, 0.0, 0.0, 0.0, alone, 1.0)
    gather = rates.latency + (ranks - 1) * rates.map_bytes / rates.link
    fold = (ranks - 1) * rates.map_bytes / rates.memory
    total = main + summary + gather + fold + correction
    return Costs(main, summary, gather, fold, correction, total, alone / total)
