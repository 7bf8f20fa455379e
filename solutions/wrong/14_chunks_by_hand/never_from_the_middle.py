"""Counts every block from its first token, on the diagonal too: the keys' factor overflows."""

from torch.nn import functional as F


def blocks(r, k, w, L):
    after = w.cumsum(-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    scores = r.new_zeros(*r.shape[:-1], r.shape[-2])
    for i in range(0, r.shape[-2], L):
        here = slice(i, i + L)
        start = before[..., i : i + 1, :]
        left = r[..., here, :] * (before[..., here, :] - start).exp()
        right = k[..., here, :] * (start - after[..., here, :]).exp()
        scores[..., here, here] = (left @ right.mT).tril(-1)
        left = r[..., here, :] * (before[..., here, :] - start).exp()
        right = k[..., :i, :] * (start - after[..., :i, :]).exp()
        scores[..., here, :i] = left @ right.mT
    return scores
