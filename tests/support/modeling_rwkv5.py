"""RWKV-5 in Hugging Face's layout: the recurrence is a function of the module, found by name."""

import torch
from support.modeling_rwkv import Model, SelfAttention, parameter


def rwkv5_linear_attention(training, receptance, key, value, time_decay, time_first, state):
    """Out `[B, T, H, N]` and state `[B, H, K, V]`, float32; no gradient through the state."""
    B, T, _ = receptance.shape
    H, N = time_first.shape
    r, k, v = (x.float().view(B, T, H, N) for x in (receptance, key, value))
    decay = torch.exp(-torch.exp(time_decay.float())).view(H, N, 1)
    bonus = time_first.float()[:, :, None]
    out = []
    for t in range(T):
        kv = k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append((r[:, t, :, None, :] @ (bonus * kv + state))[:, :, 0])
        state = (kv + decay * state).detach()
    return torch.stack(out, 1), state


class Rwkv5SelfAttention(SelfAttention):
    """Mixing and decay are parameters, the same for every token."""

    def __init__(self, config, layer_id):
        super().__init__(config, layer_id)
        self.time_mix = parameter(4, 1, 1, config.hidden_size)
        self.time_decay = parameter(self.H, self.N, scale=2.0)

    def mix(self, hidden, change):
        return *(hidden + change * self.time_mix), self.time_decay

    def recurrence(self, receptance, key, value, time_decay, state):
        return rwkv5_linear_attention(
            self.training, receptance, key, value, time_decay, self.time_faaaa, state
        )


class Rwkv5ForCausalLM(Model):
    def __init__(self, config):
        super().__init__(Rwkv5SelfAttention, config)
