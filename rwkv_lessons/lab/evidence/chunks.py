"""The evidence for torch functions that work on one chunk: answers, and how much they compute.

Answers are held against float64 sums written out pair by pair, as the recurrence defines them.
"""

import dataclasses

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warplens.faults import KernelFault

from ...inputs import rwkv6_inputs
from ..course.check import FAILED, PASSED, Row
from .compare import Difference, compare_each
from .functions import called, several, shown
from .verdicts import explained, failed

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
            tensors, more = [named[x] for x in takes], dict(case.more)
            try:
                got = called(function, *tensors, *more.values())
                got = several(got, len(LETTERS[takes]), [name for name, _ in LETTERS[takes]])
                want = EXACT[takes](*tensors)
                want = want if isinstance(want, tuple) else (want,)
                names, letters = zip(*LETTERS[takes], strict=True)
                compare_each(zip(names, got, want, letters, strict=True))
            except (Difference, KernelFault) as trouble:
                size = f"H={case.heads} C={case.C} N={case.N}"
                size += "".join(f" {x}={n}" for x, n in case.more)
                call = shown(function, tensors, more)
                return failed(f"{case.name} ({size})", trouble, exercise, case.symptom, call)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


class Count(TorchDispatchMode):
    """Counts, while it is active, what torch computes: numbers exponentiated, matrix products.

    Attributes:
        calls: operations that made something, views left out.
        exps: numbers whose exp was taken.
        products: matrix products; flops: their additions and multiplications.
        side: rows, columns and summands of the largest: the least of the three.
        largest: the tensor with the most numbers that was made, as (operation, shape, numbers).
    """

    EXPS = ("exp", "exp2", "expm1")
    PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}

    def __init__(self):
        super().__init__()
        self.calls = self.exps = self.products = self.flops = self.side = 0
        self.largest = ("", (), 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not isinstance(out, torch.Tensor):
            return out
        name = function._schema.name.removeprefix("aten::").rstrip("_")
        if name in self.EXPS:
            self.exps += out.numel()
        if name in self.PRODUCTS and out.numel():
            left = args[self.PRODUCTS[name]]
            self.products += out.shape[0] if left.dim() == 3 else 1
            self.flops += 2 * out.numel() * left.shape[-1]
            rows_and_columns = out.shape[-2:] if out.dim() > 1 else (1,)
            self.side = max(self.side, min(left.shape[-1], *rows_and_columns))
        if not function.is_view:
            self.calls += 1
            if out.numel() > self.largest[2]:
                self.largest = (name, tuple(out.shape), out.numel())
        return out


def count(function, *args, **more):
    """A `Count` of one call, on copies."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    with Count() as counted:
        function(*copies, **more)
    return counted


# Of what is needed: a factor may be computed twice, and an exp of a sum in two.
ROOM = 2


def chunk_work(takes, exps, case):
    """Counts a call: exps, the largest tensor, and calls of torch for more heads, more tokens.

    Sums over channels and tokens are matrix products if nothing is made that has an axis more.

    Args:
        takes: as for `chunk_answer`.
        exps: how many are needed, a function of (heads, C, N).
    """

    def counted_for(function, case):
        named = dict(zip("rkvws", given(case), strict=True))
        return count(function, *(named[x] for x in takes), *dict(case.more).values())

    def gather(function, exercise):
        H, C, N = case.heads, case.C, case.N
        counted = counted_for(function, case)
        where = f"counted at H={H} C={C} N={N}"
        text, needed = f"{counted.exps:,} exps", exps(H, C, N)
        if counted.exps > ROOM * needed:
            details = explained(where, exercise, "exps")
            return Row("work", FAILED, f"{text}, {needed:,} are enough", details)
        op, shape, numbers = counted.largest
        limit = ROOM * H * max(C * C, C * N, N * N)
        if numbers > limit or not counted.products:
            excess = f"{op} makes {list(shape)}, {numbers:,} numbers; want at most {limit:,}"
            details = explained(f"{where}; {excess}", exercise, "products")
            return Row("work", FAILED, "sums without @", details)
        longer = {"heads": {"heads": 3 * H}, "tokens": {"C": 3 * C}}
        if "L" in dict(case.more):  # a loop over blocks of L tokens is what is asked for
            del longer["tokens"]
        for axis, change in longer.items():
            more = counted_for(function, dataclasses.replace(case, **change))
            once = H if axis == "heads" else C  # a loop calls torch twice as often as that again
            if more.calls > counted.calls + once:
                calls = f"{counted.calls} calls of torch, {more.calls} for three times the {axis}"
                details = explained(f"{where}: {calls}", exercise, f"loop over {axis}")
                return Row("work", FAILED, f"a loop over {axis}", details)
        return Row("work", PASSED, f"{text}, {counted.flops:,} operations in matrix products")

    gather.kind = "work"
    return gather
