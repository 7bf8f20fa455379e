"""Sums over earlier blocks are not shrunk when the maximum grows."""

import torch


def online(s, latent, BN):
    rows, N = s.shape
    m = torch.full((rows,), -torch.inf, dtype=s.dtype)
    total = torch.zeros(rows, dtype=s.dtype)
    acc = torch.zeros(rows, latent.shape[1], dtype=s.dtype)
    for n in range(0, N, BN):
        block = s[:, n : n + BN]
        larger = torch.maximum(m, block.max(1).values)
        p, shrink = torch.exp(block - larger[:, None]), torch.exp(m - larger)
        total = shrink * total + p.sum(1)
        acc = acc + p @ latent[n : n + BN]
        m = larger
    return acc / total[:, None]
