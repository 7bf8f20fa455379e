"""Sums over all tokens so far, where torch is to be deterministic on a GPU, too."""

import torch


def running_sums(x):
    """x.cumsum(-2)."""
    if not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return x.cumsum(-2)
    n = 1  # as many tokens as each sum has by now; torch refuses cumsum here
    while n < x.shape[-2]:
        x = torch.cat([x[..., :n, :], x[..., n:, :] + x[..., :-n, :]], -2)
        n *= 2
    return x
