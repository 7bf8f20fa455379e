"""Any operation on tensors: inputs, what a method makes of them, and float64."""

import inspect
import zlib
from importlib import import_module

import torch

from rwkv_lessons.operations.entries import loaded

from . import limits
from .cases import CHECKED
from .judge import with_training


class Tensors:
    """One call of an operation whose methods take tensors, all with gradients, and return o.

    `results()` by the method, `expected()` in float64. Options are arguments by name.
    """

    def __init__(self, case, device):
        self.case, self.operation = case, CHECKED[case.operation]
        package = import_module(f"rwkv_lessons.{self.operation.package}")
        function = getattr(package, self.operation.package)
        self.method = package.METHODS.get(case.method) or function
        self.reference = package.METHODS["reference"]
        self.options = dict(case.options)
        seed = zlib.crc32(f"{case.operation} {case.sizes} {case.option}".encode())
        self.generator = torch.Generator(device).manual_seed(seed)
        self.inputs = self.make(getattr(torch, case.dtype), device)
        self.names = [*inspect.signature(function).parameters][: len(self.inputs)]
        o = self.inputs[self.operation.like]
        self.do = torch.randn(o.shape, generator=self.generator, device=device).to(o.dtype)

    def make(self, dtype, device):
        """Those of the entry; in float64, what float32 holds."""
        narrow = torch.float32 if dtype == torch.float64 else dtype
        inputs = loaded(self.operation.inputs)(*self.case.sizes, dtype=narrow, device=device)
        return [x.to(dtype) if dtype == torch.float64 else x for x in inputs]

    def results(self):
        """o without gradients, and o and the gradients with them."""
        with torch.no_grad():
            tensors = {"o": self.method(*self.inputs, **self.options)}
        if not self.case.gradients:
            return tensors
        return with_training(tensors, self._with_gradients(self.method, self.inputs, self.do))

    def expected(self):
        """(0, name → float64): there is one part."""
        inputs = [x.double() for x in self.inputs]
        yield 0, self._with_gradients(self.reference, inputs, self.do.double())

    def _with_gradients(self, method, inputs, do):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            o = method(*leaves, **self.options)
        gradients = torch.autograd.grad(o, leaves, do)
        named = {f"d{x}": y for x, y in zip(self.names, gradients, strict=True)}
        return {"o": o.detach()} | named

    def errors(self, name, result, part, want):
        """Of each row ‖result − want‖ / ‖want‖, and the numbers that one error is of."""
        return limits.relative(result.double() - want, want), want.shape[-1]

    def limit(self, name):
        """By the dtype of the input that a gradient is of; sums are those of time-x."""
        i = self.operation.like if name == "o" else self.names.index(name.removeprefix("d"))
        return limits.limit(limits.TIMEX, str(self.inputs[i].dtype).removeprefix("torch."), name)


class Convolution(Tensors):
    """Time-x: weights and keys of size 1 at every distance; w may be float32 beside 16 bits."""

    def make(self, dtype, device):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        of_w = wide if self.options.pop("w_dtype", None) else dtype
        B, C, T = self.case.sizes
        w, k = (
            torch.randn(*s, generator=self.generator, device=device) for s in ((C, T), (B, C, T))
        )
        return [w.to(of_w), k.to(dtype)]
