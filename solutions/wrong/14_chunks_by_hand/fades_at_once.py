"""A token's key fades by the token's own decay before anyone has read it."""

import torch
from torch.nn import functional as F


def pairs(r, k, w):
    before = F.pad(w.cumsum(-2)[..., :-1, :], (0, 0, 1, 0))
    C = r.shape[-2]
    later = torch.ones(C, C, dtype=torch.bool).triu()[..., None]
    decay = before[..., :, None, :] - before[..., None, :, :]
    decay = decay.masked_fill(later, -torch.inf).exp()
    return (r[..., :, None, :] * decay * k[..., None, :, :]).sum(-1)
