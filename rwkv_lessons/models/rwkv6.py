"""A language model of RWKV-6 blocks, how it learns and how it writes: all that lesson 29 trains.

    model = Model(Sizes(vocabulary=256, width=128, layers=4))
    for step, loss in train(model, batches, Plan(steps=500)): …
    written = write(model, prompt, 100)

A layer mixes time, with `wkv6`, and then channels. Both also see the token before, a share of it
for each channel ("token shift"), the cheapest memory there is. Parameters start, and learn at the
rates, that RWKV-LM gives them; why is said beside each.
"""

import math
import os
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from rwkv_lessons.models.arguments import check_callable, check_kind, check_tokens
from rwkv_lessons.runtime.arguments import check_count, check_number, checked
from rwkv_lessons.wkv6 import wkv6

RANK_SHIFT, RANK_DECAY = 32, 64  # of what a token adds to the shares and to the decays
WITH_OWN_SHARE = "wkvrg"  # decay, key, value, receptance, gate


@dataclass(frozen=True)
class Sizes:
    """How large a model is; width is a multiple of head."""

    vocabulary: int
    width: int
    layers: int
    head: int = 64

    def __post_init__(self):
        for name, size in vars(self).items():
            check_count(name, size)
        if self.width % self.head:
            raise ValueError(f"width must be a multiple of head = {self.head}, got {self.width}")


class TimeMix(nn.Module):
    """What a token takes from all tokens before it, through a state for each head."""

    def __init__(self, sizes, layer):
        super().__init__()
        C, depth = sizes.width, layer / max(sizes.layers - 1, 1)  # 0 … 1 from the first to the last
        late = 1 - layer / sizes.layers
        self.head = sizes.head
        n = torch.arange(C) / C
        # Shares of the token before: channel by channel from all to none; less in deep layers,
        # which read tokens that earlier layers have mixed already.
        shares = {"x": n**late, "w": n**late, "k": n**late, "v": n**late + 0.3 * depth}
        shares |= {"r": n ** (0.5 * late), "g": n ** (0.5 * late)}
        self.share = nn.ParameterDict({x: nn.Parameter(1 - y) for x, y in shares.items()})
        # What the token itself adds to shares and decays starts at zero, and so does its matrix
        # `down`; `up` is not zero, or neither would ever have a gradient.
        self.share_down = nn.Parameter(torch.zeros(C, 5 * RANK_SHIFT))
        self.share_up = nn.Parameter(torch.empty(5, RANK_SHIFT, C).uniform_(-0.01, 0.01))
        self.decay_down = nn.Parameter(torch.zeros(C, RANK_DECAY))
        self.decay_up = nn.Parameter(torch.empty(RANK_DECAY, C).uniform_(-0.01, 0.01))
        # x of exp(-exp(x)): memories from 400 tokens (x = -6) to 3 (x = -1), more long ones in deep
        # layers. All rates are there from the start, as a gradient finds a far one but slowly.
        self.decay = nn.Parameter(rates(C, depth))
        n = torch.arange(C) / max(C - 1, 1)
        # The current token's bonus differs between neighbours: they are not to learn alike.
        zigzag = ((torch.arange(C) + 1) % 3 - 1) * 0.1
        self.bonus = nn.Parameter((depth * (1 - n) + zigzag).view(-1, sizes.head))
        # Keys and gates start small: states then are, until there is something worth writing.
        self.r, self.v = matrix(C, C), matrix(C, C)
        self.k, self.g = matrix(C, C, 0.1), matrix(C, C, 0.1)
        self.out = matrix(C, C, 0)  # a block adds nothing at first: gradients pass the whole depth
        self.norm = nn.GroupNorm(C // sizes.head, C, eps=64e-5)
        nn.init.constant_(self.norm.weight, ((1 + layer) / sizes.layers) ** 0.7)

    def forward(self, x, before, s0, mix):
        """y `[B, T, C]`, the last x, and the state after it."""
        B, T, C = x.shape
        past = shifted(x, before) - x
        base = x + past * self.share["x"]
        swing = torch.tanh(base @ self.share_down).view(B * T, 5, -1).transpose(0, 1)
        swing = (swing @ self.share_up).view(5, B, T, C)
        shares = zip(WITH_OWN_SHARE, swing, strict=True)
        w, k, v, r, g = (x + past * (self.share[name] + more) for name, more in shares)
        w = self.decay + torch.tanh(w @ self.decay_down) @ self.decay_up
        r, k, v = self.r(r), self.k(k), self.v(v)
        heads = [y.to(r.dtype).view(B, T, -1, self.head) for y in (r, k, v, w)]
        o, s1 = mix(*heads, self.bonus, s0, raw_decay=True)
        o = self.norm(o.reshape(B * T, C)).view(B, T, C)
        return self.out(o * F.silu(self.g(g))), x[:, -1], s1


class ChannelMix(nn.Module):
    """What a token makes of its channels and of the token before."""

    def __init__(self, sizes, layer):
        super().__init__()
        C, wide = sizes.width, max(int(3.5 * sizes.width) // 32, 1) * 32
        share = 1 - (torch.arange(C) / C) ** (1 - layer / sizes.layers)
        self.share_k, self.share_r = nn.Parameter(share), nn.Parameter(share.clone())
        self.k, self.r, self.v = matrix(C, wide), matrix(C, C, 0), matrix(wide, C, 0)

    def forward(self, x, before):
        past = shifted(x, before) - x
        k, r = self.k(x + past * self.share_k), self.r(x + past * self.share_r)
        return torch.sigmoid(r) * self.v(F.relu(k) ** 2), x[:, -1]


class Model(nn.Module):
    """Tokens `[B, T]` → logits `[B, T, vocabulary]`, and the state that the next tokens start from.

    Attributes:
        mix: what computes the recurrence, called as `wkv6` is.
    """

    def __init__(self, sizes, mix=wkv6):
        super().__init__()
        check_kind("sizes", sizes, Sizes)
        check_callable("mix", mix)
        self.sizes, self.mix, C, norm = sizes, mix, sizes.width, nn.LayerNorm
        # Near zero, with a norm after it: a first step already moves an embedding far.
        self.embedding = nn.Embedding(sizes.vocabulary, C)
        nn.init.uniform_(self.embedding.weight, -1e-4, 1e-4)
        self.first_norm, self.last_norm = norm(C), norm(C)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [nn.LayerNorm(C), TimeMix(sizes, n), nn.LayerNorm(C), ChannelMix(sizes, n)]
            )
            for n in range(sizes.layers)
        )
        self.head = matrix(C, sizes.vocabulary, 0.5)

    def forward(self, tokens, state=None, mix=None):
        check_tokens("tokens", tokens, vocabulary=self.sizes.vocabulary)
        x, after = self.first_norm(self.embedding(tokens)), []
        for n, (norm_1, time_mix, norm_2, channel_mix) in enumerate(self.blocks):
            before, s0, before_channels = state[n] if state else (None, None, None)
            y, last, s1 = time_mix(norm_1(x), before, s0, mix or self.mix)
            y, last_channels = channel_mix(norm_2(x := x + y), before_channels)
            x = x + y
            after.append((last, s1, last_channels))
        return self.head(self.last_norm(x)), after


def matrix(rows, columns, gain=1.0):
    """A linear map that starts orthogonal: it keeps lengths, forward and back; zeros for gain 0."""
    linear = nn.Linear(rows, columns, bias=False)
    if gain:
        nn.init.orthogonal_(linear.weight, gain * max(1.0, columns / rows) ** 0.5)
    else:
        nn.init.zeros_(linear.weight)
    return linear


def rates(C, depth):
    """x of the decay exp(-exp(x)) of each channel at the start, in a layer at this depth, 0 … 1."""
    n = torch.arange(C) / max(C - 1, 1)
    return -6 + 5 * n ** (0.7 + 1.3 * depth)


def shifted(x, before):
    """The token before each: `before` `[B, C]`, or zeros, before the first."""
    first = torch.zeros_like(x[:, :1]) if before is None else before[:, None]
    return torch.cat([first, x[:, :-1]], 1)


def learns(name, ndim, weight_decay):
    """How a parameter learns: its multiple of the learning rate, and its weight decay.

    Decays learn twice as fast: in x of exp(-exp(x)), doubling a memory is a step of 0.7, which is
    far at a learning rate chosen for matrices. Only matrices have a weight decay, because they have
    parameters to spare; a rate, a share or a norm means something by itself.
    """
    matrix = ndim == 2 and name.endswith("weight")
    return 2.0 if name.endswith(".decay") else 1.0, weight_decay if matrix else 0.0


def groups(model, plan):
    """Parameters grouped by how they learn, for torch's AdamW."""
    by_rate = {}
    for name, x in model.named_parameters():
        by_rate.setdefault(learns(name, x.ndim, plan.weight_decay), []).append(x)
    return [
        {"params": parameters, "times": times, "weight_decay": decay}
        for (times, decay), parameters in by_rate.items()
    ]


@dataclass(frozen=True)
class Plan:
    """How a model learns."""

    steps: int
    rate: float = 2e-3  # the highest; it falls to a tenth along a cosine
    warm_up: int = 20  # steps that lead up to it
    weight_decay: float = 0.01
    clip: float = 1.0  # the longest gradient

    def __post_init__(self):
        check_count("steps", self.steps, 0)
        check_count("warm_up", self.warm_up, 0)
        for name in ("rate", "weight_decay", "clip"):
            check_number(name, getattr(self, name), 0)

    def rate_at(self, step):
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        progress = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return self.rate * (0.55 + 0.45 * math.cos(math.pi * progress))


def optimizer_for(model, plan):
    return torch.optim.AdamW(groups(model, plan), lr=plan.rate, betas=(0.9, 0.99), eps=1e-18)


@checked(
    model=partial(check_kind, kind=nn.Module), batch=check_callable, every=check_count,
    plan=partial(check_kind, kind=Plan), autocast=partial(check_kind, kind=torch.dtype | None),
)  # fmt: skip
def train(model, batch, plan, checkpoint=None, every=200, autocast=None):
    """Learns; gives (step, loss) after each step.

    Args:
        batch: step → tokens `[B, T + 1]`, and which of the T next tokens count `[B, T]`, or None. A
            function of the step alone, so that a run that goes on sees what it would have seen.
        checkpoint: a file to go on from, if it is there, and to write `every` so many steps.
        autocast: a dtype for matrix products.
    """
    optimizer, first = optimizer_for(model, plan), 0
    if checkpoint and os.path.exists(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step) * group["times"]
        loss = loss_of(model, *batch(step), autocast)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        if checkpoint and ((step + 1) % every == 0 or step + 1 == plan.steps):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # whole, or the old one
        yield step, loss.detach()


def loss_of(model, tokens, counts=None, autocast=None):
    """Mean cross-entropy of the next tokens, in nats: of `[B, T + 1]` the last T."""
    check_tokens("tokens", tokens, least=2)
    device = tokens.device.type
    with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
        logits, _ = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses.mean() if counts is None else (losses * counts).sum() / counts.sum()


@checked(
    model=partial(check_kind, kind=nn.Module), count=check_count,
    mix=partial(check_callable, optional=True), temperature=partial(check_number, least=0),
)  # fmt: skip
@torch.no_grad()
def write(model, prompt, count, mix=None, temperature=0.0, generator=None):
    """`count` tokens after `prompt` `[B, T]`, one at a time, each from the state before it.

    Args:
        mix: what computes one token, called as `wkv6`; the model's own if None.
        temperature: 0 takes the likeliest token; at 1 they are drawn with the model's odds.
    """
    check_tokens("prompt", prompt, vocabulary=model.sizes.vocabulary)
    return torch.cat(list(stream(model, prompt, count, mix, temperature, generator)), 1)


@torch.no_grad()
def stream(model, prompt, count, mix=None, temperature=0.0, generator=None):
    """The same tokens as `write`, each `[B, 1]`, as soon as it is chosen."""
    logits, state = model(prompt)
    for _ in range(count):
        last = logits[:, -1].float()
        if temperature:
            odds = torch.softmax(last / temperature, -1)
            token = torch.multinomial(odds, 1, generator=generator)
        else:
            token = last.argmax(-1, keepdim=True)
        yield token
        logits, state = model(token, state, mix)
