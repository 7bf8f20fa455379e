"""A method's two kernels as operators of torch, with autograd between forward and backward."""

import torch

from ..runtime.operators import call, refuse_second_gradients


def define(method, convolve, correlate):
    """Makes the operators `timex_<method>_forward` and `…_backward`; returns the first.

    Args:
        convolve: (w, k, eps, backwards) → o; with time reversed in k and o where it is backwards.
        correlate: (do, k) → dw, float32.
    """

    def forward(w, k, eps):
        if k.get_device() != torch.cuda.current_device():
            with torch.cuda.device(k.device):
                return forward(w, k, eps)
        return convolve(w.contiguous(), k.contiguous(), eps, False)

    def gradients(w, k, do):
        if k.get_device() != torch.cuda.current_device():
            with torch.cuda.device(k.device):
                return gradients(w, k, do)
        w, k, do = w.contiguous(), k.contiguous(), do.contiguous()
        return correlate(do, k).to(w.dtype), convolve(w, do, 0.0, True)

    def keep_inputs(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    def backward(ctx, do):
        operator = getattr(torch.ops.rwkv_lessons, f"timex_{method}_backward")
        return *call(operator, *ctx.saved_tensors, do), None

    name = f"rwkv_lessons::timex_{method}_forward"
    torch.library.define(name, "(Tensor w, Tensor k, float eps) -> Tensor")
    torch.library.impl(name, "CUDA", forward)
    torch.library.register_fake(name, lambda w, k, eps: contiguous_like(k))
    torch.library.register_autograd(name, backward, setup_context=keep_inputs)

    name = f"rwkv_lessons::timex_{method}_backward"
    torch.library.define(name, "(Tensor w, Tensor k, Tensor do) -> (Tensor, Tensor)")
    torch.library.impl(name, "CUDA", gradients)
    torch.library.register_fake(name, lambda w, k, do: (contiguous_like(w), contiguous_like(k)))
    refuse_second_gradients(name)
    return getattr(torch.ops.rwkv_lessons, f"timex_{method}_forward")


def contiguous_like(x):
    """Without values."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
