"""The Triton methods of WKV-6 as operators of torch, with autograd between forward and backward."""

import torch

from ..runtime.operators import call, refuse_second_gradients
from ..runtime.plain import launches_directly
from ..sequences.arguments import sequences_in

GIVEN = "Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? s0, Tensor? cu_seqlens"
FORWARD = f"({GIVEN}, float scale, bool raw_decay, bool keep) -> (Tensor, Tensor, Tensor)"
BACKWARD = (
    f"({GIVEN}, Tensor kept, Tensor? do, Tensor? ds1, float scale, bool raw_decay)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def gradient_shapes(r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, scale, raw_decay):
    """What a method's `gradients` returns, without values."""
    like = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (r, k, v, w, u)]
    S = sequences_in(r, cu_seqlens)
    return *like, r.new_empty(S, *r.shape[2:], v.shape[3], dtype=torch.float32)


def keep_inputs(ctx, inputs, output):
    *tensors, ctx.scale, ctx.raw_decay, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.set_materialize_grads(False)  # no zeros of the size of all the states


def define_backward(method, gradients):
    """Makes an operator of `gradients` and returns the backward function of autograd with it."""
    name = f"wkv6_{method}_backward"
    torch.library.define(f"rwkv_lessons::{name}", BACKWARD)
    torch.library.impl(f"rwkv_lessons::{name}", "CUDA", gradients)
    torch.library.register_fake(f"rwkv_lessons::{name}", gradient_shapes)
    refuse_second_gradients(f"rwkv_lessons::{name}")

    def backward(ctx, do, ds1, _):
        *inputs, cu_seqlens, checkpoints = ctx.saved_tensors
        arguments = (*inputs, cu_seqlens, checkpoints, do, ds1, ctx.scale, ctx.raw_decay)
        if not torch.is_grad_enabled() and launches_directly(*arguments[:-2]):
            *results, ds0 = gradients(*arguments)
        else:
            *results, ds0 = call(getattr(torch.ops.rwkv_lessons, name), *arguments)
        s0 = inputs[-1]
        return *results, None if s0 is None else ds0.to(s0.dtype), None, None, None, None

    return backward


def define_forward(method, forward, shapes, backward):
    """Makes an operator of `forward`, whose results `shapes` gives without values."""
    name = f"rwkv_lessons::wkv6_{method}_forward"
    torch.library.define(name, FORWARD)
    torch.library.impl(name, "CUDA", forward)
    torch.library.register_fake(name, shapes)
    torch.library.register_autograd(name, backward, setup_context=keep_inputs)
