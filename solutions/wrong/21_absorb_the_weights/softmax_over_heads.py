"""The softmax runs over the heads."""

import torch


def absorbed(q, q_rope, latent, k_rope, w_k, w_v, scale):
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)
    s = q_latent @ latent.mT + q_rope @ k_rope.mT
    p = (s * scale).softmax(1)
    return torch.einsum("bhr,hvr->bhv", p @ latent, w_v)
