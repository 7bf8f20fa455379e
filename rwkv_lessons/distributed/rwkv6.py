"""RWKV-6's part: a run of tokens multiplies the state before it by one decay for each key.

An entry state E adds r[t] diag(exp(w[0] + … + w[t-1])) E to o[t]. How far that reaches, sums of w
over chunks of tokens say. Of a model's decays few thousand tokens are enough, so those are summed
first, and the host reads while the main pass runs whether there is anything left after them.
"""

import torch

from ..runtime.packages import TRITON
from ..runtime.precision import sum_dtype
from ..runtime.running_sums import running_sums
from ..sequences.decays import log_decay
from ..wkv6 import wkv6
from ..wkv6.options import check_call
from .cost import FIRST_LOOK

OPERATION, CHECK = wkv6, check_call
INPUTS, V = ("r", "k", "v", "w", "u"), 2  # the arguments before s0, and which of them is v
BESIDE = False  # sums of decays: a moment, before the main pass
CHUNK = 64  # tokens of a sum
LOWEST = -1e6  # instead of -inf, of which differences are NaN
KEPT_BITS = {torch.float64: 128, torch.float32: 64}  # else 32: decays below 2^-that are zero
LN2 = 0.6931471805599453


def columns(B):
    """Columns of A beside the states B `[…, K, V]`."""
    return 1


def cutoff(dtype):
    """The log decay below which nothing is left of a state."""
    return -LN2 * KEPT_BITS.get(dtype, 32)


class Carry:
    """The decays since a rank's first token, as far as they let an entry state through."""

    def __init__(self, call, inputs, tokens, saved=None):
        """Begins to look; `tokens` are those of the sequence that enters."""
        self.begin(call, inputs, tokens, suits_kernels(inputs[0]))

    def begin(self, call, inputs, tokens, in_triton):
        self.r, _, _, self.w, _ = (x.detach() for x in inputs)
        self.raw = call.options.get("raw_decay", False)
        self.scale = float(call.options.get("scale", 1.0))
        self.tokens, self.real = tokens, sum_dtype(self.r.dtype)
        K, self.chunk = self.r.shape[-1], CHUNK
        self.in_triton = in_triton
        if in_triton:
            from .correction import chunk_for

            self.chunk = chunk_for(K)
        self.sums = self._sums(0, min(tokens, FIRST_LOOK))
        # NaN is not below anything.
        self.goes_on = _to_host(~(self.sums.sum(1) < cutoff(self.r.dtype)).all())

    def _sums(self, start, end):
        """Log decays summed over chunks, `[B, chunks, H, K]`."""
        w = self.w[:, start:end]
        w = log_decay(w, self.real) if self.raw else w
        whole = w.shape[1] // self.chunk * self.chunk
        sums = w[:, :whole].unflatten(1, (-1, self.chunk)).sum(2, dtype=self.real)
        if whole < w.shape[1]:
            sums = torch.cat([sums, w[:, whole:].sum(1, keepdim=True, dtype=self.real)], 1)
        return sums.clamp(min=LOWEST)

    def _look(self):
        if self.goes_on is None:
            return
        self.reach = min(self.tokens, FIRST_LOOK)
        if self.reach < self.tokens and self.goes_on():
            self.sums = torch.cat([self.sums, self._sums(self.reach, self.tokens)], 1)
            self.reach = self.tokens
        total = running_sums(self.sums, 1)
        self.before, self.total = _after_one(total), total[:, -1]  # before each chunk; of all
        self.sums = self.goes_on = None

    def across(self):
        """The decay of all its tokens, `[B, H, K, 1]`."""
        self._look()
        if self.reach < self.tokens:
            return torch.zeros_like(self.total)[..., None]
        return self.total.exp()[..., None]

    def correct(self, o, E):
        """o with what its tokens read of the entry state; a kernel adds it in place."""
        self._look()
        if self.in_triton:
            from .correction import add_entry

            least, o = cutoff(self.r.dtype), o.contiguous()
            add_entry(o, self.r, self.w, self.before, E, self.reach, self.scale, self.raw, least)
            return o
        o = o.clone()
        o[:, : self.reach] += (self._readers() @ E.to(self.real)).transpose(1, 2).to(o.dtype)
        return o

    def _log_decays(self):
        w = self.w[:, : self.reach]
        return log_decay(w, self.real) if self.raw else w.to(self.real).clamp(min=LOWEST)

    def _readers(self):
        """r through the decays since the first token, `[B, H, reach, K]`."""
        w = self._log_decays()
        r = self.r[:, : self.reach].to(self.real) * self.scale
        return (r * self._decays(w)).transpose(1, 2)

    @staticmethod
    def _decays(w):
        """exp(w[0] + … + w[t-1])"""
        return _after_one(running_sums(w, 1)).exp()

    def entry_gradient(self, do, E):
        """The gradient of the entry state through o."""
        if self.in_triton:
            from .correction import entry_gradient

            results = entry_gradient(do, self.r, self.w, self.before, E, self.reach, self.scale,
                                   self.raw, cutoff(self.r.dtype))  # fmt: skip
            dE, self.chunk_sums = results
            return dE
        return self._readers().mT @ do[:, : self.reach].transpose(1, 2).to(self.real)

    def add_gradients(self, gradients, do, E, after):
        """Adds to those of r and w what they change of the correction and of the map.

        Args:
            gradients: of r, k, v, w, u; None where there is none. Changed in place.
            after: of the state after the tokens of the sequence that enters, `[B, H, K, V]`.
        """
        for n in (0, 3):  # the kernels' are; of a method in torch they may be transposed
            gradients[n] = None if gradients[n] is None else gradients[n].contiguous()
        dr, dw = gradients[0], gradients[3]
        of_total = (self.across()[..., 0] * (E * after).sum(-1))[:, None]  # each w is part of A
        if self.in_triton:
            from .correction import add_gradients

            later = _after(self.chunk_sums) + of_total
            add_gradients(dr, dw, do, self.r, self.w, self.before, E, later, self.reach,
                          self.scale, self.raw, cutoff(self.r.dtype))  # fmt: skip
            return
        w = self._log_decays()
        dx = do[:, : self.reach].transpose(1, 2).to(self.real) @ E.to(self.real).mT
        dx = dx.transpose(1, 2) * self._decays(w) * self.scale
        if dr is not None:
            dr[:, : self.reach] += dx.to(dr.dtype)
        if dw is not None:
            y = dx * self.r[:, : self.reach].to(self.real)  # w[u] is part of the decays after u
            d_log = _after(y) + of_total
            dw[:, : self.reach] += (d_log * w if self.raw else d_log).to(dw.dtype)


def _after_one(x):
    """x one place later along dimension 1, with zeros at its start."""
    return torch.nn.functional.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))


def _after(x):
    """Sums along dimension 1 over what follows: no difference, which would lose small ones."""
    return _after_one(running_sums(x.flip(1), 1)).flip(1)


def suits_kernels(r):
    return TRITON and r.is_cuda and r.dtype != torch.float64 and r.shape[-1] <= 256


def _to_host(flag):
    """A function that waits for a boolean of the device, and not for what is launched later."""
    if not flag.is_cuda:
        return flag.item
    there = torch.empty((), dtype=torch.bool, pin_memory=True)
    there.copy_(flag, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait():
        event.synchronize()
        return there.item()

    return wait
