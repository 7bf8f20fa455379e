"""Which tensors have at their address the numbers that they stand for, so that kernels may have it.

A tensor that is distributed, fake or wrapped has others there, or none; a transform such as vmap,
a view with another sign and a tangent of forward mode are known to torch's dispatcher alone. It
costs the host as much as a short kernel, so that ordinary tensors go past it.
"""

import torch
from torch.autograd import forward_ad

PLAIN = torch.Tensor, torch.nn.Parameter
_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
_tracing = getattr(torch._C, "_is_tracing", None)
# Private parts of torch: where one is missing, the dispatcher gets every call.
KNOWN = bool(_modes and _transforms and _tracing and hasattr(forward_ad, "_current_level"))


def no_transforms():
    """Whether a tensor of type `PLAIN` is what it says: sizes are numbers, none is a batch."""
    return KNOWN and _transforms() is None


def launches_directly(*tensors):
    """May a kernel be launched without torch's dispatcher? tensors: all that it is to read."""
    if torch.compiler.is_compiling() or not KNOWN:
        return False
    if _modes() or _transforms() is not None or _tracing() or forward_ad._current_level >= 0:
        return False
    for x in tensors:
        if x is not None and (type(x) not in PLAIN or x.is_neg()):
            return False
    return True
