"""The serving call in torch, on any device: the host reads lengths and indices."""

import torch

from ...runtime.precision import product
from ...sequences.states.pool import rounded
from ..doubling import wkv6_doubling
from ..options import log_decay

FEW = 16  # tokens, of which matrix products are not worth it


def one_sequence(tokens, u, s, scale, raw_decay):
    """o `[n, H, V]` of the tokens `[n, H, K]` of a sequence, and the state after them."""
    if len(tokens[0]) > FEW:
        inputs = (*(x[None] for x in tokens), u)
        o, s = wkv6_doubling.checked(*inputs, s[None], None, scale, raw_decay)
        return o[0], s[0]
    o = []
    for t in range(len(tokens[0])):
        r, k, v, w = (x[t].float() for x in tokens)
        kv = k[..., None] * v[:, None]
        o.append(product(scale * r[:, None], s + u.float()[..., None] * kv)[:, 0])
        w = log_decay(w) if raw_decay else w
        s = w.exp()[..., None] * s + kv
    return torch.stack(o), s


def serving_in_torch(r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds, scale, raw_decay):
    """o, zeros in rows of padding, and the pool in place."""
    o = torch.zeros_like(v, memory_format=torch.contiguous_format)
    ends = cu_seqlens.tolist()
    w = w if w0 is None else w.float() + w0.float()
    for i, slot in enumerate(indices.tolist()):
        start, end = ends[i], ends[i + 1]
        if slot < 0 or end == start:
            continue
        tokens = [x[0, start:end] for x in (r, k, v, w)]
        o[0, start:end], s = one_sequence(tokens, u, state_pool[slot].float(), scale, raw_decay)
        last = None if seeds is None else seeds[i : i + 1] + (end - start - 1)
        state_pool[slot] = rounded(s[None], state_pool.dtype, last)[0]
    return o
