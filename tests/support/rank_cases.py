"""Sequences and how ranks share them, what one process makes of them, and how far off ranks are."""

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from rwkv_lessons import wkv6 as six
from rwkv_lessons import wkv7 as seven


@dataclass(frozen=True)
class Case:
    """A call, and how its tokens are shared out."""

    operation: str
    parts: tuple[int, ...]
    B: int = 1
    H: int = 2
    K: int = 8
    V: int = 8
    decay: float | str = "mixed"
    dtype: torch.dtype = torch.float32
    cu_seqlens: tuple[int, ...] | None = None
    start: bool = True  # given with cu_seqlens
    s0: bool = True
    options: dict = field(default_factory=dict)
    preset: bool = False  # options are given before the operation is shared among ranks
    learns: str | None = None  # arguments that require gradients; None: all
    blocks: int = 1  # each reads the o of the one before it as its v
    reentrant: bool | None = None  # of the checkpoint around each block; None: there is none
    autocast: bool = False  # to bfloat16, around both passes
    elsewhere: bool = False  # torch's current device is another rank's


def _cases():
    cases = {}
    for name, methods in (("wkv6", six.METHODS), ("wkv7", seven.METHODS)):
        few = ("reference", "doubling", "wy")
        for method in [m for m in methods if m in few]:
            cases[f"{name} {method}"] = Case(f"{name}_{method}", (37, 20))
        kinds = {
            "decay 1": Case(name, (70, 31), decay=0.0),
            "strong": Case(name, (70, 31), decay=-30.0),
            "no memory at all": Case(name, (20, 31), decay=-float("inf")),
            "one token here, one there": Case(name, (1, 1)),
            "batch, K is not V": Case(name, (33, 65), B=2, K=5, V=12),
            "no s0": Case(name, (64, 64), s0=False),
            "float64": Case(name, (37, 20), dtype=torch.float64),
            "bfloat16": Case(name, (130, 70), dtype=torch.bfloat16),
            "scale": Case(name, (37, 20), options={"scale": 0.25}),
            "border between sequences": Case(name, (20, 20), cu_seqlens=(0, 7, 20, 33, 40)),
            "a sequence over both": Case(name, (25, 15), cu_seqlens=(0, 7, 7, 33, 40)),
            "one sequence, packed": Case(name, (25, 15), cu_seqlens=(0, 40)),
            "uneven parts, no start": Case(name, (25, 15), cu_seqlens=(0, 7, 33, 40), start=False),
            "short ends": Case(name, (40, 40), cu_seqlens=(0, 33, 45, 75, 80)),
            "short ends, three ranks": Case(name, (40, 9, 40), cu_seqlens=(0, 34, 55, 80, 89)),
            "three ranks": Case(name, (30, 9, 25), cu_seqlens=(0, 7, 50, 64)),
        }
        cases |= {f"{name} {kind}": case for kind, case in kinds.items()}
        cases |= anywhere(name)
    for options in ({"scale": 0.25}, {"raw_decay": True}):
        name = f"wkv6 with {', '.join(options)} already"
        cases[name] = Case("wkv6", (37, 20), options=options, preset=True)
    cases["wkv7 with clamp already"] = Case(
        "wkv7", (37, 20), options={"decay": "clamp"}, preset=True
    )
    cases["wkv6 raw decay"] = Case("wkv6", (37, 20), options={"raw_decay": True})
    cases["wkv7 clamp"] = Case("wkv7", (37, 20), options={"decay": "clamp"})
    return cases


def anywhere(name):
    """What is to hold with either backend, by its name."""
    cases = {}
    for parts in ((37, 20), (30, 9, 25)):
        kinds = {
            "both passes in autocast": Case(name, parts, autocast=True),
            "two blocks, reentrant": Case(name, parts, blocks=2, reentrant=True),
            "two blocks, not reentrant": Case(name, parts, blocks=2, reentrant=False),
        }
        cases |= {f"{name} {kind}, {len(parts)} ranks": case for kind, case in kinds.items()}
    for learns in ("r", "w", "u" if name == "wkv6" else "a", "s0"):
        cases[f"{name} learns {learns} alone"] = Case(name, (37, 20), learns=learns)
    cases[f"{name} learns w alone, of one token"] = Case(name, (1, 1), learns="w")
    return cases


def _gpu_cases():
    """What the kernels compute: few heads and thousands of tokens, many heads, packed sequences."""
    cases = anywhere("wkv6") | anywhere("wkv7")
    for name in ("wkv6", "wkv7"):
        long = Case(name, (2100, 2060), H=4, K=64, V=64, dtype=torch.bfloat16)
        kinds = {
            "long": long,
            "long, packed": replace(long, cu_seqlens=(0, 700, 1500, 2900, 4160)),
            "long, short ends": replace(long, cu_seqlens=(0, 1800, 2500, 3900, 4160)),
            "many heads": replace(long, parts=(300, 260), B=2, H=70),
            "short, elsewhere": Case(name, (70, 31), elsewhere=True),
            "long, elsewhere": replace(long, elsewhere=True),
            "long, in autocast": replace(long, autocast=True),
            "long, two blocks, reentrant": replace(long, blocks=2, reentrant=True),
            "long, two blocks, not reentrant": replace(long, blocks=2, reentrant=False),
        }
        cases |= {f"{name} {kind}": case for kind, case in kinds.items()}
    for kind, parts in (
        ("both", (4096, 4160)),
        ("the first", (8192, 4100)),
        ("the last", (90, 8192)),
    ):
        of_long = Case("wkv7", parts, H=20, K=64, V=64, dtype=torch.bfloat16, decay=-0.002)
        cases[f"wkv7 fused on {kind}"] = of_long
    return cases


CASES, GPU_CASES = _cases(), _gpu_cases()


def cases_of(ranks, backend):
    cases = GPU_CASES if backend == "nccl" else CASES
    return {name: case for name, case in cases.items() if len(case.parts) == ranks}


def inputs_of(case):
    """All tokens' inputs, s0 or None, and do; drawn in float64."""
    g = torch.Generator().manual_seed(3)
    B, T, H, K, V = case.B, sum(case.parts), case.H, case.K, case.V
    draw = lambda *size: torch.randn(*size, generator=g, dtype=torch.float64)  # noqa: E731
    r, k, v, w = draw(B, T, H, K), draw(B, T, H, K), draw(B, T, H, V), draw(B, T, H, K)
    if case.options.get("raw_decay") or "decay" in case.options:
        w = 2 * w - 2
    else:
        w = -torch.exp(2 * w - 3) if case.decay == "mixed" else torch.full_like(w, case.decay)
    S = len(case.cu_seqlens) - 1 if case.cu_seqlens else B
    s0, do, ds1 = draw(S, H, K, V) if case.s0 else None, draw(B, T, H, V), draw(S, H, K, V)
    if case.operation.startswith("wkv6"):
        inputs = [r, k, v, w, draw(H, K)]
    else:
        kappa = torch.nn.functional.normalize(draw(B, T, H, K), dim=-1)
        rate = torch.rand(B, T, H, K, generator=g, dtype=torch.float64)
        inputs = [r, w, k, v, -kappa, kappa * rate]
    inputs = [x.to(case.dtype) for x in inputs]
    state = torch.float64 if case.dtype == torch.float64 else torch.float32
    return inputs, None if s0 is None else s0.to(state), do.to(case.dtype), ds1.to(state)


def operation_of(case):
    package = six if case.operation.startswith("wkv6") else seven
    operation = getattr(package, case.operation)
    return partial(operation, **case.options) if case.preset else operation


def parted(x, start, end):
    """A rank's tokens of an input; parameters as they are."""
    return x if x.ndim == 2 else x[:, start:end]


def arguments(case):
    inputs = ("r", "k", "v", "w", "u") if "wkv6" in case.operation else tuple("rwkvab")
    return (*inputs, "s0") if case.s0 else inputs


def learned(case):
    return [name for name in arguments(case) if case.learns in (None, name)]


def names(case):
    return ("o", "s1", *("d" + name for name in learned(case)))


def in_blocks(case, operation, leaves, **more):
    """o and s1 of the last block."""
    of_all = dict(zip(arguments(case), leaves, strict=True))
    inputs, s0 = [of_all[x] for x in arguments(case) if x != "s0"], of_all.get("s0")
    for _ in range(case.blocks):
        run = lambda *x: operation(*x, **more, **case.options)  # noqa: E731
        if case.reentrant is None:
            o, s1 = run(*inputs, s0)
        else:
            o, s1 = checkpoint(run, *inputs, s0, use_reentrant=case.reentrant)
        inputs[list(of_all).index("v")] = o
    return o, s1


def last_rank_of(case, rank):
    """1 for each sequence whose state after its last token this rank has, `[S, 1, 1, 1]`."""
    ends = torch.tensor(case.parts).cumsum(0).tolist()
    if case.cu_seqlens is None:
        return torch.tensor(float(rank == len(case.parts) - 1))
    cu = case.cu_seqlens
    empty = [rank == 0 if a == b else None for a, b in zip(cu[:-1], cu[1:], strict=True)]
    start = ends[rank] - case.parts[rank]
    mine = [start < b <= ends[rank] if e is None else e for e, b in zip(empty, cu[1:], strict=True)]
    return torch.tensor(mine, dtype=torch.float32)[:, None, None, None]


def in_one_process(case, device="cpu"):
    """The same of all tokens, by torch in float64 on the numbers as they were rounded."""
    inputs, s0, *d_outputs = inputs_of(case)
    leaves = [x.double().to(device) for x in (*inputs, *([] if s0 is None else [s0]))]
    leaves = [x.requires_grad_() for x in leaves]
    more = {"cu_seqlens": torch.tensor(case.cu_seqlens, device=device)} if case.cu_seqlens else {}
    package = six if case.operation.startswith("wkv6") else seven
    plain = package.wkv6_reference if package is six else package.wkv7_reference
    fast = package.wkv6_doubling if package is six else package.wkv7_wy
    operation = plain if sum(case.parts) < 500 else fast
    results = in_blocks(replace(case, reentrant=None), operation, leaves, **more)
    learn = [x for x, name in zip(leaves, arguments(case), strict=True) if name in learned(case)]
    d_outputs = [x.double().to(device) for x in d_outputs]
    gradients = torch.autograd.grad(results, learn, d_outputs)
    return [x.detach().cpu() for x in (*results, *gradients)]


def joined(case, parts):
    """The ranks' results as those of one process: tokens in a row, parameters' gradients added."""
    out = []
    for name, *of_ranks in zip(names(case), *parts, strict=True):
        if name == "s1":
            out.append(sum(s * last_rank_of(case, n) for n, s in enumerate(of_ranks)))
        elif name in ("du", "ds0"):
            out.append(sum(of_ranks))
        else:
            out.append(torch.cat(of_ranks, 1))
    return out


def relative_errors(case, parts, device="cpu"):
    """‖error‖ / ‖reference‖ of each result, by name; the device computes the reference."""
    expected, got = in_one_process(case, device), joined(case, parts)
    pairs = zip(names(case), expected, got, strict=True)
    size = lambda x: float(x.double().norm())  # noqa: E731
    return {name: size(x - y.double()) / max(size(x), 1e-30) for name, x, y in pairs}
