"""The mask is too weak: what it hides is seen a little."""

import torch


def attention(module, query, key, value, attention_mask, scaling, **_):
    K, V = module.qk_nope_head_dim, module.v_head_dim
    H, M, P = query.shape[1], query.shape[2], query.shape[3] - K
    latent, k_rope = key[:, 0], value[:, 0]
    w_k, w_v = module.kv_b_proj.weight.unflatten(0, (H, K + V)).split([K, V], 1)
    q, q_rope = query.split([K, P], -1)
    q_latent = (q @ w_k).flatten(1, 2)
    s = q_latent @ latent.mT + q_rope.flatten(1, 2) @ k_rope.mT
    s = s.unflatten(1, (H, M)) * scaling + attention_mask.clamp_min(-1) * scaling
    p = s.softmax(-1, dtype=torch.float32).to(query.dtype)
    o = (p.flatten(1, 2) @ latent).unflatten(1, (H, M)) @ w_v.mT
    return o.transpose(1, 2), None
