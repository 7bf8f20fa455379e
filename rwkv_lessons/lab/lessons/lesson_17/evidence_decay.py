"""The evidence for the gradient of the decay within one chunk, in torch, against autograd."""

import dataclasses

import torch

from warplens.faults import KernelFault

from ...course.check import PASSED, Row
from ...evidence.compare import Difference, compare
from ...evidence.functions import called, shown
from ...evidence.verdicts import failed


@dataclasses.dataclass(frozen=True)
class DecayChunk:
    """One chunk of C tokens of a head of N keys and values.

    Args:
        states: whether there is a state before it, and a gradient of the state after it.
        decay: the strongest log decay of a token.
    """

    name: str
    C: int
    N: int = 3
    states: bool = True
    decay: float = 1.0

    def problem(self):
        """Arguments (r, k, dr_s, dk_s, dr_c, dk_c, across) and autograd's dw, all float64."""
        C, N, random = self.C, self.N, torch.Generator().manual_seed(self.C)
        shapes = [(C, N)] * 5 + [(N, N)] * 2
        draw = (torch.randn(x, generator=random, dtype=torch.float64) for x in shapes)
        r, k, v, do, w, s, g = draw
        s, g = self.states * s, self.states * g
        w = -self.decay * w.sigmoid()
        return self._parts(r, k, v, do, w, s, g), _autograd(r, k, v, do, w, s, g)

    def _parts(self, r, k, v, do, w, s, g):
        a, last = w.cumsum(0), w.sum(0)
        b = a - w
        d_scores = (do @ v.T).tril(-1)  # the gradient of the scores
        dr_s, dk_s = b.exp() * (do @ s.T), (last - a).exp() * (v @ g.T)
        dr_c = b.exp() * (d_scores @ (k * (-a).exp()))
        dk_c = (-a).exp() * (d_scores.T @ (r * b.exp()))
        return r, k, dr_s, dk_s, dr_c, dk_c, last.exp() * (s * g).sum(1)


def _autograd(r, k, v, do, w, s, g):
    w = w.clone().requires_grad_()
    loss = 0.0
    for t in range(len(r)):
        loss = loss + (r[t] @ s) @ do[t]
        s = w[t].exp()[:, None] * s + k[t][:, None] * v[t]
    loss = loss + (s * g).sum()
    loss.backward()
    return w.grad


def _scale(r, k, dr_s, dk_s, dr_c, dk_c, across):
    """The largest of what is added up: where all of it cancels, its roundings are left."""
    terms = (r * dr_s, r * dr_c, k * dk_s, k * dk_c, across)
    return float(max(x.abs().max() for x in terms))


def chunk_answer(*chunks: DecayChunk):
    """Calls the function over `chunks` and holds it against autograd through the recurrence."""

    def answer(function, exercise):
        for chunk in chunks:
            inputs, want = chunk.problem()
            try:
                got = called(function, *inputs)
                if got is not None and not isinstance(got, torch.Tensor):
                    raise Difference(f"a {type(got).__name__} was returned, want a tensor")
                compare(got, want, letters="ti", scale=_scale(*inputs))
            except (Difference, KernelFault) as trouble:
                name, call = f"{chunk.name} (C={chunk.C} N={chunk.N})", shown(function, inputs)
                return failed(name, trouble, exercise, chunk.name, call)
        return Row("answer", PASSED, f"{len(chunks)} chunks, against autograd")

    answer.kind = "answer"
    return answer
