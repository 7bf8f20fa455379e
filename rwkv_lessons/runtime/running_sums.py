"""Sums over all tokens so far, where torch is to be deterministic on a GPU, too."""

import torch


def running_sums(x, dim=-2):
    """x.cumsum(dim)."""
    if not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return x.cumsum(dim)
    n, tokens = 1, x.shape[dim]  # as many tokens as each sum has by now; torch refuses cumsum here
    while n < tokens:
        before = x.narrow(dim, 0, tokens - n)
        x = torch.cat([x.narrow(dim, 0, n), x.narrow(dim, n, tokens - n) + before], dim)
        n *= 2
    return x
