"""Only the queries count from the middle, so that the start does not cancel."""

from torch.nn import functional as F


def product(r, k, w, m):
    after = w.cumsum(-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    left = r * (before - before[..., m : m + 1, :]).exp()
    return (left @ (k * (-after).exp()).mT).tril(-1)
