"""The evidence for lesson functions of MLA: torch functions against float64, and what they make.

One problem has every tensor of LETTERS; a function's own parameters say which it is given, as in
`evidence_wkv6`. Letters: B batch, M query tokens, N tokens in the cache, H heads, K and V key and
value size of a head, P rope size, R rank of the latent.
"""

import functools
import inspect
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warplens.compiled.functions import plain
from warplens.faults import KernelFault

from ...course.check import FAILED, PASSED, Row
from ...evidence.compare import Difference, compare
from ...evidence.functions import called, shown
from ...evidence.verdicts import explained, failed

# Tensor → what its axes are called. Lesson 25 decodes: one query per sequence, and no m.
LETTERS = {"q": "bmhk", "q_rope": "bmhp", "q_latent": "bmhr", "o": "bmhv", "o_latent": "bmhr"}
LETTERS |= {"latent": "bnr", "k_rope": "bnp", "w_k": "hkr", "w_v": "hvr", "lse": "bmh"}


class LatentSizes(NamedTuple):
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


class LatentCase(NamedTuple):
    """Inputs small enough to run on a CPU, named by the property that fails if they do."""

    name: str
    symptom: str
    sizes: LatentSizes
    dtype: torch.dtype = torch.float32
    scores: str = "tame"  # or a key of SCORES
    stretch: float = 1.0  # of the scale


# What the part with rope adds to the scores. float32's exp overflows from 89, and is 0 below -104.
SCORES = {
    "tame": None,
    "high": lambda n, N: 95.0 + 0 * n,
    "low": lambda n, N: -150.0 + 0 * n,
    # Times the head's number: a maximum over all heads leaves nothing of the first one.
    "apart": lambda n, N: 130.0 + 0 * n,
    # A later token counts far more: who lets a query see the future has nothing else left.
    "rising": lambda n, N: 60.0 * n,
    # The first token counts far more than all others, which still add up to a hundredth and more.
    # Their latents are positive, so that they do add up.
    "one loud": lambda n, N: 10.0 * (n == 0),
    # Large and close together: before it is scaled, as a float16, a score is off by up to 0.25, and
    # so is a weight by a tenth.
    "close": lambda n, N: 400.0 + 0 * n,
    # All tokens have one latent, of 300 and -300, and so the same score: from 219 tokens on the sum
    # over their latents, before it is divided, is more than a float16 holds.
    "even": lambda n, N: 0.0 * n,
    # All tokens have one latent of 1 and -1, so that their average is it, whatever they weigh.
    "alike": lambda n, N: 0.0 * n,
    # All scores are 0, of latents that differ.
    "equal": lambda n, N: 0.0 * n,
}


@functools.lru_cache(maxsize=64)
def problem(sizes, dtype=torch.float32, scores="tame"):
    """Every tensor of LETTERS in float64: inputs as numbers of `dtype`, and the answers.

    Query m is token N − M + m of its sequence, and sees the tokens up to its own.
    """
    B, M, N, H, K, P, V, R = sizes
    generator = torch.Generator().manual_seed(N)

    def random(*shape):
        return torch.randn(*shape, generator=generator).double()

    tensors = {"q": random(B, M, H, K), "q_rope": random(B, M, H, P)}
    tensors |= {"latent": random(B, N, R), "k_rope": random(B, N, P)}
    tensors |= {"w_k": random(H, K, R) / R**0.5, "w_v": random(H, V, R) / R**0.5}
    if SCORES[scores]:
        added = SCORES[scores](torch.arange(N), N).float()
        largest = float(added.abs().max().clamp_min(1))
        tensors["q_rope"] = torch.full((B, M, H, P), largest / P / scale_of(sizes))
        tensors["k_rope"] = (added / largest)[None, :, None].repeat(B, 1, P)
    if scores == "apart":
        tensors["q_rope"] *= torch.arange(H)[:, None]
    if scores == "one loud":
        tensors["latent"], tensors["w_v"] = tensors["latent"].abs(), tensors["w_v"].abs()
    if scores in ("even", "alike"):
        size = 300 if scores == "even" else 1
        tensors["latent"] = size * tensors["latent"][:, :1].sign().repeat(1, N, 1)
    if scores == "equal":
        tensors["q"] *= 0
    tensors["q_latent"] = torch.einsum("bmhk,hkr->bmhr", tensors["q"], tensors["w_k"])
    tensors = {name: x.to(dtype).double() for name, x in tensors.items()}
    return tensors | answers(**tensors, scale=scale_of(sizes))


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


def decoding(values):
    """The tensors of a problem with one query, without the axis m."""
    return {x: y[:, 0] if "m" in LETTERS[x] else y for x, y in values.items()}


def torch_answer(*cases):
    """Calls a decoding function, whose parameters are names of LETTERS, against float64."""

    def answer(function, exercise):
        names = list(inspect.signature(plain(exercise.reference)).parameters)
        for case in cases:
            values = problem(case.sizes, scores=case.scores)
            want = decoding(answers(**values | {"scale": case.stretch * scale_of(case.sizes)}))["o"]
            inputs = step(case.sizes, names, case.scores, case.stretch)
            try:
                compare(called(function, *inputs), want, "bhv")
            except (Difference, KernelFault) as trouble:
                call = shown(function, inputs)
                return failed(f"{case.name} ({case.sizes})", trouble, exercise, case.symptom, call)
        return Row("answer", PASSED, f"{len(cases)} cases, against float64")

    answer.kind = "answer"
    return answer


def step(sizes, names, scores="tame", stretch=1.0):
    """Arguments of a decoding function in torch, float32, by their names."""
    values = decoding(problem(sizes, scores=scores)) | {"scale": stretch * scale_of(sizes)}
    return [values[x].float() if x in LETTERS else values[x] for x in names]


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
        self.created = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        read = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_tensor(x)]
        places = {x.untyped_storage().data_ptr() for x in read}
        for x in torch.utils._pytree.tree_leaves(out):
            if _is_tensor(x) and x.untyped_storage().data_ptr() not in places:
                name = function._schema.name.removeprefix("aten::")
                moved = sum(map(_bytes, (*read, x)))
                self.created.append(Made(name, tuple(x.shape), x.numel(), moved))
        return out


def _is_tensor(x):
    return isinstance(x, torch.Tensor)


def _bytes(x):
    """Of the memory behind a tensor: an axis that was only expanded is not there twice."""
    return min(x.numel(), x.untyped_storage().nbytes() // x.itemsize) * x.itemsize


def allocations(function, *args):
    """Every tensor that `function` makes in new memory, in order, as a list of `Made`."""
    with _Watch() as watch:
        function(*args)
    return watch.created


FEW_AND_MANY = 2, 6


def no_loop_over(**axes):
    """Torch is called as often for many heads, or tokens, as for few.

    Args:
        axes: heads or tokens, and (how many) → the arguments of the function.
    """

    def work(function, exercise):
        few, many = FEW_AND_MANY
        texts = []
        for axis, arguments in axes.items():
            fewer, more = (len(allocations(function, *arguments(n))) for n in FEW_AND_MANY)
            texts.append(f"{fewer} tensors made for {few} {axis}, {more} for {many}")
            # A loop calls torch at least once more for each; sizes may decide on a call or two.
            if more - fewer >= many - few:
                details = explained(texts[-1], exercise, f"loop over {axis}")
                return Row("work", FAILED, f"a loop over {axis}", details)
        return Row("work", PASSED, "; ".join(texts))

    work.kind = "work"
    return work


def block_by_block(arguments):
    """Reads the columns of its first argument once, in order, at most its last argument at a time.

    Args:
        arguments: () → those of the function: scores [rows, N], …, the width of a block.
    """

    def traffic(function, exercise):
        inputs = arguments()
        scores, width = inputs[0], inputs[-1]
        with _Columns(scores) as columns:
            function(*inputs)
        start = 0
        for op, low, high in columns.read:
            if high - low >= width:
                message = f"{op} reads columns {low} to {high} at once; a block has {width}"
            elif low < start:
                message = f"{op} reads column {low} again, after column {start}"
            else:
                start = max(start, low // width * width)
                continue
            lines = explained(message, exercise, "block by block")
            return Row("traffic", FAILED, "the scores are not read block by block", lines)
        return Row("traffic", PASSED, f"every score is read once, {width} columns at a time")

    traffic.kind = "traffic"
    traffic.explains_wrong_answers = False
    return traffic


class _Columns(TorchDispatchMode):
    """Notes which columns of a contiguous matrix each operation reads."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix, self.read = matrix, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            place = self.matrix.untyped_storage().data_ptr()
            for x in torch.utils._pytree.tree_leaves((args, kwargs)):
                if _is_tensor(x) and x.numel() and x.untyped_storage().data_ptr() == place:
                    every = torch.arange(self.matrix.numel())
                    at = every.as_strided(x.shape, x.stride(), x.storage_offset())
                    at = at % self.matrix.shape[1]
                    name = function._schema.name.removeprefix("aten::")
                    self.read.append((name, int(at.min()), int(at.max())))
        return function(*args, **(kwargs or {}))


ROOM = 1.25  # of what is needed: the latent and the keys with rope may stand in one tensor


def nothing_larger(arguments, limit, text):
    """No tensor on the way may hold much more than `limit` numbers; `text` says what that is.

    Args:
        arguments: () → those of the function.
    """

    def traffic(function, exercise):
        largest = max(allocations(function, *arguments()), key=lambda x: x.numbers)
        largest_made = f"largest tensor made: {list(largest.shape)}, {largest.numbers:,} numbers"
        if largest.numbers > ROOM * limit:
            details = explained(f"by {largest.op}", exercise, "largest")
            message = f"{largest_made}; want at most {limit:,}, {text}"
            return Row("traffic", FAILED, message, details)
        more = (f"more than needed: {limit:,} are enough, {text}",) * (largest.numbers > limit)
        return Row("traffic", PASSED, largest_made, more)

    traffic.kind = "traffic"
    traffic.explains_wrong_answers = False
    return traffic
