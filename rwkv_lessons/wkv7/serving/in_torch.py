"""The serving calls in torch, on any device: the host reads lengths and indices.

Sequences are computed one by one, and tokens in tensors of the same sizes, so that neither the rest
of the batch nor the way in which a token came, alone or as a draft, changes its bits.
"""

import torch

from ...runtime.precision import product
from ...sequences.states.pool import rounded
from ..options import log_decay
from ..wy import wkv7_wy

FEW = 16  # tokens, of which matrix products are not worth it


def with_w0(w, w0):
    return w if w0 is None else w.float() + w0.float()


def step(tokens, t, s, scale, decay):
    """o `[H, V]` of token t and the state after it, from `[…, H, K]` tensors and s `[H, K, V]`."""
    r, w, k, v, a, b = (x[t].float() for x in tokens)
    z = product(a[:, None], s)  # [H, 1, V]
    s = log_decay(w, decay).exp()[..., None] * s + b[..., None] * z
    s = s + k[..., None] * v[:, None]
    return product(scale * r[:, None], s)[:, 0], s


def one_sequence(tokens, s, scale, decay):
    """o `[n, H, V]` of the tokens `[n, H, K]` of a sequence, and the state after them."""
    if len(tokens[0]) > FEW:
        o, s = wkv7_wy.checked(*(x[None] for x in tokens), s[None], None, scale, decay)
        return o[0], s[0]
    o = []
    for t in range(len(tokens[0])):
        o_t, s = step(tokens, t, s, scale, decay)
        o.append(o_t)
    return torch.stack(o), s


def serving_in_torch(r, w, k, v, a, b, w0, state_pool, indices, cu_seqlens, seeds, scale, decay):
    """o, zeros in rows of padding, and the pool in place."""
    o = torch.zeros_like(v, memory_format=torch.contiguous_format)
    ends, inputs = cu_seqlens.tolist(), (r, with_w0(w, w0), k, v, a, b)
    for i, slot in enumerate(indices.tolist()):
        start, end = ends[i], ends[i + 1]
        if slot < 0 or end == start:
            continue
        tokens = [x[0, start:end] for x in inputs]
        o[0, start:end], s = one_sequence(tokens, state_pool[slot].float(), scale, decay)
        state_pool[slot] = in_pool(s, state_pool, seeds, i, end - start - 1)
    return o


def drafts_in_torch(
    r, w, k, v, a, b, w0, state_pool, indices, accepted, seeds, scale, decay, write
):
    """o of drafts `[S, T, H, V]`, and where `write` the pool in place after `accepted` of them."""
    o = torch.zeros_like(v, memory_format=torch.contiguous_format)
    inputs = (r, with_w0(w, w0), k, v, a, b)
    counts = [r.shape[1]] * len(r) if accepted is None else accepted.tolist()
    for i, slot in enumerate(indices.tolist()):
        if slot < 0:
            continue
        s, tokens = state_pool[slot], [x[i] for x in inputs]
        for t in range(counts[i]):
            o[i, t], s = step(tokens, t, s.float(), scale, decay)
            s = in_pool(s, state_pool, seeds, i, t)
        if write:
            state_pool[slot] = s
    return o


def in_pool(s, state_pool, seeds, i, t):
    """The state of sequence i after token t in the pool's dtype."""
    seeds = None if seeds is None else seeds[i : i + 1] + t
    return rounded(s[None], state_pool.dtype, seeds)[0]
