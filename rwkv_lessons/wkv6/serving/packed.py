"""Prompts and single tokens of many sequences in one call, on states of a pool."""

import functools

import torch

from ...runtime.operators import call
from ...runtime.packages import TRITON
from ...runtime.plain import launches_directly
from ...sequences.arguments import wants_gradients
from ...sequences.states.pool import DTYPES, check_ends, check_indices, check_options, check_pool
from ..options import check_call
from .in_torch import serving_in_torch

MOST_KEYS = 256  # of a head that the kernels hold


@functools.cache
def _run():
    """The kernels' launches, with which Triton is imported."""
    from .kernels import run

    return run


def serving(
    r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds, scale, raw_decay, longest
):  # fmt: skip
    """On a GPU; heads of more keys than a program holds in torch, which waits for the GPU."""
    tensors = (r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds)
    if not TRITON or r.shape[3] > MOST_KEYS:
        return serving_in_torch(*tensors, scale, raw_decay)
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return serving(*tensors, scale, raw_decay, longest)
    r, k, v, w, u = (x.contiguous() for x in (r, k, v, w, u))
    w0, o = None if w0 is None else w0.contiguous(), torch.empty_like(v)
    tensors = (r, k, v, w, u, w0, state_pool, indices, cu_seqlens, seeds, o)
    _run()(*tensors, scale, raw_decay, longest)
    torch.autograd.graph.increment_version(state_pool)
    return o


def on_any_device(*arguments):
    """`serving` in torch, which does not need the bound."""
    return serving_in_torch(*arguments[:-1])


NAME = "rwkv_lessons::wkv6_serving"
torch.library.define(
    NAME,
    "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? w0, Tensor(a!) state_pool,"
    " Tensor indices, Tensor cu_seqlens, Tensor? seeds, float scale, bool raw_decay, int longest)"
    " -> Tensor",
)
torch.library.impl(NAME, "CUDA", serving)
torch.library.impl(NAME, "CPU", on_any_device)
torch.library.register_fake(
    NAME, lambda r, k, v, *_: torch.empty_like(v, memory_format=torch.contiguous_format)
)


def wkv6_serving(
    r, k, v, w, u, state_pool, state_indices, cu_seqlens, *, raw_decay=True, w0=None, scale=1.0,
    seeds=None, longest=None,
):  # fmt: skip
    """Mixes tokens of many sequences into their states, which are overwritten in the pool.

    As `wkv7_serving`, with the arguments of `wkv6`: `wkv6_step` for a pool, and for prompts.

    Args:
        r, k, w: `[1, total, H, K]`; v: `[1, total, H, V]`; float32, float16 or bfloat16.
        u: bonus of the current token, `[H, K]`.
        state_pool, state_indices, cu_seqlens, scale, seeds, longest: see `wkv7_serving`.
        raw_decay: w, or w0 + w, is x of `exp(-exp(x))`, as models store it; else the log decay.
        w0: added to w, in float32, `[H, K]`.

    Returns:
        o `[1, total, H, V]` in r's dtype; zeros in rows of no sequence and of padding.

    Raises:
        TypeError, ValueError: as `wkv7_serving`.
    """
    H, K, V = check_call(r, k, v, w, u, None, None, scale, raw_decay, DTYPES)[2:]
    S = check_ends(cu_seqlens, r, longest)
    check_pool(state_pool, r, H, K, V)
    check_indices(state_indices, state_pool, S)
    check_options(w0, seeds, r, state_pool, S)
    if torch.is_grad_enabled() and wants_gradients(r, k, v, w, u, w0, state_pool):
        raise ValueError("no argument can require a gradient: state_pool is overwritten; see wkv6")
    tensors = (r, k, v, w, u, w0, state_pool, state_indices, cu_seqlens, seeds)
    total = r.shape[1]
    arguments = (*tensors, float(scale), raw_decay, min(longest or total, total))
    if TRITON and r.is_cuda and launches_directly(*tensors):
        return serving(*arguments)
    return call(torch.ops.rwkv_lessons.wkv6_serving, *arguments)
