"""Before a call computes anything: do all ranks of the group make the same one?

A gather of tensors of unequal sizes ends the process, or waits for good. So the sizes are gathered
first, 88 bytes a rank. On a GPU, where the host would wait for that, it is done for the first call
of its kind alone, and for packed sequences, whose borders the host reads anyway.
"""

import zlib

import torch

from ..runtime.arguments import DTYPES
from .maps import gathering

SAME = ("operation", "B", "H", "K", "V", "dtype", "requires_grad", "options", "cu_seqlens")


def tokens_of_ranks(group, timeout, agreed, same, start, device):
    """How many tokens each rank has; None where a call of this kind was `agreed` upon before.

    Args:
        agreed: a table of calls upon which all ranks agreed, and which all of them have.
        same: what must be the same on all ranks, by the names `SAME`; and T.
        start: what the caller takes for this rank's first token, or None.

    Raises, on all ranks:
        ValueError: it is not the same, or a `start` is wrong.
        DeadRank: see `gathering`.
    """
    kind = tuple(_as_number(same[name]) for name in SAME)
    if device.type == "cuda" and same["cu_seqlens"] is None and kind in agreed:
        return None
    mine = [*kind, same["T"], -1 if start is None else start]
    gathered = gathering(torch.tensor(mine, device=device)[None], group, timeout)()
    *of_kind, tokens, starts = gathered.flatten(0, 1).T.tolist()
    for name, numbers in zip(SAME, of_kind, strict=True):
        if len(set(numbers)) > 1:
            shown = _shown(name, numbers)
            raise ValueError(f"{name} must be the same on all ranks, got {shown} on ranks 0, 1, …")
    for rank, rank_start in enumerate(starts):
        right = sum(tokens[:rank])
        if rank_start not in (-1, right):
            before = "the number of tokens on the ranks before it"
            raise ValueError(f"start must be {right} on rank {rank}, {before}, got {rank_start}")
    agreed[kind] = True
    return tokens


def _as_number(x):
    if isinstance(x, torch.dtype):
        return DTYPES.index(x)
    return x if isinstance(x, int) else zlib.crc32(repr(x).encode())


def _shown(name, numbers):
    if name == "dtype":
        return [str(DTYPES[n]).removeprefix("torch.") for n in numbers]
    if name == "requires_grad":
        return [bool(n) for n in numbers]
    return numbers if name in SAME[:5] else "others"
