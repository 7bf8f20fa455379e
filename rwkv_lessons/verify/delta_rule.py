"""WKV-7 and its single step: inputs, what a method makes of them, and float64."""

from importlib import import_module

import torch
from torch.nn import functional as F

from rwkv_lessons.wkv7.options import CLAMP

from . import limits
from .recurrence import Recurrence, decays, raw


class DeltaRule(Recurrence):
    """One call; a and b as models have them: a unit vector, and a rate times it."""

    leaves = ("r", "w", "k", "v", "a", "b", "s0")

    def __init__(self, case, device):
        g, B, T, sequences = self._begin(case, device, "decay")
        H, K, V = case.sizes[2:]
        dtype = getattr(torch, case.dtype)
        state_dtype = torch.float64 if dtype == torch.float64 else torch.float32

        def normal(*sizes):
            return torch.randn(*sizes, generator=g, device=device)

        r, k, kappa, v, do = (normal(B, T, H, n) for n in (K, K, K, V, V))
        w = decays(case.decay, (B, T, H, K), g)
        w = self._as_given(w).to(getattr(torch, self.options.get("w_dtype", case.dtype)))
        kappa = F.normalize(kappa, dim=-1)
        rate = torch.rand(B, T, H, K, generator=g, device=device)
        tokens = (r, k / K**0.5, v, -kappa, kappa * rate)
        r, k, v, a, b, self.do = (x.to(dtype) for x in (*tokens, do))
        s0, ds1 = normal(sequences, H, K, V), normal(sequences, H, K, V)
        state = self.options.get("state")
        self.inputs = (r, w, k, v, a, b, s0.to(state_dtype) if state else None)
        self.ds1 = ds1.to(state_dtype) if state else None

    def _as_given(self, w):
        form = self.options.get("decay", "log")
        if form == "log":
            return w
        return raw(w) if form == "raw" else torch.logit((-w / CLAMP).clamp(0, 1))

    def _of(self, heads):
        *tokens, s0 = self.inputs
        return *(x[:, :, heads] for x in tokens), None if s0 is None else s0[:, heads]

    def _in_float64(self):
        """The recurrence itself on a CPU and for float64; matrix products for more tokens."""
        methods = import_module("rwkv_lessons.wkv7").METHODS
        few = self.case.sizes[1] <= 300 and not self.inputs[0].is_cuda
        return methods["reference" if few or self.case.dtype == "float64" else "wy"]

    def limit(self, name):
        return limits.limit(limits.WKV7, self.case.dtype, name)
