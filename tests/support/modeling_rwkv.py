"""A small language model in the layout of Hugging Face's RWKV files, without their package.

State, as there: `[x of attention [B, C, L], state [B, H, K, V, L], x of feed forward [B, C, L]]`
for L layers, made by the model when none is given and written in place by its layers.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab_size: int = 61
    hidden_size: int = 32
    head_size: int = 8
    num_hidden_layers: int = 3


def parameter(*shape, scale=0.5):
    return nn.Parameter(scale * torch.randn(shape))


def shifted(hidden, last):
    """Each token's predecessor; the first one's is what the state kept."""
    return torch.cat([last[:, None], hidden[:, :-1]], 1)


class FeedForward(nn.Module):
    def __init__(self, config, layer_id):
        super().__init__()
        C, self.layer_id = config.hidden_size, layer_id
        self.time_maa_k, self.time_maa_r = parameter(1, 1, C), parameter(1, 1, C)
        self.key = nn.Linear(C, 2 * C, bias=False)
        self.receptance = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(2 * C, C, bias=False)

    def forward(self, hidden, state):
        change = shifted(hidden, state[2][:, :, self.layer_id]) - hidden
        key = self.key(hidden + change * self.time_maa_k).relu().square()
        receptance = self.receptance(hidden + change * self.time_maa_r).sigmoid()
        state[2][:, :, self.layer_id] = hidden[:, -1].detach()
        return receptance * self.value(key), state


class Block(nn.Module):
    def __init__(self, attention, config, layer_id):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.hidden_size), nn.LayerNorm(config.hidden_size)
        self.attention = attention(config, layer_id)
        self.feed_forward = FeedForward(config, layer_id)

    def forward(self, hidden, state):
        attention, state = self.attention(self.ln1(hidden), state)
        hidden = hidden + attention
        feed_forward, state = self.feed_forward(self.ln2(hidden), state)
        return hidden + feed_forward, state


class SelfAttention(nn.Module):
    """What both versions share; each brings its own mixing, decay and call of the recurrence."""

    def __init__(self, config, layer_id):
        super().__init__()
        C, self.layer_id = config.hidden_size, layer_id
        self.H, self.N = C // config.head_size, config.head_size
        self.time_faaaa = parameter(self.H, self.N)
        self.receptance, self.key, self.value, self.gate, self.output = (
            nn.Linear(C, C, bias=False) for _ in range(5)
        )
        self.ln_x = nn.GroupNorm(self.H, C)

    def forward(self, hidden, state):
        B, T, C = hidden.shape
        change = shifted(hidden, state[0][:, :, self.layer_id]) - hidden
        receptance, key, value, gate, time_decay = self.mix(hidden, change)
        state[0][:, :, self.layer_id] = hidden[:, -1].detach()
        out, new_state = self.recurrence(
            self.receptance(receptance),
            self.key(key),
            self.value(value),
            time_decay,
            state[1][..., self.layer_id],
        )
        state[1][..., self.layer_id] = new_state
        out = self.ln_x(out.reshape(B * T, C).to(hidden.dtype)).reshape(B, T, C)
        return self.output(out * F.silu(self.gate(gate))), state


class Model(nn.Module):
    def __init__(self, attention, config):
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.blocks = nn.ModuleList([Block(attention, config, i) for i in layers])
        self.ln_out = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, state=None):
        """Logits `[B, T, vocab_size]` and the state."""
        hidden = self.embeddings(input_ids)
        state = self.empty_state(hidden) if state is None else state
        for block in self.blocks:
            hidden, state = block(hidden, state)
        return self.head(self.ln_out(hidden)), state

    def empty_state(self, hidden):
        B, C, L = len(hidden), self.config.hidden_size, self.config.num_hidden_layers
        N = self.config.head_size
        heads = hidden.new_zeros(B, C // N, N, N, L, dtype=torch.float32)
        return [hidden.new_zeros(B, C, L), heads, hidden.new_zeros(B, C, L)]

    @torch.no_grad()
    def generate(self, input_ids, tokens):
        """The most likely next tokens `[B, tokens]`: one prefill, then one token at a time."""
        logits, state = self(input_ids)
        tokens_so_far = [logits[:, -1:].argmax(-1)]
        for _ in range(tokens - 1):
            logits, state = self(tokens_so_far[-1], state)
            tokens_so_far.append(logits.argmax(-1))
        return torch.cat(tokens_so_far, 1)
