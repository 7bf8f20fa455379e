"""Gradients of the chunked kernels against float64, in the interpreter."""

import math

import torch

from rwkv_lessons.sequences.spans import count_spans
from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked.backward import gradients
from rwkv_lessons.wkv6.chunked.forward import states_dtype
from rwkv_lessons.wkv6.chunked.sizes import CHECKPOINT
from rwkv_lessons.wkv6.doubling import wkv6_doubling
from rwkv_lessons.wkv6.reference import wkv6_reference

NAMES = ("dr", "dk", "dv", "dw", "du", "ds0")


GPU = torch.cuda.is_available()


DEVICE = "cuda" if GPU else "cpu"


def draw(B, T, H, K, V, decay="mixed", dtype=torch.float32, sequences=None, seed=0):
    """r, k, v, w, u, s0 and do, ds1."""
    g = torch.Generator().manual_seed(seed)
    randn = lambda *size: torch.randn(*size, generator=g)  # noqa: E731
    r, k = randn(B, T, H, K), randn(B, T, H, K)
    v, do = randn(B, T, H, V), randn(B, T, H, V)
    w = -torch.exp(randn(B, T, H, K) - 2)
    if decay == "strong":  # many tokens that forget nothing among some that forget all
        w = torch.where(randn(B, T, H, K) > 1, -torch.inf, w)
    elif decay == "any":
        w = -torch.exp(3 * randn(B, T, H, K))
    elif decay != "mixed":
        w = torch.full_like(w, decay)
    u, s0 = randn(H, K), randn(sequences or B, H, K, V)
    ds1 = randn(sequences or B, H, K, V)
    r, k, v, w, do = (x.to(DEVICE, dtype) for x in (r, k, v, w, do))
    return [r, k, v, w, u.to(DEVICE), s0.to(DEVICE)], do, ds1.to(DEVICE)


def slices(inputs, lengths):
    """Each sequence as a batch of one; all of them where nothing is packed."""
    r, k, v, w, u, s0 = inputs
    if lengths is None:
        yield slice(None), inputs, slice(None)
        return
    t = 0
    for n, length in enumerate(lengths):
        here = slice(t, t + length)
        yield here, [*(x[:, here] for x in (r, k, v, w)), u, s0[n : n + 1]], slice(n, n + 1)
        t += length


def kept_states(inputs, lengths, dtype):
    """What the forward pass keeps; NaN where no sequence has a state."""
    r, k, v, w, u, s0 = (x.double() for x in inputs)
    H, K, V = r.shape[2], r.shape[3], v.shape[3]
    n = count_spans(*r.shape[:2], None if lengths is None else len(lengths), CHECKPOINT)
    states = torch.full((n, H, K, V), math.nan, dtype=dtype, device=r.device)
    start = 0
    for i, length in enumerate(lengths or [r.shape[1]] * r.shape[0]):
        row, t0 = (i, 0) if lengths is None else (0, start)
        first = i * -(-length // CHECKPOINT) if lengths is None else start // CHECKPOINT + i
        s = s0[i]
        for c in range(-(-length // CHECKPOINT)):
            states[first + c] = s.to(dtype)
            here = slice(t0 + c * CHECKPOINT, t0 + min(length, (c + 1) * CHECKPOINT))
            chunk = [x[row : row + 1, here] for x in (r, k, v, w)]
            s = wkv6_doubling(*chunk, u, s[None])[1][0]
        start += length
    return states


def in_units(states):
    """States in float16 as the forward pass keeps them, 16 keys in a unit of their own."""
    count, H, K, V = states.shape
    by_block = states.view(count, H, K, V // 64, 64)
    largest = states.view(count, H, K // 16, 16, V // 64, 64).abs().amax((3, 5))
    exponents = largest.clamp(min=2.0**-100).log2().floor() - 14
    exponents = exponents.repeat_interleave(16, 2)
    in_unit = (by_block * (-exponents).exp2()[..., None]).view(states.shape)
    exponents = exponents.transpose(2, 3).reshape(count, H, K // 64, V)  # blocks × keys, on end
    return torch.cat((in_unit, exponents), 2).half()


def out_of_units(saved):
    """The states that `in_units` gave, in float64."""
    saved = saved.double()
    (count, H, rows, V) = saved.shape
    K = rows * 64 // 65
    exponents = saved[:, :, K:].reshape(count, H, V // 64, K).transpose(2, 3)
    return saved[:, :, :K] * exponents.exp2().repeat_interleave(64, 3)


def expected(inputs, do, ds1, lengths=None, scale=1.0, raw=False):
    leaves = [x.double().requires_grad_() for x in inputs]
    total = 0
    for here, (r, k, v, w, u, s0), n in slices(leaves, lengths):
        if r.shape[1] == 0:
            total = total + (s0 * ds1[n]).sum() if ds1 is not None else total
            continue
        method = wkv6_reference if not GPU else wkv6_doubling
        o, s1 = method(r * scale, k, v, -torch.exp(w) if raw else w, u, s0)
        if do is not None:
            total = total + (o * do[:, here]).sum()
        if ds1 is not None:
            total = total + (s1 * ds1[n]).sum()
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def got(inputs, do, ds1, lengths=None, scale=1.0, raw=False, between=None):
    cu = None
    if lengths is not None:
        cu = torch.tensor([0, *lengths]).cumsum(0).to(DEVICE)
    r, k, v, w, u, s0 = inputs
    plain = [r, k, v, -torch.exp(w.double()) if raw else w, u, s0]
    on_hopper = chunked_backward.takes_tiles((r, k, v, w), v.shape[-1], False)
    checkpoints = kept_states(plain, lengths, states_dtype(r))
    if on_hopper and r.dtype == torch.float16:
        checkpoints = in_units(checkpoints)
    return gradients(*inputs, cu, checkpoints, do, ds1, scale, raw, between)


def compare(results, expected, tolerance):
    for name, x, y in zip(NAMES[: len(expected)], results, expected, strict=True):
        assert x.shape == y.shape, name
        error = (x.double() - y).norm() / y.norm().clamp(min=1e-30)
        assert error <= (tolerance[name] if isinstance(tolerance, dict) else tolerance), (
            f"{name} {error:.1e}"
        )
