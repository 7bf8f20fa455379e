"""The Triton methods of WKV-7 as operators of torch, with autograd between forward and backward.

A method is four functions. `forward(…, keep)` returns o, s1 and two tensors that the gradients
start from, empty unless `keep`: states and reads (z). `gradients(…, states, reads, do, ds1, …)`
returns the gradients of r, w, k, v, a, b and s0. Of both there is one that makes the shapes alone.
"""

import torch

from ..runtime import operators
from ..runtime.operators import refuse_second_gradients
from ..runtime.plain import launches_directly
from ..sequences.arguments import empty_results, wants_gradients

TENSORS = ", ".join(f"Tensor {name}" for name in "rwkvab")
GIVEN = f"{TENSORS}, Tensor? s0, Tensor? cu_seqlens"
FORWARD = f"({GIVEN}, float scale, str decay, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
BACKWARD = (
    f"({GIVEN}, Tensor states, Tensor reads, Tensor? do, Tensor? ds1, float scale, str decay)"
    f" -> ({', '.join(['Tensor'] * 7)})"
)


def gradient_shapes(r, w, k, v, a, b, s0, cu_seqlens, *_):
    """What a method's `gradients` returns, without values."""
    like = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (r, w, k, v, a, b)]
    return *like, empty_results(r, v, cu_seqlens)[1]


def define(method, forward, shapes, gradients):
    """Makes operators of a method's functions, and returns the method for checked arguments.

    Args:
        method: its name.
        forward, gradients: see above.
        shapes: what `forward` returns, without values.

    Returns:
        A function `(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)` → o and s1.
    """
    name = f"wkv7_{method}_forward"
    back = f"wkv7_{method}_backward"
    for operator, schema, function, fake in (
        (name, FORWARD, forward, shapes),
        (back, BACKWARD, gradients, gradient_shapes),
    ):
        torch.library.define(f"rwkv_lessons::{operator}", schema)
        torch.library.impl(f"rwkv_lessons::{operator}", "CUDA", function)
        torch.library.register_fake(f"rwkv_lessons::{operator}", fake)
    refuse_second_gradients(f"rwkv_lessons::{back}")

    def keep_inputs(ctx, inputs, output):
        *tensors, ctx.scale, ctx.decay = inputs[:10]
        ctx.save_for_backward(*tensors, *output[2:])
        ctx.set_materialize_grads(False)  # no zeros of the size of all the states

    def backward(ctx, do, ds1, *_):
        *inputs, cu_seqlens, states, reads = ctx.saved_tensors
        arguments = (*inputs, cu_seqlens, states, reads, do, ds1, ctx.scale, ctx.decay)
        if not torch.is_grad_enabled() and launches_directly(*arguments[:-2]):
            *results, ds0 = gradients(*arguments)
        else:
            *results, ds0 = operators.call(getattr(torch.ops.rwkv_lessons, back), *arguments)
        s0 = inputs[-1]
        return *results, None if s0 is None else ds0.to(s0.dtype), None, None, None, None

    torch.library.register_autograd(f"rwkv_lessons::{name}", backward, setup_context=keep_inputs)

    class Direct(torch.autograd.Function):
        """The operator without torch's dispatcher, which costs as much as a short kernel."""

        @staticmethod
        def forward(ctx, *arguments):
            results = forward(*arguments, True)
            keep_inputs(ctx, arguments, results)
            return results[:2]

        @staticmethod
        def backward(ctx, do, ds1):  # with create_graph the operator's, which refuses a second one
            return backward(ctx, do, ds1)[:-1]

    def call(*arguments):
        keep = torch.is_grad_enabled() and wants_gradients(*arguments[:7])
        if not launches_directly(*arguments[:8]):
            return operators.call(getattr(torch.ops.rwkv_lessons, name), *arguments, keep)[:2]
        return Direct.apply(*arguments) if keep else forward(*arguments, False)[:2]

    return call
