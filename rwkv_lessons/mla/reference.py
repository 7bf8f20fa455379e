"""Latent attention as defined, in plain torch: expand keys and values of every head, then attend.

Autograd gives the reference gradients.
"""

import torch

from .arguments import check_arguments, gather_cache, held, visible


def mla_reference(q, q_rope, latent, k_rope, w_k, w_v, *, scale, **which):
    """Same arguments and results as `mla`, one sequence at a time.

    Computes in float64 where q is float64, else in float32; on any device, gradients included.
    """
    sizes = check_arguments(q, q_rope, latent, k_rope, w_k, w_v, scale=scale, **which)
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    latent, k_rope = gather_cache(latent, k_rope, which.pop("block_table", None))
    seen = visible(sizes, device=q.device, **_both(which))
    empty = ~held(sizes, device=q.device, **_both(which))[..., None]
    w_v = w_v.to(real)

    o, lse = [], []
    for b in range(sizes.B):
        # A slot without a token may hold anything, and 0 · NaN is NaN.
        c, r = (x[b].to(real).masked_fill(empty[b], 0) for x in (latent, k_rope))
        if w_k is None:  # q is absorbed: the latent itself is the key of every head
            k = c.expand(sizes.H, -1, -1)
        else:
            k = torch.einsum("nr,hkr->hnk", c, w_k.to(real))
        v = torch.einsum("nr,hvr->hnv", c, w_v)
        s = torch.einsum("mhk,hnk->mhn", q[b].to(real), k)
        s = (s + torch.einsum("mhp,np->mhn", q_rope[b].to(real), r)) * scale
        p, lse_b = masked_softmax(s, seen[b][:, None])
        o.append(torch.einsum("mhn,hnv->mhv", p, v))
        lse.append(lse_b)
    if not o:
        return q.new_empty(0, sizes.M, sizes.H, sizes.V), q.new_empty(q.shape[:3], dtype=real)
    return torch.stack(o).to(q.dtype), torch.stack(lse)


def masked_softmax(s, seen):
    """The softmax of scores s over the `seen`, and its log-sum-exp.

    A row that sees nothing has zeros and -inf.
    """
    s = s.masked_fill(~seen, -torch.inf)
    top = s.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).min)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.where(total > 0, 1), (top + total.log())[..., 0]


def _both(which):
    return {"lengths": which.get("lengths"), "left_padding": which.get("left_padding")}
