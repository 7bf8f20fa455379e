"""One maximum for all rows: quiet rows vanish."""

import torch


def online(s, latent, BN):
    """softmax(s) @ latent, reading the columns of s once, BN at a time, and no block again.

    s [rows, N] are scores, latent is [N, R]; N need not be a multiple of BN. Returns [rows, R].
    """
    rows, N = s.shape
    m = torch.full((rows,), -torch.inf, dtype=s.dtype)  # the largest score so far
    total = torch.zeros(rows, dtype=s.dtype)  # the sum of exp(score − m) so far
    acc = torch.zeros(rows, latent.shape[1], dtype=s.dtype)  # and that of exp(score − m) · latent
    for n in range(0, N, BN):
        block = s[:, n : n + BN]
        larger = torch.maximum(m, block.max())
        p, shrink = torch.exp(block - larger[:, None]), torch.exp(m - larger)
        total = shrink * total + p.sum(1)
        acc = shrink[:, None] * acc + p @ latent[n : n + BN]
        m = larger
    return acc / total[:, None]
