"""A learner's own functions on real processes with gloo, for lesson 30."""

import json
import sys
from pathlib import Path
from textwrap import dedent

from ...course.exercises import source_of
from .two_processes import start


def your_ranks(summary, gather, entries, correct, tokens=(50, 170, 80), limit_s=180):
    """Runs these functions on one process for each part of a sequence; prints what each found.

    Args:
        tokens: how many each process has.
        limit_s: seconds after which the processes are stopped.

    Raises:
        RuntimeError: a process failed; has its message. A function may use torch and math only.
    """
    texts = {f.__name__: dedent(source_of(f)) for f in (summary, gather, entries, correct)}
    about = {"tokens": list(tokens), "functions": texts, "limit_s": limit_s}
    names = dict(zip(("summary", "gather", "entries", "correct"), texts, strict=True))
    start(__spec__.name, about | {"names": names}, len(tokens), limit_s)


def run(folder, about, rank):
    """One of the processes: prints whether its outputs are those of the whole sequence."""
    import math
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from rwkv_lessons.inputs import rwkv6_inputs
    from rwkv_lessons.wkv6 import wkv6_reference

    torch.set_num_threads(1)
    limit, ranks = timedelta(seconds=about["limit_s"]), len(about["tokens"])
    store = dist.FileStore(str(Path(folder) / "meeting"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    yours = {"torch": torch, "math": math}
    for text in about["functions"].values():
        exec(text, yours)
    summary, gather, entries, correct = (yours[about["names"][x]] for x in STEPS)

    r, k, v, w, u = (x.double() for x in rwkv6_inputs(1, sum(about["tokens"]), 1, 16))
    mine = [x[0, :, 0].split(about["tokens"])[rank] for x in (r, k, v, w)]
    A, B = summary(*mine[1:])
    running = []

    def send(x, to):
        running.append((x, dist.isend(x.contiguous(), to)))  # x lives until it has been read

    def receive(source):
        x = torch.empty(B.shape[0], B.shape[1] + 1, dtype=B.dtype)
        dist.recv(x, source)
        return x

    maps = torch.stack(list(gather(torch.cat([A[:, None], B], 1), rank, ranks, send, receive)))
    before = entries(maps[:, :, 0], maps[:, :, 1:])[rank]
    o, _ = wkv6_reference(*(x[None, :, None] for x in mine), u)
    o = correct(o[0, :, 0], mine[0], mine[3], before)
    whole, _ = wkv6_reference(r, k, v, w, u)
    first = sum(about["tokens"][:rank])
    right = torch.allclose(o, whole[0, first : first + len(o), 0], atol=1e-12)
    print(f"rank {rank}: tokens {first} to {first + len(o) - 1}, ", end="")
    print("as in one process" if right else "not as in one process")
    for _, work in running:
        work.wait()
    dist.barrier()
    dist.destroy_process_group()


STEPS = "summary", "gather", "entries", "correct"

if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
