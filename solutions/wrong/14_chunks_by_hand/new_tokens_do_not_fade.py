"""The old state fades over the chunk, what the chunk adds does not."""

from torch.nn import functional as F


def with_state(r, k, v, w, s):
    after = w.cumsum(-2)
    before = F.pad(after[..., :-1, :], (0, 0, 1, 0))
    o = (r * before.exp()) @ s
    s1 = after[..., -1:, :].exp().mT * s + k.mT @ v
    return o, s1
