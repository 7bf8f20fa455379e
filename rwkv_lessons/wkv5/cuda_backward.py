"""The gradients of WKV-5: those of WKV-6, its general case, with one decay for all tokens.

The kernels of `wkv6/cuda/backward.py` read the same row of w for every token (a stride of 0) and,
instead of writing a dw for each token, add them up.
"""

import torch

from ..runtime.operators import call, refuse_second_gradients
from ..wkv6.cuda.backward import gradient_shapes, gradients


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, do, ds1):
    *inputs, s0 = ctx.saved_tensors
    *gradients, ds0 = call(torch.ops.rwkv_lessons.wkv5_backward, *inputs, s0, do, ds1)
    return *gradients, None if s0 is None else ds0.to(s0.dtype)


NAME = "rwkv_lessons::wkv5_backward"
torch.library.define(
    NAME,
    "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? s0, Tensor? do, Tensor? ds1)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl(NAME, "CUDA", gradients)
torch.library.register_fake(NAME, gradient_shapes)
refuse_second_gradients(NAME)
