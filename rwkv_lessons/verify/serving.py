"""Serving calls of WKV-6 and WKV-7, and drafts that are verified and committed; and float64.

The sequences of a case, of which some are empty, are in slots of a pool in no order, beside one
without a slot. What float64 computes is that of `wkv6` and `wkv7`.
"""

from importlib import import_module

import torch

from .delta_rule import DeltaRule
from .recurrence import Recurrence

# ‖error‖ / ‖reference‖ that rounding a state to 11 bits adds once: 2.1e-4, by chance a half more.
NEAREST, STOCHASTIC = 4e-4, 6e-4


class Serving:
    """One call; of `Recurrence` and of `DeltaRule` it takes the inputs and float64."""

    def __init__(self, case, device):
        super().__init__(case, device)
        self.dtype = getattr(torch, self.options.get("pool", "float32"))
        *tokens, s0 = self.inputs
        self.inputs = (*tokens, s0.to(self.dtype).float())
        H, K = s0.shape[1:3]
        g = torch.Generator(device).manual_seed(1)
        self.w0 = None
        if self.options.get("w0"):
            self.w0 = -torch.rand(H, K, generator=g, device=device)  # a log decay is at most 0
        order = torch.randperm(len(s0) + 3, generator=g, device=device)
        self.slots = order[: len(s0)].int()
        self.pool = torch.full((len(order), *s0.shape[1:]), torch.nan, device=device)
        self.pool[self.slots.long()] = self.inputs[-1]
        self.pool = self.pool.to(self.dtype)
        seeds = torch.arange(len(s0), device=device, dtype=torch.int32)
        self.seeds = seeds if self.options.get("stochastic") else None

    def results(self):
        call = dict(self.call, w0=self.w0, seeds=self.seeds)
        pool, ends = self.pool.clone(), call.pop("cu_seqlens")
        # One more sequence, of no tokens, has no slot.
        ends = torch.cat([ends, ends[-1:]])
        slots = torch.cat([self.slots, torch.full_like(self.slots[:1], -1)])
        if self.seeds is not None:
            call["seeds"] = torch.cat([self.seeds, self.seeds[:1]])
        o = self.serve(*self.inputs[:-1], pool, slots, ends, **call)
        return {"o": o, "s1": pool[self.slots.long()].float()}

    def _of(self, heads):
        tensors = list(super()._of(heads))
        at = self.leaves.index("w")
        if self.w0 is not None:
            tensors[at] = tensors[at].double() + self.w0[heads].double()
        return tuple(tensors)

    def limit(self, name):
        limit = super().limit(name)
        if name != "s1" or self.dtype != torch.float16:
            return limit
        return limit + (NEAREST if self.seeds is None else STOCHASTIC)


class Serving6(Serving, Recurrence):
    @property
    def serve(self):
        return import_module("rwkv_lessons.wkv6.serving").wkv6_serving


class Serving7(Serving, DeltaRule):
    @property
    def serve(self):
        return import_module("rwkv_lessons.wkv7.serving").wkv7_serving

    def results(self):
        return self._drafts() if self.options.get("drafts") else super().results()

    def _drafts(self):
        """All drafts verified, and committed."""
        package = import_module("rwkv_lessons.wkv7.serving")
        *tokens, _ = self.inputs
        pool, call = self.pool.clone(), dict(self.call, w0=self.w0, seeds=self.seeds)
        o = package.wkv7_verify(*tokens, pool, self.slots, **call)
        call.pop("scale", None)
        accepted = torch.full_like(self.slots, tokens[0].shape[1])
        package.wkv7_commit(*tokens, pool, self.slots, accepted, **call)
        return {"o": o, "s1": pool[self.slots.long()].float()}
