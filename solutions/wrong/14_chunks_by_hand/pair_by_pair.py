"""The right scores, with an exp for every pair of tokens and channel."""

import torch
from torch.nn import functional as F


def product(r, k, w, m):
    after = w.cumsum(-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    C = r.shape[-2]
    later = torch.ones(C, C, dtype=torch.bool).triu()[..., None]
    decay = before[..., :, None, :] - after[..., None, :, :]
    decay = decay.masked_fill(later, -torch.inf).exp()
    return (r[..., :, None, :] * decay * k[..., None, :, :]).sum(-1)
