"""The evidence for lesson 30: maps of states, as ranks gather and compose them, in float64."""

import math

import torch


def written(T, K, V, decay="text"):
    """() → k, v, w of one head's tokens, float32."""
    return lambda: _tensors((T, K), (T, V), decays=(T, K), kind=decay)


def two_maps(K, V):
    """() → A1, B1, A2, B2: decays `[K]` and states `[K, V]`."""

    def make():
        B1, B2, w = _tensors((K, V), (K, V), decays=(2, K))
        return w[0].exp(), B1, w[1].exp(), B2

    return make


def gathered(ranks, K, V):
    """() → A and B of all ranks."""

    def make():
        B, w = _tensors((ranks, K, V), decays=(ranks, K))
        return w.exp(), B

    return make


gathered_gradients = gathered  # dE has the shape of B


def reading(T, K, V, decay="text"):
    """() → o, r, w and E."""

    def make():
        o, r, E, w = _tensors((T, V), (T, K), (K, V), decays=(T, K), kind=decay)
        return o, r, w, E

    return make


def uneven_decays(T, K, seed=0):
    """Log decays that differ in every token and key: no key stays the slowest for long."""
    g = torch.Generator().manual_seed(seed)
    return -(2 * torch.randn(T, K, generator=g) - 2).exp()


def log_decays(powers):
    """Log decays from powers of two, a row a token; exact enough to meet a line from above."""
    return torch.tensor(powers) * math.log(2) * (1 - 1e-6)


def _tensors(*shapes, decays, kind="text"):
    g = torch.Generator().manual_seed(sum(map(sum, shapes)))
    drawn = [torch.randn(*shape, generator=g) for shape in shapes]
    w = torch.randn(*decays, generator=g)
    kinds = {"text": -(w - 1).exp(), "weak": -(w - 5).exp(), "strong": -8 * (w.abs() + 1)}
    second = torch.arange(len(w))[:, None] == 1
    kinds["one of -120"] = torch.where(second, -120.0, kinds["text"])
    w = (kinds | {"none": 0 * w})[kind]
    return *drawn, w


def exact_summary(k, v, w):
    """A and B, token by token."""
    A, B = torch.ones_like(w[0]), k.new_zeros(k.shape[1], v.shape[1])
    for t in range(len(k)):
        decay = w[t].exp()
        A, B = decay * A, decay[:, None] * B + torch.outer(k[t], v[t])
    return A, B


def exact_compose(A1, B1, A2, B2):
    """Both maps of a state, and what of the result depends on it."""
    zero = torch.zeros_like(B1)
    through = lambda S: A2[:, None] * (A1[:, None] * S + B1) + B2  # noqa: E731
    B = through(zero)
    return (through(torch.ones_like(zero)) - B)[:, 0], B


def exact_entries(A, B):
    E, states = 0 * B[0], []
    for decay, added in zip(A, B, strict=True):
        states.append(E)
        E = decay[:, None] * E + added
    return torch.stack(states)


def exact_correct(o, r, w, E):
    o = o.clone()
    for t in range(len(o)):
        o[t] += r[t] @ E
        E = w[t].exp()[:, None] * E
    return o


def exact_exit_gradients(A, dE):
    """By autograd, from how `exact_entries` makes entry states of what ranks leave."""
    B = torch.zeros_like(dE).requires_grad_()
    return torch.autograd.grad(exact_entries(A, B), B, dE)[0]
