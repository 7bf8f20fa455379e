"""One token of an operation, its state updated where it is: one launch, one read and one write."""

import operator

import torch

from ..runtime.operators import call
from ..runtime.packages import TRITON
from ..runtime.plain import launches_directly
from ..runtime.precision import sum_dtype
from .arguments import holds_float64, wants_gradients


class Step:
    """The operator of one token, which returns o and overwrites the state.

    Args:
        operation: its name, "wkv6".
        letters: of the tensors before the state.
        options: of the schema, after the state: "float scale, bool raw_decay".
        exact: letters of the tensors that may be float64 on their own; then torch computes.
        run_forward: () → the recurrent kernel's `run_forward`, with which Triton is imported.
        reference: (*tensors, state, None, *options) → o, s1 in torch.
    """

    def __init__(self, operation, letters, options, exact, run_forward, reference):
        self.operation, self.run_forward, self.reference = operation, run_forward, reference
        self.exact = operator.itemgetter(*map(letters.index, exact))
        name = f"rwkv_lessons::{operation}_step"
        tensors = ", ".join(f"Tensor {x}" for x in letters)
        torch.library.define(name, f"({tensors}, Tensor(a!) state, {options}) -> Tensor")
        torch.library.impl(name, "CUDA", self.on_gpu if TRITON else self.in_torch)
        torch.library.impl(name, "CPU", self.in_torch)
        v = letters.index("v")
        torch.library.register_fake(
            name, lambda *x: torch.empty_like(x[v], memory_format=torch.contiguous_format)
        )
        self.operator = getattr(torch.ops.rwkv_lessons, f"{operation}_step")

    def __call__(self, sizes, tensors, state, *options):
        """o of checked tensors and options; B, T, H, K, V are their `sizes`.

        Raises:
            TypeError, ValueError: there are more tokens, or the state has the wrong dtype, shape,
                layout or device, or a gradient is needed.
        """
        B, T, H, K, V = sizes
        r = tensors[0]
        if T != 1:
            see = self.operation
            raise ValueError(f"r must be [B, 1, H, K], one token, got {list(r.shape)}; see {see}")
        real = sum_dtype(r.dtype)
        if not isinstance(state, torch.Tensor) or state.dtype != real:
            actual = getattr(state, "dtype", type(state).__name__)
            raise TypeError(f"state must be a tensor of {real}, got {actual}")
        if state.shape != (B, H, K, V) or not state.is_contiguous():
            expected, actual = [B, H, K, V], f"{list(state.shape)}, strides {state.stride()}"
            raise ValueError(f"state must be [B, H, K, V] = {expected}, contiguous, got {actual}")
        if state.device != r.device:
            raise ValueError(f"state must be on r's device {r.device}, got {state.device}")
        if torch.is_grad_enabled() and wants_gradients(*tensors, state):
            raise ValueError(
                f"no argument can require a gradient: state is overwritten; see {self.operation}"
            )
        if TRITON and r.is_cuda and launches_directly(*tensors, state):
            return self.on_gpu(*tensors, state, *options)
        return call(self.operator, *tensors, state, *options)

    def on_gpu(self, *arguments):
        """o by the kernel, if it computes in these dtypes."""
        if holds_float64(*self.exact(arguments)):
            return self.in_torch(*arguments)
        *tensors, state, scale, decay = arguments
        o, _ = self.run_forward()(*tensors, state, None, scale, decay, s1=state)
        torch.autograd.graph.increment_version(state)  # torch does not see what a kernel writes
        return o

    def in_torch(self, *arguments):
        """o by the reference."""
        *tensors, state, scale, decay = arguments
        o, s1 = self.reference(*tensors, state, None, scale, decay)
        state.copy_(s1)
        return o
