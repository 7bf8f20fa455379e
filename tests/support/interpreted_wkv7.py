"""The kernels of WKV-7 on a CPU, with gradients: in Triton's interpreter, which computes products
as tensor cores do.

Run as a program: the tables of `rwkv_lessons.verify.block` by them.
"""

import os
import sys
from importlib import import_module

import torch


class Interpreted(torch.autograd.Function):
    """o of a method's kernels, which the library itself launches on a GPU only."""

    @staticmethod
    def forward(ctx, method, *tokens):
        module = import_module(f"rwkv_lessons.wkv7.{method}.forward")
        o, _, *to_save = module.forward(*tokens, None, None, 1.0, "clamp", True)
        ctx.method = method
        ctx.save_for_backward(*tokens, *to_save)
        return o

    @staticmethod
    def backward(ctx, do):
        module, saved = import_module(f"rwkv_lessons.wkv7.{ctx.method}.backward"), ctx.saved_tensors
        tokens, states = saved[:6], saved[6:]
        arguments = *tokens, None, None, *states, do, None, 1.0, "clamp"
        return None, *module.gradients(*arguments)[:6]


def interpreted(method):
    return lambda *tokens: Interpreted.apply(method, *tokens)


def ways():
    """As `rwkv_lessons.verify.block.ways`, of a GPU."""
    from rwkv_lessons.verify.block import ClampW

    by_name = {"RWKV-LM": (torch.bfloat16, ClampW.apply)}
    for dtype in (torch.bfloat16, torch.float32):
        for name in ("chunked", "recurrent"):
            named = f"{name}, {str(dtype).removeprefix('torch.')}"
            by_name[named] = dtype, interpreted(name)
    return by_name


def main(shape):
    import pytest
    from support.tensor_core import tensor_core

    from rwkv_lessons.verify import block

    with pytest.MonkeyPatch.context() as patches:
        tensor_core.__wrapped__(patches)
        block.show(block.errors(ways(), *shape), shape, "a CPU, kernels in Triton's interpreter")


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
    main([int(x) for x in sys.argv[1:]] or [1, 64, 1])
