"""The right answer, but every head's values are made for every token."""

import torch


def absorbed(q, q_rope, latent, k_rope, w_k, w_v, scale):
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)
    s = q_latent @ latent.mT + q_rope @ k_rope.mT
    p = (s * scale).softmax(-1)
    v = torch.einsum("bnr,hvr->bnhv", latent, w_v)
    return torch.einsum("bhn,bnhv->bhv", p, v)
