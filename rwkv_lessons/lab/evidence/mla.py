"""The evidence for lesson functions of MLA: torch functions against float64, and what they make.

One problem has every tensor of LETTERS; a function's own parameters say which it is given, as in
`evidence_wkv6`. Letters: B batch, M query tokens, N tokens in the cache, H heads, K and V key and
value size of a head, P rope size, R rank of the latent.
"""

import functools
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..course.check import FAILED, PASSED, Row
from .cuda import Difference, compare, explained

# Tensor → what its axes are called. Lesson 25 decodes: one query per sequence, and no m.
LETTERS = {"q": "bmhk", "q_rope": "bmhp", "q_latent": "bmhr", "o": "bmhv", "o_latent": "bmhr"}
LETTERS |= {"latent": "bnr", "k_rope": "bnp", "w_k": "hkr", "w_v": "hvr", "lse": "bmh"}


class Sizes(NamedTuple):
    """How large a problem is."""

    B: int = 1
    M: int = 1
    N: int = 1
    H: int = 1
    K: int = 4
    P: int = 2
    V: int = 4
    R: int = 8

    def __str__(self):
        return " ".join(f"{letter}={n}" for letter, n in self._asdict().items())


class Case(NamedTuple):
    """Inputs small enough to run on a CPU, named by the property that fails if they do."""

    name: str
    symptom: str
    sizes: Sizes
    dtype: torch.dtype = torch.float32
    high: bool = False  # scores around HIGH


HIGH = 95  # float32's exp overflows from 89 on


@functools.lru_cache(maxsize=64)
def problem(sizes, dtype=torch.float32, high=False):
    """Every tensor of LETTERS in float64: inputs as numbers of `dtype`, and the answers.

    Query m is token N − M + m of its sequence, and sees the tokens up to its own.
    """
    B, M, N, H, K, P, V, R = sizes
    generator = torch.Generator().manual_seed(N)

    def random(*shape):
        return torch.randn(*shape, generator=generator).double()

    given = {"q": random(B, M, H, K), "q_rope": random(B, M, H, P)}
    given |= {"latent": random(B, N, R), "k_rope": random(B, N, P)}
    given |= {"w_k": random(H, K, R) / R**0.5, "w_v": random(H, V, R) / R**0.5}
    if high:  # the same for all tokens: the softmax is what it was without
        given["q_rope"] = torch.full((B, M, H, P), HIGH / P / scale_of(sizes))
        given["k_rope"] = torch.ones(B, N, P)
    given["q_latent"] = torch.einsum("bmhk,hkr->bmhr", given["q"], given["w_k"])
    given = {name: x.to(dtype).double() for name, x in given.items()}
    return given | answers(**given, scale=scale_of(sizes))


def scale_of(sizes):
    """What multiplies the scores: 1 over the root of a key's size."""
    return (sizes.K + sizes.P) ** -0.5


def answers(q_latent, q_rope, latent, k_rope, w_v, scale, **_):
    """o, the output in the latent, and the log of the sum of the exponentials."""
    M, N = q_latent.shape[1], latent.shape[1]
    s = torch.einsum("bmhr,bnr->bmhn", q_latent, latent)
    s = (s + torch.einsum("bmhp,bnp->bmhn", q_rope, k_rope)) * scale
    own = torch.arange(N - M, N, device=s.device)[:, None, None]  # each query's own token
    s = s.masked_fill(torch.arange(N, device=s.device) > own, -torch.inf)
    o_latent = torch.einsum("bmhn,bnr->bmhr", s.softmax(-1), latent)
    o = torch.einsum("bmhr,hvr->bmhv", o_latent, w_v)
    return {"o": o, "o_latent": o_latent, "lse": s.logsumexp(-1)}


def decoding(known):
    """The tensors of a problem with one query, without the axis m."""
    return {x: y[:, 0] if "m" in LETTERS[x] else y for x, y in known.items()}


def torch_answer(*cases):
    """Calls a decoding function, whose parameters are names of LETTERS, against float64."""

    def answer(function, exercise):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        for case in cases:
            want = decoding(problem(case.sizes))["o"]
            try:
                compare(function(*step(case.sizes, names)), want, "bhv")
            except Difference as error:
                details = explained(error, exercise, case.symptom)
                return Row("answer", FAILED, f"{case.name} ({case.sizes})", details)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


def step(sizes, names):
    """Arguments of a decoding function in torch, float32, by their names."""
    known = decoding(problem(sizes)) | {"scale": scale_of(sizes)}
    return [known[x].float() if x in LETTERS else known[x] for x in names]


class Made(NamedTuple):
    """A tensor that torch made on the way: by which operation, how large, and what that moved."""

    op: str
    shape: tuple[int, ...]
    numbers: int
    bytes: int  # of all that the operation read and wrote


class _Watch(TorchDispatchMode):
    """Notes every operation that writes new memory; views make none."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        read = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_tensor(x)]
        places = {x.untyped_storage().data_ptr() for x in read}
        for x in torch.utils._pytree.tree_leaves(out):
            if _is_tensor(x) and x.untyped_storage().data_ptr() not in places:
                name = function._schema.name.removeprefix("aten::")
                moved = sum(map(_bytes, (*read, x)))
                self.made.append(Made(name, tuple(x.shape), x.numel(), moved))
        return out


def _is_tensor(x):
    return isinstance(x, torch.Tensor)


def _bytes(x):
    """Of the memory behind a tensor: an axis that was only expanded is not there twice."""
    return min(x.numel(), x.untyped_storage().nbytes() // x.itemsize) * x.itemsize


def made(function, *args):
    """Every tensor that `function` makes in new memory, in order, as a list of `Made`."""
    with _Watch() as watch:
        function(*args)
    return watch.made


def nothing_larger(arguments, limit, text):
    """No tensor on the way may hold more than `limit` numbers; `text` says what that is.

    Args:
        arguments: () → those of the function.
    """

    def traffic(function, exercise):
        largest = max(made(function, *arguments()), key=lambda x: x.numbers)
        found = f"largest tensor made: {list(largest.shape)}, {largest.numbers:,} numbers"
        if largest.numbers > limit:
            hint = exercise.symptoms.get("largest")
            details = (f"by {largest.op}", *([f"hint: {hint}"] if hint else []))
            wanted = f"{found}; want at most {limit:,}, {text}"
            return Row("traffic", FAILED, wanted, details)
        return Row("traffic", PASSED, found)

    traffic.kind = "traffic"
    return traffic
