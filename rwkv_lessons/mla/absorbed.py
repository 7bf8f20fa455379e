"""Latent attention without keys and values, in plain torch: the weights move to the query.

    q · (w_k c) = (w_kᵀ q) · c        and        Σ p (w_v c) = w_v (Σ p c)

What every head then reads is the latent c itself, once as key and once as value, so the heads of
a sequence are the rows of one matrix: four products per sequence, and the cache stays as small as
it is stored. It pays while the queries are few: see `break_even` in this package.
"""

import torch

from ..runtime.precision import outside_autocast, product, sum_dtype
from .arguments import check_arguments, filled_slots, gather_cache, visible
from .cache import attend_plainly
from .reference import masked_softmax


def mla_absorbed(
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
    """Same arguments and results as `mla`, on any device, gradients included.

    Computes in float64 where q is float64, else in float32. Needs B·M·H·N scores of memory.
    """
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    which = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    more = {"scales": scales, "tokens": tokens}
    sizes = check_arguments(*tensors, scale=scale, **which, **more)
    return attend_plainly(absorbed, tensors, sizes, scale, which, **more)


@outside_autocast
def absorbed(
    q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, lengths, left_padding, block_table=None
):
    """`mla_absorbed` of arguments that were checked."""
    which = {"lengths": lengths, "left_padding": left_padding}
    real = sum_dtype(q.dtype)
    B, M, H, N = sizes.B, sizes.M, sizes.H, sizes.N
    latent, k_rope = gather_cache(latent, k_rope, block_table)
    # A slot without a token may hold anything, and 0 · NaN is NaN.
    empty = ~filled_slots(sizes, device=q.device, **which)[..., None]
    c, r = (x.to(real).masked_fill(empty, 0) for x in (latent, k_rope))
    q = absorb(q, w_k).to(real).reshape(B, M * H, sizes.R)
    q_rope = q_rope.to(real).reshape(B, M * H, sizes.P)

    s = (product(q, c.mT) + product(q_rope, r.mT)) * scale  # [B, M·H, N]
    is_visible = visible(sizes, device=q.device, **which)[:, :, None]  # the same for every head
    p, lse = masked_softmax(s.view(B, M, H, N), is_visible)
    o = product(p.view(B, M * H, N), c).view(B, M, H, sizes.R)
    return head_by_head(o, w_v.to(real).mT).to(w_v.dtype).contiguous(), lse


@outside_autocast
def absorb(q, w_k):
    """The query in the latent space: q `[B, M, H, K]` times w_k `[H, K, R]`, head by head.

    In float32 on a CPU, in q's own dtype (with float32 sums) on a GPU; q itself if w_k is None.
    """
    if w_k is None:
        return q
    if not q.is_cuda and q.dtype != torch.float64:
        q, w_k = q.float(), w_k.float()
    return head_by_head(q, w_k)


def head_by_head(x, w):
    """x `[B, M, H, K]` times w `[H, K, R]`, the matrix of each head: `[B, M, H, R]`."""
    return product(x.flatten(0, 1).transpose(0, 1), w).transpose(0, 1).unflatten(0, x.shape[:2])
