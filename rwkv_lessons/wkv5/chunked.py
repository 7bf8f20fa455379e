"""WKV-5 as matrix products, in plain torch: for CPU tensors, and for gradients on any device.

A chunk of tokens sees three things: the state before it (one product with r, decayed to each
token), its own tokens (below), and itself through the bonus. Within a chunk, tokens meet in
pairs of neighbouring runs of 1, 2, 4, … tokens: what the left run leaves behind at its end, the
right run reads. Every decay is then exp(w) to a power of at least 0, so nothing overflows and
any w ≤ 0 is exact; a factor exp(-w), which would divide by the decay, never appears.
"""

import torch
from torch.nn import functional as F

from ..runtime.precision import outside_autocast, product, sum_dtype
from .arguments import check_arguments

CHUNK = 64  # tokens; the products within a chunk then cost as much as those with the state


@outside_autocast
def wkv5_chunked(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv5`, on any device, with gradients for every argument.

    Computes in float64 where r is float64, else in float32.
    """
    B, T, H, K, V = check_arguments(r, k, v, w, u, s0)
    real = sum_dtype(r.dtype)
    C = min(CHUNK, 1 << (T - 1).bit_length())
    n = -(-T // C)
    r, k, x = (_chunks(y.to(real), n, C) for y in (r, k, v))  # [B, H, n, C, K or V]
    w, u = w.to(real).clamp(min=-1e4), u.to(real)  # exp(-1e4) is 0, and 0 · -1e4 is not NaN
    s = r.new_zeros(B, H, K, V) if s0 is None else s0.to(real)

    # The tokens that each chunk really has: the last one may be shorter.
    length = torch.full((n, 1), C, device=r.device)
    length[-1] = T - (n - 1) * C
    position = torch.arange(C, device=r.device)
    to_end = (length - 1 - position).clamp(min=0)  # [n, C]
    left_behind = product((k * _decay(w, to_end)).mT, x)  # [B, H, n, K, V]
    across = _decay(w, length)  # [H, n, 1, K]: what a whole chunk multiplies the state by
    before = []
    for c in range(n):
        before.append(s)
        s = across[:, c].transpose(-1, -2) * s + left_behind[:, :, c]

    o = product(r * _decay(w, position[None]), torch.stack(before, 2))
    o = o + (r * u[:, None, None] * k).sum(-1, keepdim=True) * x
    L = 1
    while L < C:
        o = o + _right_reads_left(r, k, x, w, L)
        L *= 2
    return o.flatten(2, 3)[:, :, :T].transpose(1, 2).to(v.dtype).contiguous(), s.contiguous()


def _chunks(x, n, C):
    """[B, T, H, N] → [B, H, n, C, N], with zeros after the last token."""
    x = F.pad(x, (0, 0, 0, 0, 0, n * C - x.shape[1]))
    return x.unflatten(1, (n, C)).permute(0, 3, 1, 2, 4)


def _decay(w, tokens):
    """exp(w) to the power `tokens`: [H, K] and [..., C] → [H, ..., C, K]."""
    return torch.exp(w.view(len(w), *[1] * tokens.ndim, -1) * tokens[..., None])


def _right_reads_left(r, k, v, w, L):
    """What every second run of L tokens reads from the run before it; zeros for the others."""
    right = r.unflatten(3, (-1, 2, L))[:, :, :, :, 1]  # [B, H, n, pairs, L, K]
    left, value = (x.unflatten(3, (-1, 2, L))[:, :, :, :, 0] for x in (k, v))
    position = torch.arange(L, device=r.device)
    right = right * _decay(w, position)[:, None, None]
    left = left * _decay(w, L - 1 - position)[:, None, None]
    read = product(product(right, left.mT), value)
    return torch.stack([torch.zeros_like(read), read], 4).flatten(3, 5)
