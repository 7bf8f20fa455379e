"""Queries count from their block's start, keys from its end: the block's own decay is lost."""

from torch.nn import functional as F


def blocks(r, k, w, L):
    after = w.cumsum(-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    scores = r.new_zeros(*r.shape[:-1], r.shape[-2])
    for i in range(0, r.shape[-2], L):
        here = slice(i, i + L)
        start = before[..., i + L // 2 : i + L // 2 + 1, :]
        left = r[..., here, :] * (before[..., here, :] - start).exp()
        right = k[..., here, :] * (start - after[..., here, :]).exp()
        scores[..., here, here] = (left @ right.mT).tril(-1)
        left = r[..., here, :] * (before[..., here, :] - before[..., i : i + 1, :]).exp()
        end = after[..., i + L - 1 : i + L, :]
        right = k[..., :i, :] * (end - after[..., :i, :]).exp()
        scores[..., here, :i] = left @ right.mT
    return scores
