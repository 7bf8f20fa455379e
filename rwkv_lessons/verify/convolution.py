"""Time-x: inputs, what a method makes of them, and float64."""

import zlib

import torch

from .. import timex as package
from . import limits
from .judge import with_training


class Convolution:
    """One call. `results()` by the method, `expected()` in float64, all channels at once."""

    def __init__(self, case, device):
        self.case, self.eps = case, case.options.get("eps", 0.0)
        seed = zlib.crc32(f"{case.operation} {case.sizes} {case.option}".encode())
        g = torch.Generator(device).manual_seed(seed)
        B, C, T = case.sizes
        dtype = getattr(torch, case.dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        w, k, do = (
            torch.randn(*s, generator=g, device=device) for s in ((C, T), (B, C, T), (B, C, T))
        )
        w = w.to(wide if "w_dtype" in case.options else dtype)
        self.inputs, self.do = (w, k.to(dtype)), do.to(dtype)

    def results(self):
        """o without gradients, and o, dw and dk with them."""
        method = package.METHODS.get(self.case.method) or package.timex
        with torch.no_grad():
            tensors = {"o": method(*self.inputs, self.eps)}
        in_training = self._with_gradients(method, self.inputs, self.do)
        return with_training(tensors, in_training)

    def expected(self):
        """(0, name → float64): there is one part."""
        inputs = [x.double() for x in self.inputs]
        yield 0, self._with_gradients(package.timex_reference, inputs, self.do.double())

    def _with_gradients(self, method, inputs, do):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            o = method(*leaves, self.eps)
        dw, dk = torch.autograd.grad(o, leaves, do)
        return {"o": o.detach(), "dw": dw, "dk": dk}

    def errors(self, name, result, part, want):
        """Of each row ‖got − want‖ / ‖want‖, and the numbers that one error is of."""
        return limits.relative(result.double() - want, want), want.shape[-1]

    def limit(self, name):
        dtype = self.inputs[0].dtype if name == "dw" else self.inputs[1].dtype
        return limits.limit(limits.TIMEX, str(dtype).removeprefix("torch."), name)
