"""In which precision an operation computes: its own, whatever torch.autocast says."""

import functools
from functools import partial

import torch


def sum_dtype(dtype):
    """What sums over numbers of `dtype` are made in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def outside_autocast(operation, backward=False):
    """Makes an operation compute as outside of torch.autocast, on the device of its first tensor.

    Autocast would make products of 16 bits out of those in float32. A backward pass is compiled
    with autocast as it is in the forward pass, and may run with another.
    """

    @functools.wraps(operation)
    def outside(*args, **named):
        tensors = (x for x in (*args, *named.values()) if isinstance(x, torch.Tensor))
        x = next(tensors, None)
        compiled = backward and torch.compiler.is_compiling()
        if x is not None and _casts(x.device.type, compiled):
            with torch.autocast(x.device.type, enabled=False):
                return operation(*args, **named)
        return operation(*args, **named)

    return outside


class Product(torch.autograd.Function):
    """x @ y, whose gradients are as outside of torch.autocast, too.

    While gradients are computed autocast is on or off by itself, whatever it was in the forward
    pass.
    """

    generate_vmap_rule = True

    @staticmethod
    @outside_autocast
    def forward(x, y):
        return x @ y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @partial(outside_autocast, backward=True)
    def backward(ctx, do):
        x, y = ctx.saved_tensors
        dx = product(do, y.mT).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        dy = product(x.mT, do).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None
        return dx, dy


class ProductWithTangents(Product):
    """Forward mode as well; torch.compile takes no Function that has it."""

    @staticmethod
    def jvp(ctx, dx, dy):
        x, y = ctx.saved_tensors
        terms = [] if dx is None else [product(dx, y)]
        terms += [] if dy is None else [product(x, dy)]
        return sum(terms)


def product(x, y):
    """x @ y of matrices outside of torch.autocast, forward and backward: see `Product`."""
    if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return Product.forward(x, y)
    return (Product if torch.compiler.is_compiling() else ProductWithTangents).apply(x, y)


def _casts(device, may_cast):
    if device == "meta":  # autocast does not know it
        return False
    return may_cast or torch.is_autocast_enabled(device)
