"""Latent attention as defined, in plain torch: expand keys and values of every head, then attend.

Autograd gives the reference gradients.
"""

import torch

from ..runtime.precision import outside_autocast, product, sum_dtype
from .arguments import check_arguments, filled_slots, gather_cache, visible
from .cache import attend_plainly


def mla_reference(
    q,
    q_rope,
    latent,
    k_rope,
    w_k,
    w_v,
    *,
    scale,
    lengths=None,
    left_padding=None,
    block_table=None,
    scales=None,
    tokens=None,
):
    """Same arguments and results as `mla`, one sequence at a time.

    Computes in float64 where q is float64, else in float32; on any device, gradients included.
    """
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    which = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    more = {"scales": scales, "tokens": tokens}
    sizes = check_arguments(*tensors, scale=scale, **which, **more)
    return attend_plainly(reference, tensors, sizes, scale, which, **more)


@outside_autocast
def reference(
    q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, lengths, left_padding, block_table=None
):
    """`mla_reference` of arguments that were checked."""
    real = sum_dtype(q.dtype)
    latent, k_rope = gather_cache(latent, k_rope, block_table)
    is_visible = visible(sizes, lengths, left_padding, q.device)
    empty = ~filled_slots(sizes, lengths, left_padding, q.device)[..., None]
    w_v = w_v.to(real)

    o, lse = [], []
    for b in range(sizes.B):
        # A slot without a token may hold anything, and 0 · NaN is NaN.
        c, r = (x[b].to(real).masked_fill(empty[b], 0) for x in (latent, k_rope))
        if w_k is None:  # q is absorbed: the latent itself is the key of every head
            k = c.expand(sizes.H, -1, -1)
        else:
            k = of_each_head(c, w_k.to(real))
        v = of_each_head(c, w_v)
        of_q, of_rope = (x[b].to(real).transpose(0, 1) for x in (q, q_rope))  # [H, M, K or P]
        s = (product(of_q, k.mT) + product(of_rope, r.mT)) * scale  # [H, M, N]
        p, lse_b = masked_softmax(s, is_visible[b])
        o.append(product(p, v).transpose(0, 1))
        lse.append(lse_b.T)
    if not o:
        return q.new_empty(0, sizes.M, sizes.H, sizes.V), q.new_empty(q.shape[:3], dtype=real)
    return torch.stack(o).to(q.dtype), torch.stack(lse)


def of_each_head(c, w):
    """The keys or values `[H, N, K]` of latents c `[N, R]`, by w `[H, K, R]`."""
    return product(c, w.flatten(0, 1).T).unflatten(1, w.shape[:2]).transpose(0, 1)


def masked_softmax(s, is_visible):
    """The softmax of scores s over those that are visible, and its log-sum-exp.

    A row that sees nothing has zeros and -inf.
    """
    s = s.masked_fill(~is_visible, -torch.inf)
    top = s.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).min)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return e / total.where(total > 0, 1), (top + total.log())[..., 0]
