"""Prefill of one layer: the time of latent attention where every token is a query.

    prefill             `mla_prefill`: expands keys and values, then attends
    prefill absorbed    the same kernel in the latent space
    sdpa                keys and values as transformers expands them, then torch's attention
    kernel, sdpa kernel the attention alone, on keys and values that are expanded already

triton-mla, on an H200 at the first shape: 0.385 ms; at rank 512 it cannot be launched.
"""

from functools import partial

import torch
import torch.nn.functional as F

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import LIMITS, checked_row
from rwkv_lessons.mla import mla_prefill, mla_reference
from rwkv_lessons.mla.prefill import prefill
from rwkv_lessons.mla.prefill.forward import attend
from rwkv_lessons.operations.mla import MLA_PREFILL
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import code

SOURCES = ("rwkv_lessons/mla/prefill/prefill.py::mla_prefill",)


def command(options):
    """`python -m rwkv_lessons.bench mla-prefill`."""
    choose(METHODS, options.methods)
    settings = {"names": options.methods, "quick": options.quick}
    time_rows(options, MLA_PREFILL, partial(measure, **settings))


def make_inputs(shape, dtype, device):
    """q, q_rope, latent, k_rope, w_k, w_v: normal, and the weights two parts of one."""
    B, T, H, K, R, P, V = shape
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes):
        return torch.randn(*sizes, device=device, generator=generator)

    weight = normal(H, K + V, R) / R**0.5
    tensors = normal(B, T, H, K), normal(B, T, H, P), normal(B, T, R), normal(B, T, P)
    kind = getattr(torch, dtype)
    return *(x.to(kind) for x in tensors), *weight.to(kind).split([K, V], 1)


@torch.no_grad()
def measure(shape, dtype, device, names=None, quick=False):
    """One `Measurement` per method, checked against float64 first."""
    inputs = make_inputs(shape, dtype, device)
    scale = (shape[3] + shape[5]) ** -0.5
    expected = mla_reference(*(x.double() for x in inputs), scale=scale)[0]
    budget_ms, limits = QUICK_MS if quick else timing.BUDGET_MS, recorded_ceilings(device)
    least = MLA_PREFILL.least(shape, dtype)

    def times(run):
        measured = timing.all_times(run, device, budget_ms)
        speed = rates(least, dtype, measured["median_ms"], limits)
        del speed["gb_per_s"]  # the bytes are not what takes the time
        return measured | speed

    for name, prepare in choose(METHODS, names).items():
        row = {"method": name, "shape": shape, "dtype": dtype}
        if "sdpa" not in name:
            row |= code(*SOURCES)
        yield checked_row(row, partial(prepare, *inputs, scale), expected, LIMITS[dtype], times)


def ours(*args):
    *tensors, scale = args
    return lambda: mla_prefill(*tensors, scale=scale)[0]


def ours_absorbed(*args):
    if not args[0].is_cuda:
        return ours(*args)
    return lambda: prefill.forward(*args, None, None, True)[0]


def ours_kernel(q, q_rope, latent, k_rope, w_k, w_v, scale):
    if not q.is_cuda:
        return ours(q, q_rope, latent, k_rope, w_k, w_v, scale)
    k, v = prefill.expand(latent, w_k, w_v)
    return lambda: attend(q, q_rope, k, k_rope, v, None, scale)[0]


def sdpa(q, q_rope, latent, k_rope, w_k, w_v, scale):
    query = torch.cat([q, q_rope], -1).transpose(1, 2).contiguous()
    return lambda: _attend(query, *_expanded(latent, k_rope, w_k, w_v), scale)


def sdpa_kernel(q, q_rope, latent, k_rope, w_k, w_v, scale):
    query = torch.cat([q, q_rope], -1).transpose(1, 2).contiguous()
    key, value = _expanded(latent, k_rope, w_k, w_v)
    value = value.contiguous()
    return lambda: _attend(query, key, value, scale)


def _expanded(latent, k_rope, w_k, w_v):
    """As `expand_kv` of transformers does it: the rope part is copied to every head."""
    k, v = prefill.expand(latent, w_k, w_v)
    return torch.cat([k, k_rope[:, None].expand(-1, k.shape[1], -1, -1)], -1), v


def _attend(query, key, value, scale):
    o = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return o.transpose(1, 2)


METHODS = {
    "prefill": ours,
    "prefill absorbed": ours_absorbed,
    "kernel": ours_kernel,
    "sdpa": sdpa,
    "sdpa kernel": sdpa_kernel,
}
