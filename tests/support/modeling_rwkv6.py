"""RWKV-6 in Hugging Face's layout: the recurrence is a function of the module, found by name."""

import torch
from support.modeling_rwkv import Model, SelfAttention, parameter


def rwkv6_linear_attention(training, receptance, key, value, time_decay, time_first, state):
    """Out `[B, T, H, N]` and state `[B, H, K, V]`, float32; no gradient through the state."""
    B, T, _ = receptance.shape
    H, N = time_first.shape
    r, k, v, x = (y.float().view(B, T, H, N) for y in (receptance, key, value, time_decay))
    decay, bonus = torch.exp(-torch.exp(x)), time_first.float()[:, :, None]
    out = []
    for t in range(T):
        kv = k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append((r[:, t, :, None, :] @ (bonus * kv + state))[:, :, 0])
        state = (kv + decay[:, t, :, :, None] * state).detach()
    return torch.stack(out, 1), state


class Rwkv6SelfAttention(SelfAttention):
    """Mixing and decay come from the data, each through a product of two thin matrices."""

    def __init__(self, config, layer_id):
        super().__init__(config, layer_id)
        C, rank = config.hidden_size, 4
        self.time_maa_x, self.time_maa = parameter(1, 1, C), parameter(5, 1, 1, C)
        self.time_maa_w1, self.time_maa_w2 = parameter(C, 5 * rank), parameter(5, rank, C)
        self.time_decay = parameter(1, 1, C, scale=2.0)
        self.time_decay_w1, self.time_decay_w2 = parameter(C, rank), parameter(rank, C)

    def mix(self, hidden, change):
        B, T, _ = hidden.shape
        share = torch.tanh((hidden + change * self.time_maa_x) @ self.time_maa_w1)
        share = torch.einsum("btsr,src->sbtc", share.view(B, T, 5, -1), self.time_maa_w2)
        w, k, v, r, g = hidden + change * (self.time_maa + share)
        return r, k, v, g, self.time_decay + torch.tanh(w @ self.time_decay_w1) @ self.time_decay_w2

    def recurrence(self, receptance, key, value, time_decay, state):
        return rwkv6_linear_attention(
            self.training, receptance, key, value, time_decay, self.time_faaaa, state
        )


class Rwkv6ForCausalLM(Model):
    def __init__(self, config):
        super().__init__(Rwkv6SelfAttention, config)
