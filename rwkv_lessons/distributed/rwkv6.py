"""RWKV-6's part: a run of tokens multiplies the state before it by one decay for each key.

An entry state E adds r[t] diag(exp(w[0] + … + w[t-1])) E to o[t]. With a model's decays E reaches a
few thousand tokens, so the sum of w over those shows whether the others need it. The chunked
kernels start from the right state (states_first.py); this is for the other methods.
"""

import torch

from ..runtime.precision import sum_dtype
from ..runtime.running_sums import running_sums
from ..sequences.decays import log_decay
from ..wkv6 import wkv6
from ..wkv6.options import check_call
from .cost import FIRST_LOOK

OPERATION, CHECK = wkv6, check_call
INPUTS, V = ("r", "k", "v", "w", "u"), 2  # the arguments before s0, and which of them is v
BESIDE = False  # the sum of decays is short: before the main pass
LOWEST = -1e6  # instead of -inf, of which differences are NaN
KEPT_BITS = {torch.float64: 128, torch.float32: 64}  # others 32: lower decays than 2^-bits are 0
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
        """`tokens` are those of the sequence that enters."""
        self.r, _, _, self.w, _ = (x.detach() for x in inputs)
        self.raw = call.options.get("raw_decay", False)
        self.scale = float(call.options.get("scale", 1.0))
        self.real, self.reach = sum_dtype(self.r.dtype), min(tokens, FIRST_LOOK)
        self.total = self._sum(0, self.reach)
        if self.reach < tokens:
            if (self.total < cutoff(self.r.dtype)).all():  # NaN is not below anything
                self.total = torch.full_like(self.total, -torch.inf)
            else:
                self.total = self.total + self._sum(self.reach, tokens)
                self.reach = tokens

    def _sum(self, start, end):
        """Of the log decays, `[B, H, K]`."""
        w = self.w[:, start:end]
        return (log_decay(w, self.real) if self.raw else w).sum(1, dtype=self.real)

    def across(self):
        """The decay of all its tokens, `[B, H, K, 1]`."""
        return self.total.exp()[..., None]

    def correct(self, o, E):
        """o, to which it adds in place what its tokens read of the entry state."""
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
