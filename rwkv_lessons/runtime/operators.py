"""What torch has to be told about operators of ours."""

import torch


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
