"""Processes that share a sequence, each with its part.

    python -m support.ranks FOLDER RANK RANKS BACKEND

runs every case of `cases_of` on its rank, through a file in FOLDER where the ranks meet, and keeps
the results there.
"""

import contextlib
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from rwkv_lessons import wkv6 as six
from rwkv_lessons import wkv7 as seven
from rwkv_lessons.distributed import DeadRank, sequence_parallel

from .rank_cases import (
    CASES,
    Case,
    arguments,
    cases_of,
    in_blocks,
    inputs_of,
    last_rank_of,
    learned,
    operation_of,
    parted,
)

LIMIT_S = 600  # for a rank to wait for the other, and for both: a loaded machine takes its time


def on_rank(case, rank, device):
    """o, s1 and the gradients of this rank's part; the second backward pass makes the same ones."""
    inputs, s0, do, ds1 = inputs_of(case)
    start, end = sum(case.parts[:rank]), sum(case.parts[: rank + 1])
    leaves = [*(parted(x, start, end) for x in inputs), *([] if s0 is None else [s0])]
    leaves = [x.detach().clone().to(device) for x in leaves]
    learn = [x for x, name in zip(leaves, arguments(case), strict=True) if name in learned(case)]
    for x in learn:
        x.requires_grad_()
    more = {"cu_seqlens": torch.tensor(case.cu_seqlens)} if case.cu_seqlens else {}
    if case.cu_seqlens and case.start:
        more["start"] = start
    mix = sequence_parallel(operation_of(case), timeout=LIMIT_S)
    d_outputs = [do[:, start:end].to(device), (ds1 * last_rank_of(case, rank)).to(device)]
    cast = torch.autocast(device.type, torch.bfloat16) if case.autocast else None
    another_gpu = torch.cuda.device((rank + 1) % len(case.parts)) if case.elsewhere else None
    with cast or contextlib.nullcontext(), another_gpu or contextlib.nullcontext():
        results = in_blocks(replace(case, options={}) if case.preset else case, mix, leaves, **more)
        pairs = [(x, dx) for x, dx in zip(results, d_outputs, strict=True) if x.requires_grad]
        gradients = []
        for again in (True, False):
            torch.autograd.backward(*zip(*pairs, strict=True), retain_graph=again)
            gradients.append([x.grad.cpu() for x in learn])
            for x in learn:
                x.grad = None
    assert all(map(torch.equal, *gradients))
    return [*(x.detach().cpu() for x in results), *gradients[-1]]


def join(folder, rank, ranks, backend):
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{Path(folder) / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=LIMIT_S),
        device_id=device if backend == "nccl" else None,
    )
    return device


def main(folder, rank, ranks, backend):
    torch.set_num_threads(1)
    device, cases = join(folder, rank, ranks, backend), cases_of(ranks, backend)
    results = {name: on_rank(case, rank, device) for name, case in cases.items()}
    about = {"results": results, "refused": refusals(rank, device)}
    about |= {"kept": kept_of_checkpoints(rank, device), "outside": outside(rank, device)}
    torch.save(about, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    if backend == "gloo" and ranks == 2:
        fall_silent(folder, rank)
    dist.destroy_process_group()


def tensors_of(name, device, B=1, T=5, H=2, N=8, dtype=torch.float32):
    inputs, _, _, _ = inputs_of(Case(name, (T,), B=B, H=H, K=N, V=N, dtype=dtype))
    return [x.to(device) for x in inputs]


def refusals(rank, device):
    """What ranks are told that do not make the same call, by what is not the same."""
    even, odd = rank % 2 == 0, rank % 2
    ends = torch.tensor([0, 5 * dist.get_world_size()])

    def call(name="wkv6", learns=False, options=None, **sizes):
        inputs = [x.requires_grad_(learns) for x in tensors_of(name, device, **sizes)]
        operation = six.wkv6 if name == "wkv6" else seven.wkv7
        try:
            sequence_parallel(operation, timeout=LIMIT_S)(*inputs, **(options or {}))
        except ValueError as problem:
            return str(problem)

    return {
        "operation": call("wkv6" if even else "wkv7"),
        "B": call(B=1 + odd),
        "H": call(H=2 + odd),
        "K": call(N=8 + odd),
        "dtype": call(dtype=torch.float64 if odd else torch.float32),
        "requires_grad": call(learns=even),
        "options": call(options={"scale": 0.5 + odd}),
        "cu_seqlens": call(options={"cu_seqlens": ends if even else ends[[0, 0, 1]]}),
        "start": call(options={"cu_seqlens": ends, "start": 0}),
        "cu_seqlens must increase from 0": call(options={"cu_seqlens": ends + 1}),
    }


def kept_of_checkpoints(rank, device):
    """Whether a checkpoint's inputs stay in memory between the passes, by operation."""
    stays = {}
    for name, operation in (("wkv6", six.wkv6), ("wkv7", seven.wkv7)):
        inside, inputs = [], [x.requires_grad_() for x in tensors_of(name, device, T=70)]

        def block(mix, inside, *tensors):
            tensors = [2 * x for x in tensors]
            inside += [StorageWeakRef(x.untyped_storage()) for x in tensors]
            return mix(*tensors)

        mix = sequence_parallel(operation, timeout=LIMIT_S)
        o, s1 = checkpoint(block, mix, inside, *inputs, use_reentrant=False)
        stays[name] = [not x.expired() for x in inside]
        (o.sum() + s1.sum()).backward()
    return stays


def outside(rank, device):
    """What a rank is told that is not in the group."""
    mix = sequence_parallel(six.wkv6, dist.new_group([0]))
    try:
        mix(*tensors_of("wkv6", device))
    except ValueError as problem:
        return str(problem)


def fall_silent(folder, rank):
    """Rank 1 is late for one call, and gone at the next: what the other is told, and when.

    It is late until rank 0 has waited in vain, on a slow machine too. Both leave by `os._exit`: the
    threads of gloo still wait for the gather that was given up, and where Python ends around them
    they may abort the process.
    """
    inputs = inputs_of(CASES["wkv6 decay 1"])[0]
    waited, gone, messages = Path(folder) / "waited", Path(folder) / "gone", []
    if rank == 1:
        appears(waited)
        gone.touch()
        os._exit(0)  # without a word to the group
    for timeout in (1, 60):
        began = time.monotonic()
        try:
            sequence_parallel(six.wkv6, timeout=timeout)(*inputs)
        except DeadRank as problem:
            messages.append((str(problem), time.monotonic() - began))
        waited.touch()
        appears(gone)
    torch.save(messages, Path(folder) / "said.pt")
    os._exit(0)


def appears(file):
    """Waits for a file; whoever started this process ends what waits in vain."""
    while not file.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
