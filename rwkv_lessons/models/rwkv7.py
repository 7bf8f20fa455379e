"""RWKV-7 models from released checkpoints (x070, `.pth`), on `wkv7_serving`: see `generate.py`.

    model = Rwkv7(read_checkpoint("rwkv7.pth"))
    states = model.states(slots=2)
    logits = model(torch.tensor([3, 1, 4, 5]), [3, 1], [0, 1], states)  # two prompts, packed

`time_mix` is one layer's time mixing by any function that computes the recurrence, so that training
and float64 references use the same lines.
"""

import os
import re
import zipfile
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from rwkv_lessons.models.arguments import check_kind
from rwkv_lessons.runtime.arguments import check_count, checked
from rwkv_lessons.wkv7.serving import wkv7_serving

GROUP_EPSILON = 64e-5  # of the norm of each head's output
TIME_MIX_MATRICES = "receptance", "key", "value", "output"
VECTORS = "x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"
LOW_RANK = "wavg"  # decay, rate, share of the first layer's value, gate: two matrices each
OLDER = {"att.time_maa_x": "RWKV-6", "att.time_decay": "RWKV-5 or older"}


@dataclass
class States:
    """What a sequence remembers, in a slot for each; all of it is overwritten by a model's call.

    Attributes:
        wkv: `[layers, slots, H, N, N]` (keys × values), float32.
        time, channels: the token before, of both mixings, `[layers, slots, C]`.
    """

    wkv: torch.Tensor
    time: torch.Tensor
    channels: torch.Tensor


def read_checkpoint(path):
    """Name → tensor of a `.pth` file; a ValueError says what is wrong with it."""
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except Exception as problem:
        if os.path.isfile(path) and not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path}: expected a file that torch.save wrote, a zip archive; if it was"
                " downloaded, it may be incomplete"
            ) from None
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise ValueError(
            f"{path}: torch.load cannot read it as a checkpoint of tensors ({reason})"
        ) from problem
    try:
        sizes_of(weights)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None
    return weights


def sizes_of(weights):
    """(vocabulary, width, layers, heads) of an x070 checkpoint, all of whose tensors are checked.

    Raises:
        TypeError, ValueError: no such checkpoint; the message names the tensor.
    """
    if not isinstance(weights, dict) or not all(
        isinstance(x, torch.Tensor) for x in weights.values()
    ):
        raise TypeError("a checkpoint must be a dictionary of tensors")
    for name, version in OLDER.items():
        if f"blocks.0.{name}" in weights:
            raise ValueError(f"this is a checkpoint of {version}, expected RWKV-7 (x070)")
    for name, ndim in (("emb.weight", 2), ("blocks.0.att.r_k", 2)):
        if name not in weights or weights[name].ndim != ndim:
            some = ", ".join(list(weights)[:3]) or "nothing"
            raise ValueError(
                f"{name} must be a tensor of {ndim} dimensions in an RWKV-7 checkpoint (.pth in"
                f" BlinkDL's layout, not transformers'); the file starts with {some}"
            )
    vocabulary, C = weights["emb.weight"].shape
    heads, N = weights["blocks.0.att.r_k"].shape
    if heads * N != C:
        raise ValueError(f"blocks.0.att.r_k must be [H, N] with H·N = {C}, got {[heads, N]}")
    matches = [re.match(r"blocks\.(\d+)\.", name) for name in weights]
    layers = 1 + max(int(x[1]) for x in matches if x)
    expected = set()
    for name, shape in shapes(vocabulary, C, layers, heads, weights):
        expected.add(name)
        if name not in weights:
            raise ValueError(f"{name} is missing; the file has {layers} layers of width {C}")
        tensor = weights[name].squeeze() if len(shape) == 1 else weights[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(weights[name].shape)}")
    unused = {f"blocks.0.att.{name}" for name in ("v0", "v1", "v2")}  # the first layer's value
    if more := sorted(set(weights) - expected - unused):
        raise ValueError(
            f"{more[0]} is not a tensor of RWKV-7 (x070): this variant is not supported"
        )
    return vocabulary, C, layers, heads


def shapes(vocabulary, C, layers, heads, weights):
    """(name, shape) of all tensors; inner sizes of pairs of matrices are the file's own."""

    def inner(name, dim):
        x = weights.get(name)
        return x.shape[dim] if x is not None and x.ndim == 2 else 1

    yield from (("emb.weight", (vocabulary, C)), ("head.weight", (vocabulary, C)))
    norms = ["ln_out", "blocks.0.ln0"]
    for n in range(layers):
        att, ffn = f"blocks.{n}.att.", f"blocks.{n}.ffn."
        norms += [f"blocks.{n}.ln1", f"blocks.{n}.ln2", f"{att}ln_x"]
        for name in VECTORS:
            if n or name != "v0":
                yield att + name, (C,)
        for name in LOW_RANK if n else LOW_RANK.replace("v", ""):
            rank = inner(f"{att}{name}1", 1)
            yield from ((f"{att}{name}1", (C, rank)), (f"{att}{name}2", (rank, C)))
        yield f"{att}r_k", (heads, C // heads)
        yield from ((f"{att}{name}.weight", (C, C)) for name in TIME_MIX_MATRICES)
        wide = inner(f"{ffn}key.weight", 0)
        yield f"{ffn}x_k", (C,)
        yield from ((f"{ffn}key.weight", (wide, C)), (f"{ffn}value.weight", (C, wide)))
    for name in norms:
        yield from ((f"{name}.weight", (C,)), (f"{name}.bias", (C,)))


@checked(layers=check_count, heads=check_count, N=check_count, vocabulary=check_count)
def random_weights(layers=2, heads=2, N=64, vocabulary=256, rank=16, seed=0):
    """A small checkpoint that has learned nothing, name → tensor, to try things with.

    Decays forget within a few tokens; `ready_to_learn` makes them remember longer.
    """
    g, C = torch.Generator().manual_seed(seed), heads * N

    def normal(*sizes, scale=None):
        return torch.randn(*sizes, generator=g) * (scale or sizes[-1] ** -0.5)

    weights = {"emb.weight": normal(vocabulary, C, scale=1.0), "head.weight": normal(vocabulary, C)}
    norms = ["ln_out", "blocks.0.ln0"]
    for n in range(layers):
        att, ffn = f"blocks.{n}.att.", f"blocks.{n}.ffn."
        norms += [f"blocks.{n}.ln1", f"blocks.{n}.ln2", f"{att}ln_x"]
        for name in VECTORS:
            weights[att + name] = torch.rand(1, 1, C, generator=g)
        for name in LOW_RANK:
            weights[f"{att}{name}1"], weights[f"{att}{name}2"] = normal(C, rank), normal(rank, C)
        weights[f"{att}r_k"] = normal(heads, N)
        for name in TIME_MIX_MATRICES:
            weights[f"{att}{name}.weight"] = normal(C, C)
        weights[f"{ffn}x_k"] = torch.rand(1, 1, C, generator=g)
        weights[f"{ffn}key.weight"] = normal(4 * C, C)
        weights[f"{ffn}value.weight"] = normal(C, 4 * C)
    for name in norms:
        weights[f"{name}.weight"] = 1 + normal(C, scale=0.1)
        weights[f"{name}.bias"] = normal(C, scale=0.1)
    return weights


def ready_to_learn(weights):
    """Random weights that learn: channels remember 2 to 700 tokens, and layers begin by adding
    little."""
    changed = dict(weights)
    for name, x in weights.items():
        if name.endswith("att.w0"):
            changed[name] = torch.linspace(-6, 1, x.numel()).expand_as(x)
        elif name.endswith(("att.output.weight", "ffn.value.weight")):
            changed[name] = 0.1 * x
    return changed


def time_mix(weights, x, before, v_first, recurrence):
    """Time mixing of one layer, after its norm.

    Args:
        weights: the layer's, by their names after `blocks.n.att.`.
        x, before: tokens `[…, C]`, and the token before each.
        v_first: the first layer's value, `[…, C]`; None in the first layer.
        recurrence: (r, w, k, v, a, b), each `[…, H, N]` → o; w is of `decay="clamp"`.

    Returns:
        The output, and the first layer's value.
    """
    p, (heads, N) = weights, weights["r_k"].shape
    shift = before - x

    def shifted(name):
        return x + shift * p[f"x_{name}"]

    def by_heads(y):
        return y.unflatten(-1, (heads, N))

    def low_rank(y, name):
        return y @ p[f"{name}1"] @ p[f"{name}2"]

    r, key, value = (
        F.linear(shifted(name[0]), p[f"{name}.weight"]) for name in ("receptance", "key", "value")
    )
    w = p["w0"] + torch.tanh(shifted("w") @ p["w1"]) @ p["w2"]
    rate = torch.sigmoid(p["a0"] + low_rank(shifted("a"), "a"))
    gate = torch.sigmoid(shifted("g") @ p["g1"]) @ p["g2"]
    kappa = F.normalize(by_heads(key * p["k_k"]), dim=-1)
    key = key * (1 + (rate - 1) * p["k_a"])
    if v_first is None:
        v_first = value
    else:
        share = torch.sigmoid(p["v0"] + low_rank(shifted("v"), "v"))
        value = value + (v_first - value) * share
    r, w, key, value = (by_heads(y) for y in (r, w, key, value))
    o = recurrence(r, w, key, value, -kappa, kappa * by_heads(rate))
    norm = p["ln_x.weight"], p["ln_x.bias"]
    o = F.group_norm(o.reshape(-1, heads * N), heads, *norm, GROUP_EPSILON).view(x.shape)
    bonus = (r * key * p["r_k"]).sum(-1, keepdim=True) * value
    return F.linear((o + bonus.flatten(-2)) * gate, p["output.weight"]), v_first


def channel_mix(weights, x, before):
    """Channel mixing of one layer, after its norm; weights by their names after `blocks.n.ffn.`."""
    key = F.linear(x + (before - x) * weights["x_k"], weights["key.weight"])
    return F.linear(torch.relu(key) ** 2, weights["value.weight"])


def by_layer(weights, layers):
    """The layers' weights, (norms, time mixing, channel mixing) of each, by short names."""
    parts = [({}, {}, {}) for _ in range(layers)]
    for name, x in weights.items():
        if match := re.match(r"blocks\.(\d+)\.(att\.|ffn\.)?(.+)", name):
            layer, part, short = match.groups()
            parts[int(layer)][(None, "att.", "ffn.").index(part)][short] = x
    return parts


def norm(x, weights, name):
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


def mix_layers(layers, x, before, recurrence):
    """All layers of `by_layer` on embedded tokens x `[…, C]`.

    Args:
        before: (x, layer, "time" or "channels") → the token before each.
        recurrence: (layer, r, w, k, v, a, b) → o, see `time_mix`.
    """
    x, v_first = norm(x, layers[0][0], "ln0"), None
    for n, (norms, att, ffn) in enumerate(layers):
        y = norm(x, norms, "ln1")
        y, v_first = time_mix(att, y, before(y, n, "time"), v_first, partial(recurrence, n))
        x = x + y
        y = norm(x, norms, "ln2")
        x = x + channel_mix(ffn, y, before(y, n, "channels"))
    return x


class Learner(nn.Module):
    """A model that learns from whole sequences: for `rwkv6.train`, with any recurrence.

    Args:
        weights: name → tensor, as `random_weights` makes them; they are copied.
        recurrence: (r, w, k, v, a, b), each `[B, T, H, N]` → o; w is of `decay="clamp"`.
    """

    def __init__(self, weights, recurrence):
        super().__init__()
        self.layers, self.recurrence, self.names = sizes_of(weights)[2], recurrence, list(weights)
        flat = (x.flatten() if x.ndim == 3 else x for x in weights.values())
        self.weights = nn.ParameterList(nn.Parameter(x.clone()) for x in flat)

    def forward(self, tokens):
        """Logits `[B, T, vocabulary]`, and None: no states are kept."""
        weights = dict(zip(self.names, self.weights, strict=True))

        def before(x, *_):
            return F.pad(x, (0, 0, 1, -1))

        def recurrence(_, *tokens):
            return self.recurrence(*tokens)

        x = F.embedding(tokens, weights["emb.weight"])
        x = mix_layers(by_layer(weights, self.layers), x, before, recurrence)
        return F.linear(norm(x, weights, "ln_out"), weights["head.weight"]), None


class Rwkv7:
    """A model for generation: many sequences in one call, without gradients.

    Args:
        weights: name → tensor, of `read_checkpoint` or `random_weights`.
        dtype: of weights and activations; float32 if None. States of the recurrence are float32.
    """

    def __init__(self, weights, dtype=None, device="cpu"):
        self.vocabulary, self.width, self.layers, self.heads = sizes_of(weights)
        self.dtype, self.device = dtype or torch.float32, torch.device(device)

        def loaded(name):
            x = weights[name]
            # Vectors are stored as [1, 1, C].
            return (x.flatten() if x.ndim == 3 else x).to(self.device, self.dtype)

        self.weights = {name: loaded(name) for name in weights}
        self.fingerprint = float(weights["head.weight"][0].double().sum())  # that of its states
        self.blocks = by_layer(self.weights, self.layers)

    @property
    def head(self):
        return self.width // self.heads

    def states(self, slots):
        """`States` of new sequences: zeros."""
        of_layers = self.layers, slots
        wkv = torch.zeros(*of_layers, self.heads, self.head, self.head, device=self.device)
        time, channels = torch.zeros(
            2, *of_layers, self.width, dtype=self.dtype, device=self.device
        )
        return States(wkv, time, channels)

    def bytes_per_step(self, sequences):
        """(weights, states): bytes that a step of one token for each sequence has to move.

        All weights are read once, but of the embedding a row for each sequence; states are read
        and written.
        """
        item = self.weights["emb.weight"].element_size()
        numbers = sum(x.numel() for name, x in self.weights.items() if name != "emb.weight")
        rows = sequences * self.width
        states = 4 * rows * self.head + 2 * rows * item
        return (numbers + rows) * item, 2 * self.layers * states

    @torch.no_grad()
    @checked(states=partial(check_kind, kind=States))
    def __call__(self, tokens, lengths, slots, states):
        """Logits after the last token of each sequence, `[S, vocabulary]`, float32.

        Args:
            tokens: of all sequences one after the other, `[total]`, integers.
            lengths: how many each sequence has, at least 1; a list.
            slots: where the state of each is, a list without repetitions.
            states: `States`; overwritten.
        """
        if len(lengths) != len(slots) or min(lengths, default=0) < 1 or sum(lengths) != len(tokens):
            raise ValueError(
                f"lengths must be ≥ 1, one for each of {len(slots)} slots, and add up to"
                f" {len(tokens)} tokens, got {lengths}"
            )
        first, last = (int(x) for x in tokens.aminmax())
        if first < 0 or last >= self.vocabulary:
            raise ValueError(
                f"tokens must be from 0 to {self.vocabulary - 1}, got {first} to {last}"
            )
        ends = torch.tensor([0, *lengths], device=self.device).cumsum(0).int()
        places = torch.tensor(slots, dtype=torch.int32, device=self.device)
        starts, ends_of, rows = ends[:-1].long(), ends[1:].long() - 1, places.long()

        def before(x, layer, kind):
            remembered, shifted = getattr(states, kind)[layer], torch.cat([x[:1], x[:-1]])
            shifted[starts] = remembered[rows]
            remembered[rows] = x[ends_of]
            return shifted

        def recurrence(layer, *tensors):
            tensors = (y[None].contiguous() for y in tensors)
            return wkv7_serving(*tensors, states.wkv[layer], places, ends, longest=max(lengths))[0]

        x = F.embedding(tokens.to(self.device), self.weights["emb.weight"])
        x = mix_layers(self.blocks, x, before, recurrence)
        x = norm(x[ends_of], self.weights, "ln_out")
        return F.linear(x, self.weights["head.weight"]).float()
