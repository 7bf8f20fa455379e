"""WKV-6 as matrix products, in plain torch: for CPU tensors, and for float64 on any device.

A chunk of tokens sees three things: the state before it (one product with r, decayed to each
token), its own tokens (below), and itself through the bonus. Within a chunk, tokens meet in
pairs of neighbouring runs of 1, 2, 4, … tokens: what the left run leaves behind at its end, the
right run reads. Every decay is then exp of a sum of log decays, at most 1: nothing overflows and
any w ≤ 0 is exact. The usual exp(w[0] + … + w[t]) / exp(w[0] + … + w[s]) divides by a number
that strong decays bring down to zero.
"""

import torch
from torch.nn import functional as F

from ..runtime.precision import product, sum_dtype
from ..runtime.running_sums import running_sums
from .options import takes_options

CHUNK = 64  # tokens; the products within a chunk then cost as much as those with the state


@takes_options()
def wkv6_doubling(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv6`, on any device, with gradients for every argument.

    Computes in float64 where r is float64, else in float32.
    """
    (B, T, H, K), V = r.shape, v.shape[3]
    real = sum_dtype(r.dtype)
    C = min(CHUNK, 1 << (T - 1).bit_length())
    n = -(-T // C)
    # [B, H, n, C, K or V]; a padded token has decay 1 and k = 0, so the state passes it unchanged.
    r, k, x, w = (_chunks(y.to(real), n, C) for y in (r, k, v, w))
    u = u.to(real)[:, None, None]  # [H, 1, 1, K]
    s = r.new_zeros(B, H, K, V) if s0 is None else s0.to(real)

    left_behind = product((k * _to_end(w)).mT, x)  # [B, H, n, K, V]
    across = w.sum(-2).exp()  # [B, H, n, K]: what a whole chunk multiplies the state by
    before = []
    for c in range(n):
        before.append(s)
        s = across[:, :, c, :, None] * s + left_behind[:, :, c]

    o = product(r * _from_start(w), torch.stack(before, 2))
    o = o + (r * u * k).sum(-1, keepdim=True) * x
    L = 1
    while L < C:
        o = o + _right_reads_left(r, k, x, w, L)
        L *= 2
    return o.flatten(2, 3)[:, :, :T].transpose(1, 2).to(v.dtype), s


def _chunks(x, n, C):
    """[B, T, H, N] → [B, H, n, C, N], with zeros after the last token."""
    x = F.pad(x, (0, 0, 0, 0, 0, n * C - x.shape[1]))
    return x.unflatten(1, (n, C)).permute(0, 3, 1, 2, 4)


def _from_start(w):
    """The decay from a run's start to just before each of its tokens: exp(0), exp(w[0]), …"""
    return running_sums(F.pad(w[..., :-1, :], (0, 0, 1, 0))).exp()


def _to_end(w):
    """The decay from just after each token to the end of its run: …, exp(w[-1]), exp(0)."""
    return running_sums(F.pad(w[..., 1:, :], (0, 0, 0, 1)).flip(-2)).flip(-2).exp()


def _right_reads_left(r, k, v, w, L):
    """What every second run of L tokens reads from the run before it; zeros for the others."""
    runs = [x.unflatten(3, (-1, 2, L)) for x in (r, k, v, w)]  # [B, H, n, pairs, 2, L, N]
    right = runs[0][..., 1, :, :] * _from_start(runs[3][..., 1, :, :])
    left = runs[1][..., 0, :, :] * _to_end(runs[3][..., 0, :, :])
    read = product(product(right, left.mT), runs[2][..., 0, :, :])
    return torch.stack([torch.zeros_like(read), read], 4).flatten(3, 5)
