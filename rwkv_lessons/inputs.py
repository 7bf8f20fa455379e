"""Inputs as a model makes them: a real text, through a time-mixing block at its initialisation.

The text is the language reference that Python carries (`pydoc_data.topics`), cut into words.
Blocks start with a zero output matrix, so at initialisation the residual stream in front of
every layer is still the embedded text, and one projection gives that layer's r, k and v.
"""

import math
import re
from functools import cache, lru_cache
from pydoc_data import topics
from typing import NamedTuple

import torch
from torch.nn import functional as F


class RWKV5Inputs(NamedTuple):
    """What WKV-5 takes: r, k, v `[B, T, H, N]`; log decay w and bonus u `[H, N]`, float32."""

    r: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor
    u: torch.Tensor


class RWKV6Inputs(NamedTuple):
    """What WKV-6 takes: r, k, v and log decay w `[B, T, H, N]`; bonus u `[H, N]`, float32."""

    r: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor
    u: torch.Tensor


KEPT_WIDTH = 256  # of models whose weights stay in memory: up to 20 MB each


class RWKV7Inputs(NamedTuple):
    """What WKV-7 takes: r, log decay w, k, v, and a and b of the delta rule, `[B, T, H, N]`."""

    r: torch.Tensor
    w: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


class KDAInputs(NamedTuple):
    """What Kimi's delta attention takes: q, k, v and log decay g `[B, T, H, N]`, rate `[B, T, H]`.

    g is float32.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


@cache
def words():
    """The whole text, cut into words, signs and white space."""
    text = "\n".join(topics.topics[t] for t in sorted(topics.topics))
    return re.findall(r"\w+|[^\w\s]|\s+", text)


@cache
def tokens():
    """The whole text as word numbers `[tokens]`, and how many different words there are."""
    number = {word: n for n, word in enumerate(sorted(set(words())))}
    return torch.tensor([number[word] for word in words()]), len(number)


def rwkv5_decay(C, depth=0.5):
    """Log decay `[C]` of a layer at initialisation; `depth` runs from 0 (first layer) to 1 (last).

    The first channel of a layer remembers some 400 tokens, the last about three.
    """
    n = torch.arange(C, dtype=torch.float64) / max(C - 1, 1)
    return -torch.exp(-6 + 5 * n ** (0.7 + 1.3 * depth)).float()


def rwkv5_bonus(C, depth=0.5):
    """Bonus `[C]` of the current token at initialisation."""
    n = torch.arange(C, dtype=torch.float64)
    zigzag = ((n + 1) % 3 - 1) * 0.1
    return (depth * (1 - n / max(C - 1, 1)) + zigzag).float()


def rwkv5_inputs(
    B, T, H=4, N=64, *, dtype=torch.float32, device="cpu", layer=6, n_layer=12, offset=0, seed=0
):
    """r, k, v, w, u of layer `layer` of an RWKV-5 model of width H·N, reading B passages.

    Passage b is tokens offset + b·T … of the text, which starts again at its end; the token
    before each passage is taken to be empty. The same arguments give the same values.

    Args:
        B, T, H, N: batch, tokens, heads, head size.
        dtype: of r, k and v; w and u are float32.
        layer, n_layer: which layer of how many; deeper layers remember longer.
        offset: first token; seed: of the embedding and the projections.
    """
    if not 0 <= layer < n_layer:
        raise ValueError(f"layer must be in 0 … n_layer - 1 = {n_layer - 1}, got {layer}")
    C, depth = H * N, layer / max(n_layer - 1, 1)
    embedding, weight = (_kept if C <= KEPT_WIDTH else _weights)(C, seed, device)
    late = 1 - layer / n_layer
    n = torch.arange(C, device=device) / C
    mix = {"r": n ** (0.5 * late), "k": n**late, "v": n**late + 0.3 * depth}

    out = {x: torch.empty(B, T, C, dtype=dtype, device=device) for x in weight}
    for b, (x, before) in enumerate(_passages(embedding, B, T, offset)):
        for name, y in out.items():
            y[b] = torch.lerp(before, x, mix[name]) @ weight[name].T
    r, k, v = (y.view(B, T, H, N) for y in out.values())
    w, u = (f(C, depth).view(H, N).to(device) for f in (rwkv5_decay, rwkv5_bonus))
    return RWKV5Inputs(r, k, v, w, u)


RANK = 64  # of the part of RWKV-6's decay that depends on the token
SWING = 0.5  # its standard deviation: most rates then move by a factor of up to exp(±2 · 0.5)


def rwkv6_inputs(
    B, T, H=4, N=64, *, dtype=torch.float32, device="cpu", layer=6, n_layer=12, offset=0, seed=0
):
    """r, k, v, w, u of layer `layer` of an RWKV-6 model ("Finch") of width H·N; see `rwkv5_inputs`.

    The log decay is w = -exp(rate + tanh(x A) B): `rate` is RWKV-5's, x the token mixed with the
    one before it, A and B of rank 64. A model starts with A = 0, where decay does not depend on
    the data; here both are drawn, so that the second term has a standard deviation of `SWING`.

    Args:
        dtype: of r, k, v and w; u is float32.
        The others: as for `rwkv5_inputs`, which gives the same r, k, v and u.
    """
    settings = {"layer": layer, "n_layer": n_layer, "offset": offset, "seed": seed}
    r, k, v, w5, u = rwkv5_inputs(B, T, H, N, dtype=dtype, device=device, **settings)
    C, generator = H * N, torch.Generator().manual_seed(seed)
    embedding = _embedding(C, generator, device)
    down = torch.randn(C, RANK, generator=generator).to(device) / C**0.5
    # The tanh of a normal variable has a standard deviation of 0.63.
    up = torch.randn(RANK, C, generator=generator).to(device) * SWING / (0.63 * RANK**0.5)
    mix = (torch.arange(C, device=device) / C) ** (1 - layer / n_layer)
    rate = (-w5).log().flatten()

    w = torch.empty(B, T, C, dtype=dtype, device=device)
    for b, (x, before) in enumerate(_passages(embedding, B, T, offset)):
        w[b] = -torch.exp(rate + torch.tanh(torch.lerp(before, x, mix) @ down) @ up)
    return RWKV6Inputs(r, k, v, w.view(B, T, H, N), u)


LEAST_TAME = -1.05  # 64 of them are -67: what decays to the end of a chunk divides by is a float32


def rwkv6_tame_inputs(B, T, H=4, N=64, **options):
    """`rwkv6_inputs` with no log decay below `LEAST_TAME`: a kernel need not look at them."""
    inputs = rwkv6_inputs(B, T, H, N, **options)
    return inputs._replace(w=inputs.w.clamp(min=LEAST_TAME))


def rwkv6_training_inputs(B, T, H=4, N=64, *, dtype=torch.float32, **options):
    """`rwkv6_inputs` with an eighth of v in float16.

    do is v reversed in time; dw of both, 64 times as large, would reach 2e5, beyond float16.
    """
    inputs = rwkv6_inputs(B, T, H, N, dtype=dtype, **options)
    return inputs._replace(v=inputs.v / 8) if dtype == torch.float16 else inputs


def rwkv7_decay(C, depth=0.5):
    """Logit `[C]` of the decay of a layer at initialisation, x of exp(-exp(-0.5) · sigmoid(x)).

    The first channel of a layer remembers some 400 tokens, the last about two.
    """
    n = torch.arange(C, dtype=torch.float64) / max(C - 1, 1)
    return (-5.5 + 6 * n ** (1 + depth**0.3)).float()


def rwkv7_inputs(
    B, T, H=4, N=64, *, dtype=torch.float32, device="cpu", layer=6, n_layer=12, offset=0, seed=0
):
    """r, w, k, v, a, b of layer `layer` of an RWKV-7 model ("Goose"); see `rwkv6_inputs`.

    κ is the key, normalised for each head; a = -κ and b = κ times a rate, sigmoid of what a low
    rank makes of the token. The logit of the decay is `rwkv7_decay` and such a term.

    Args:
        dtype: of all of them.
        The others: as for `rwkv5_inputs`, which gives the same r, k and v.
    """
    settings = {"layer": layer, "n_layer": n_layer, "offset": offset, "seed": seed}
    r, k, v, _, _ = rwkv5_inputs(B, T, H, N, dtype=torch.float32, device=device, **settings)
    C, generator = H * N, torch.Generator().manual_seed(seed)
    embedding = _embedding(C, generator, device)
    down = [torch.randn(C, RANK, generator=generator).to(device) / C**0.5 for _ in range(2)]
    up = [torch.randn(RANK, C, generator=generator).to(device) / RANK**0.5 for _ in range(2)]
    mix = (torch.arange(C, device=device) / C) ** (1 - layer / n_layer)
    base = rwkv7_decay(C, layer / max(n_layer - 1, 1)).to(device)

    w, rate = (torch.empty(B, T, C, dtype=dtype, device=device) for _ in range(2))
    for n, (x, before) in enumerate(_passages(embedding, B, T, offset)):
        mixed = torch.lerp(before, x, mix)
        swing = torch.tanh(mixed @ down[0]) @ up[0] * (SWING / 0.63)  # see `rwkv6_inputs`
        w[n] = -(math.exp(-0.5) * torch.sigmoid(base + swing))
        rate[n] = torch.sigmoid(mixed @ down[1] @ up[1])
    w, rate = (x.view(B, T, H, N) for x in (w, rate))
    kappa = F.normalize(k, dim=-1)
    inputs = (r, w, k, v, -kappa, kappa * rate)
    return RWKV7Inputs(*(x.to(dtype) for x in inputs))


def kda_inputs(
    B, T, H=4, N=64, *, dtype=torch.float32, device="cpu", layer=6, n_layer=12, offset=0, seed=0
):
    """q, k, v, g, beta of a layer of Kimi's delta attention of width H·N; see `rwkv7_inputs`.

    q and k are silu of the projections, of length 1 in each head. The log decay is
    -5 · sigmoid(bias + a term of low rank), as the layer has it with a lower bound of -5, and the
    biases are at their initialisation: the median token decays by 0.1 % to 9 % of the bound. The
    rate is a sigmoid.

    Args:
        dtype: of q, k, v and beta; g is float32.
        The others: as for `rwkv5_inputs`, which gives the same v.
    """
    settings = {"layer": layer, "n_layer": n_layer, "offset": offset, "seed": seed}
    q, k, v, _, _ = rwkv5_inputs(B, T, H, N, dtype=torch.float32, device=device, **settings)
    C, generator = H * N, torch.Generator().manual_seed(seed)
    embedding = _embedding(C, generator, device)
    down = torch.randn(C, RANK, generator=generator).to(device) / C**0.5
    up = torch.randn(RANK, C, generator=generator).to(device) * SWING / RANK**0.5
    of_beta = torch.randn(C, H, generator=generator).to(device) / C**0.5
    step = torch.exp(math.log(0.001) + math.log(100) * torch.rand(C, generator=generator))
    bias = step.expm1().log().to(device)

    g = torch.empty(B, T, C, device=device)
    beta = torch.empty(B, T, H, dtype=dtype, device=device)
    for n, (x, _) in enumerate(_passages(embedding, B, T, offset)):
        g[n] = -5 * torch.sigmoid(bias + x @ down @ up)
        beta[n] = torch.sigmoid(x @ of_beta)
    q, k = (F.normalize(F.silu(x), dim=-1) for x in (q, k))
    return KDAInputs(*(x.to(dtype) for x in (q, k, v)), g.view(B, T, H, N), beta)


def wkv6_decode_inputs(B, T=1, H=4, N=64, *, dtype=torch.float32, device="cpu"):
    """r, k, v, w, u of one token, and the state `[B, H, N, N]` that 64 tokens before it left."""
    from rwkv_lessons.wkv6 import wkv6

    if T != 1:
        raise ValueError(f"T is {T}, needs 1: one token for each sequence")
    *tokens, u = rwkv6_inputs(B, 65, H, N, dtype=dtype, device=device)
    before, last = (
        [x[:, part].contiguous() for x in tokens] for part in (slice(64), slice(64, 65))
    )
    _, s0 = wkv6(*before, u)
    return *last, u, s0


def timex_inputs(B, C, T, *, dtype=torch.float32, device="cpu", offset=0, seed=0):
    """w `[C, T]` and k `[B, C, T]` of a time-x layer of an RWKV-v3 model that reads B passages.

    w is at its initialisation: exp(-rate · (distance - 1)), with rates from exp(-5) in the first
    channel to exp(3) in the last, and 0.3 for the token itself. k is exp of a projection of the
    text, which starts as zeros there; here its numbers are of size 1.

    Args:
        dtype: of both. The others: as for `rwkv5_inputs`.
    """
    generator = torch.Generator().manual_seed(seed)
    embedding = _embedding(C, generator, device)
    weight = _orthogonal(C, 1.0, generator, device)
    k = torch.empty(B, C, T, dtype=dtype, device=device)
    for b, (x, _) in enumerate(_passages(embedding, B, T, offset)):
        k[b] = torch.exp(x @ weight.T).T
    rate = torch.exp(-5 + 8 * torch.arange(C, dtype=torch.float64) / max(C - 1, 1))
    before = torch.arange(T - 2, -2, -1, dtype=torch.float64)  # distance - 1
    w = torch.exp(-rate[:, None] * before)
    w[:, -1] = 0.3
    return w.to(device, dtype), k


def timex_rung_arguments(w, k):
    """(what a lesson's time-x kernel reads: w and k; what it writes: o)."""
    return (w, k), (torch.full_like(k, float("nan")),)


def wkv7_decode_inputs(B, T=1, H=4, N=64, *, dtype=torch.float32, device="cpu"):
    """r, w, k, v, a, b of one token, and the state that 64 tokens before it left."""
    from rwkv_lessons.wkv7 import wkv7

    if T != 1:
        raise ValueError(f"T is {T}, needs 1: one token for each sequence")
    tokens = rwkv7_inputs(B, 65, H, N, dtype=dtype, device=device)
    before, last = (
        [x[:, part].contiguous() for x in tokens] for part in (slice(64), slice(64, 65))
    )
    _, s0 = wkv7(*before)
    return *last, s0


def wkv5_rung_arguments(r, k, v, w, u):
    """(what a lesson's WKV-5 kernel reads: r, k, v, the decay and u; what it writes: o)."""
    return (r, k, v, w.float().exp(), u.float()), (torch.full_like(v, float("nan")),)


def wkv6_rung_arguments(r, k, v, w, u):
    """(what a lesson's WKV-6 kernel reads: r, k, v, w, u and s0, zeros; what it writes: o, s1)."""
    B, _, H, N = r.shape
    s0 = torch.zeros(B, H, N, N, device=r.device)
    o = torch.full_like(v, float("nan"))
    return (r, k, v, w, u.float(), s0), (o, torch.empty_like(s0))


def wkv7_rung_arguments(*inputs):
    """(what a lesson's WKV-7 kernel reads: r, w, k, v, a, b and s0, zeros; what it writes: o, s1).

    Args:
        inputs: r, w, k, v, a, b.
    """
    B, _, H, N = inputs[0].shape
    s0 = torch.zeros(B, H, N, N, device=inputs[0].device)
    return (*inputs, s0), (torch.full_like(inputs[3], float("nan")), torch.empty_like(s0))


def _weights(C, seed, device):
    """The embedding, and the projections to r, k and v by name; nobody may write into them."""
    generator = torch.Generator().manual_seed(seed)
    embedding = _embedding(C, generator, device)
    gains = {"r": 1.0, "k": 0.1, "v": 1.0}
    return embedding, {x: _orthogonal(C, gain, generator, device) for x, gain in gains.items()}


_kept = lru_cache(maxsize=4)(_weights)  # a check asks for a dozen inputs of one narrow model


def _embedding(C, generator, device):
    """One row per word, as RWKV-LM starts it (RWKV-v5 and v6, `generate_init_weight`)."""
    _, words = tokens()
    return torch.empty(words, C).uniform_(-1e-4, 1e-4, generator=generator).to(device)


def _passages(embedding, B, T, offset):
    """B times x `[T, C]`, what a block sees of a passage, and x of the token before each."""
    text, _ = tokens()
    C = embedding.shape[1]
    for b in range(B):  # a passage at a time bounds the memory
        positions = (offset + b * T + torch.arange(T)) % len(text)
        x = F.layer_norm(F.layer_norm(embedding[text[positions].to(embedding.device)], (C,)), (C,))
        yield x, F.pad(x, (0, 0, 1, -1))


def _orthogonal(C, gain, generator, device):
    """A random orthogonal C × C matrix; drawn on the CPU, so that every device gets the same."""
    q, r = torch.linalg.qr(torch.randn(C, C, generator=generator).to(device))
    return gain * q * r.diagonal().sign()
