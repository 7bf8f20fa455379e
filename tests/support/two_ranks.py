"""Processes that share a sequence, each with its part, beside one that has all of it.

    python -m tests.support.two_ranks FOLDER RANK RANKS

runs every case of `CASES` on its rank, through a file in FOLDER where the ranks meet, and keeps the
results there; `relative_errors` compares them with one process.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rwkv_lessons import wkv6 as six
from rwkv_lessons import wkv7 as seven
from rwkv_lessons.distributed import DeadRank, sequence_parallel

LIMIT_S = 600  # for a rank to wait for the other, and for both: a loaded machine takes its time


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
    s0: bool = True
    options: dict = field(default_factory=dict)


def _cases():
    found = {}
    for name, methods in (("wkv6", six.METHODS), ("wkv7", seven.METHODS)):
        few = ("reference", "doubling", "wy")
        for method in [m for m in methods if m in few]:
            found[f"{name} {method}"] = Case(f"{name}_{method}", (37, 20))
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
        }
        found |= {f"{name} {kind}": case for kind, case in kinds.items()}
    found["wkv6 raw decay"] = Case("wkv6", (37, 20), options={"raw_decay": True})
    found["wkv7 clamp"] = Case("wkv7", (37, 20), options={"decay": "clamp"})
    return found


CASES = _cases()


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
        given = [r, k, v, w, draw(H, K)]
    else:
        kappa = torch.nn.functional.normalize(draw(B, T, H, K), dim=-1)
        rate = torch.rand(B, T, H, K, generator=g, dtype=torch.float64)
        given = [r, w, k, v, -kappa, kappa * rate]
    given = [x.to(case.dtype) for x in given]
    state = torch.float64 if case.dtype == torch.float64 else torch.float32
    return given, None if s0 is None else s0.to(state), do.to(case.dtype), ds1.to(state)


def operation_of(case):
    package = six if case.operation.startswith("wkv6") else seven
    return getattr(package, case.operation)


def parted(x, start, end):
    """A rank's tokens of an input; parameters as they are."""
    return x if x.ndim == 2 else x[:, start:end]


def names(case):
    inputs = ("r", "k", "v", "w", "u") if "wkv6" in case.operation else tuple("rwkvab")
    return ("o", "s1", *("d" + x for x in inputs), *(["ds0"] if case.s0 else []))


def on_rank(case, rank):
    """o, s1 and the gradients of this rank's part."""
    given, s0, do, ds1 = inputs_of(case)
    start, end = sum(case.parts[:rank]), sum(case.parts[: rank + 1])
    leaves = [parted(x, start, end).clone().requires_grad_() for x in given]
    leaves += [] if s0 is None else [s0.clone().requires_grad_()]
    mix = sequence_parallel(operation_of(case), timeout=LIMIT_S)
    more = {"s0": leaves[-1]} if s0 is not None else {}
    if case.cu_seqlens:
        more |= {"cu_seqlens": torch.tensor(case.cu_seqlens), "start": start}
    o, s1 = mix(*leaves[: len(given)], **more, **case.options)
    wanted = [do[:, start:end], ds1 * last_rank_of(case, rank)]
    found = torch.autograd.grad([o, s1], leaves, wanted)
    return [o.detach(), s1.detach(), *found]


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


def in_one_process(case):
    """The same of all tokens, in float64 on the numbers as they were rounded."""
    given, s0, do, ds1 = inputs_of(case)
    leaves = [x.double().requires_grad_() for x in given]
    leaves += [] if s0 is None else [s0.double().requires_grad_()]
    cu = torch.tensor(case.cu_seqlens) if case.cu_seqlens else None
    package = six if case.operation.startswith("wkv6") else seven
    operation = package.wkv6_reference if package is six else package.wkv7_reference
    o, s1 = operation(*leaves, cu_seqlens=cu, **case.options)
    found = torch.autograd.grad([o, s1], leaves, [do.double(), ds1.double()])
    return [o.detach(), s1.detach(), *found]


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


def relative_errors(case, parts):
    """‖error‖ / ‖reference‖ of each result, by name."""
    expected, got = in_one_process(case), joined(case, parts)
    pairs = zip(names(case), expected, got, strict=True)
    size = lambda x: float(x.double().norm())  # noqa: E731
    return {name: size(x - y.double()) / max(size(x), 1e-30) for name, x, y in pairs}


def join(folder, rank, ranks):
    meeting = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=timedelta(seconds=LIMIT_S)
    )


def main(folder, rank, ranks):
    torch.set_num_threads(1)
    join(folder, rank, ranks)
    found = {name: on_rank(case, rank) for name, case in CASES.items()}
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    fall_silent(folder, rank)


def fall_silent(folder, rank):
    """Rank 1 is late for one call, and gone at the next: what the other is told, and when.

    It is late until rank 0 has waited in vain, on a slow machine too. Both leave by `os._exit`: the
    threads of gloo still wait for the gather that was given up, and where Python ends around them
    they may abort the process.
    """
    inputs = inputs_of(CASES["wkv6 decay 1"])[0]
    waited, gone, said = Path(folder) / "waited", Path(folder) / "gone", []
    if rank == 1:
        appears(waited)
        gone.touch()
        os._exit(0)  # without a word to the group
    for timeout in (1, 60):
        began = time.monotonic()
        try:
            sequence_parallel(six.wkv6, timeout=timeout)(*inputs)
        except DeadRank as problem:
            said.append((str(problem), time.monotonic() - began))
        waited.touch()
        appears(gone)
    torch.save(said, Path(folder) / "said.pt")
    os._exit(0)


def appears(file):
    """Waits for a file; whoever started this process ends what waits in vain."""
    while not file.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
