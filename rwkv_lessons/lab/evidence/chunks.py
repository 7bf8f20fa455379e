"""The evidence for torch functions that work on one chunk: answers, and how much they compute.

Answers are held against float64 sums written out pair by pair, as the recurrence defines them.
"""

import dataclasses

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...inputs import rwkv6_inputs
from ..course.check import FAILED, PASSED, Row
from .cuda import Difference, compare, explained

DECAYS = {"text": 1, "fast": 10, "faster": 16}  # the text's log decay, times this


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One case: so many heads of one chunk, and the keyword arguments of the function."""

    name: str
    symptom: str
    heads: int
    C: int
    N: int
    decay: str = "text"
    more: tuple = ()  # (("L", 4),)


def given(case):
    """r, k, v, w `[H, C, N]` of the text, float32, and a random state `[H, N, N]`."""
    r, k, v, w, _ = rwkv6_inputs(1, case.C, case.heads, case.N, offset=40)
    generator = torch.Generator().manual_seed(case.C)
    s = torch.randn(case.heads, case.N, case.N, generator=generator)
    tokens = [x[0].transpose(0, 1).contiguous() for x in (r, k, v, w * DECAYS[case.decay])]
    return *tokens, s


def exact_scores(r, k, w):
    """Σ r[t] k[s] exp(w[s+1] + … + w[t-1]) for every pair s < t, `[H, C, C]`, in float64."""
    r, k, w = (x.double() for x in (r, k, w))
    scores = r.new_zeros(*r.shape[:-1], r.shape[-2])
    for t in range(r.shape[-2]):
        for s in range(t):
            decay = w[..., s + 1 : t, :].sum(-2).exp()
            scores[..., t, s] = (r[..., t, :] * decay * k[..., s, :]).sum(-1)
    return scores


def exact_with_state(r, k, v, w, s):
    """What the tokens read of the state `s`, and the state after them, in float64."""
    r, k, v, w, s = (x.double() for x in (r, k, v, w, s))
    read, old = torch.empty_like(v), s
    for t in range(r.shape[-2]):
        read[..., t, :] = (r[..., t, None, :] @ old).squeeze(-2)
        decay = w[..., t, :, None].exp()
        old = decay * old
        s = decay * s + k[..., t, :, None] * v[..., t, None, :]
    return read, s


EXACT = {"rkvws": exact_with_state, "rkw": exact_scores}
LETTERS = {"rkvws": (("o", "htj"), ("s1", "hij")), "rkw": (("scores", "hts"),)}


def chunk_answer(takes, *cases):
    """Calls the function on every case and holds what it returns against float64.

    Args:
        takes: its tensors: "rkw" for scores, "rkvws" for what goes through the state.
    """

    def answer(function, exercise):
        for case in cases:
            named = dict(zip("rkvws", given(case), strict=True))
            tensors = [named[x] for x in takes]
            before = [x.clone() for x in tensors]
            got = function(*tensors, **dict(case.more))
            try:
                _compare(got, EXACT[takes](*before), LETTERS[takes])
                for name, x, y in zip(takes, tensors, before, strict=True):
                    if not torch.equal(x, y):
                        raise Difference(f"the function changed its input {name}")
            except Difference as error:
                size = f"H={case.heads} C={case.C} N={case.N}"
                size += "".join(f" {x}={n}" for x, n in case.more)
                details = explained(error, exercise, case.symptom)
                return Row("answer", FAILED, f"{case.name} ({size})", details)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


def _compare(got, want, letters):
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    if len(got) != len(want):
        raise Difference(f"returns {len(got)} tensors, want {len(want)}")
    for (name, axes), x, y in zip(letters, got, want, strict=True):
        try:
            compare(x, y, axes)
        except Difference as difference:
            text = str(difference).replace("never written (NaN)", "NaN")
            raise Difference(f"{name}: {text}") from None


class Count(TorchDispatchMode):
    """Counts, while it is active, what torch computes: numbers exponentiated, matrix products.

    Attributes:
        exps: numbers whose exp was taken.
        products: matrix products; flops: their additions and multiplications.
    """

    def __init__(self):
        super().__init__()
        self.exps = self.products = self.flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name
        if name in ("aten::exp", "aten::exp_"):
            self.exps += out.numel()
        if name in ("aten::mm", "aten::bmm") and out.numel():
            self.products += out.shape[0] if name == "aten::bmm" else 1
            self.flops += 2 * out.numel() * args[0].shape[-1]
        return out


def count(function, *args, **more):
    """A `Count` of one call."""
    with Count() as counted:
        function(*args, **more)
    return counted


def chunk_work(takes, exps, case):
    """Counts the exps of one call, and that the sums over channels are matrix products.

    Args:
        takes: as for `chunk_answer`.
        exps: the most that are needed, a function of (heads, C, N).
    """

    def gather(function, exercise):
        named = dict(zip("rkvws", given(case), strict=True))
        counted = count(function, *(named[x] for x in takes), **dict(case.more))
        most = exps(case.heads, case.C, case.N)
        text = f"{counted.exps:,} exps"
        if counted.exps > most:
            details = explained(f"counted at C={case.C} N={case.N}", exercise, "exps")
            return Row("work", FAILED, f"{text}, want at most {most:,}", details)
        if not counted.products:
            details = explained("the sums are taken without @", exercise, "products")
            return Row("work", FAILED, "no matrix product", details)
        return Row("work", PASSED, f"{text}, {counted.flops:,} operations in matrix products")

    gather.kind = "work"
    return gather
