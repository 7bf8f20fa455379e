"""What torch has to be told about functions and operators of ours."""

import torch
from torch.autograd import forward_ad


def constant_when_compiled(function):
    """torch.compile takes what it returns for a constant, and does not look inside.

    torch.compiler.assume_constant_result does no more, but imports torch._dynamo and Triton, which
    takes longer than the import of all of this library.
    """
    function._dynamo_marked_constant = True
    return function


def refuse_second_gradients(name):
    """Makes an error of the gradients of an operator that computes gradients.

    torch takes an operator without a gradient for a constant: second gradients would be zeros.
    """

    def refuse(ctx, *_):
        raise RuntimeError(
            f"{name} has no gradient: second gradients are those of the methods in torch alone, "
            "as wkv5_chunked, wkv6_doubling and mla_absorbed"
        )

    torch.library.register_autograd(name, refuse)


def call(operator, *args):
    """operator(*args); forward-mode gradients are an error.

    torch hides them from an operator that has gradients of its own: they would get lost.
    """
    refuse_tangents(operator, args)
    return operator(*args)


def refuse_tangents(function, tensors):
    """Raises a RuntimeError if one of the tensors has a gradient of forward mode."""
    if torch.compiler.is_compiling() or getattr(forward_ad, "_current_level", 0) < 0:
        return
    for x in tensors:
        if isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError(
                f"{function} has no forward-mode gradients: those are of the methods in torch"
                " alone, as wkv5_chunked, wkv6_doubling and mla_absorbed"
            )
