"""Two processes with gloo that share a sequence, for lesson 30: each a Python of its own.

`two_processes(tokens=(3000, 5000))` starts them and prints what each found.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def two_processes(tokens=(150, 250), version=6, H=2, N=16, limit_s=180):
    """Runs `sequence_parallel` on two processes; prints their errors against one process.

    Args:
        tokens: how many each of the two has.
        version: 6 or 7, of RWKV.
        H, N: heads and their size.
        limit_s: seconds after which it is given up.

    Raises:
        RuntimeError: a process failed; has what it said.
        subprocess.TimeoutExpired: they were not done within `limit_s`.
    """
    about = {"tokens": list(tokens), "version": version, "H": H, "N": N, "limit_s": limit_s}
    start("rwkv_lessons.lab.lessons.lesson_30.two_processes", about, 2, limit_s)


def start(module, about, ranks, limit_s):
    """Runs a module on so many processes, with a folder, `about` in JSON and a rank; prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", module, folder, json.dumps(about)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = [subprocess.Popen([*command, str(n)], cwd=ROOT, **pipes) for n in range(ranks)]
        try:
            outputs = [process.communicate(timeout=limit_s) for process in started]
        finally:
            for process in started:
                process.kill()
    for process, (out, err) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process failed:\n{err[-2000:]}")
        print(out.rstrip())


def run(folder, about, rank):
    """One of the two processes: prints what it found."""
    import torch
    import torch.distributed as dist

    from rwkv_lessons.distributed import sequence_parallel
    from rwkv_lessons.inputs import rwkv6_inputs, rwkv7_inputs
    from rwkv_lessons.wkv6 import wkv6
    from rwkv_lessons.wkv7 import wkv7

    torch.set_num_threads(1)
    limit = timedelta(seconds=about["limit_s"])
    store = dist.FileStore(str(Path(folder) / "meeting"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    parts, six = about["tokens"], about["version"] == 6
    operation, maker = (wkv6, rwkv6_inputs) if six else (wkv7, rwkv7_inputs)
    whole = maker(1, sum(parts), about["H"], about["N"])
    here = slice(sum(parts[:rank]), sum(parts[: rank + 1]))
    whole, mine = (
        [y.detach().requires_grad_() for y in tensors]
        for tensors in (whole, [x if x.ndim == 2 else x[:, here] for x in whole])
    )
    o, _ = sequence_parallel(operation)(*mine)
    expected, _ = operation(*whole)
    gradients = torch.autograd.grad(o.square().sum(), mine)
    expected_gradients = torch.autograd.grad(expected.square().sum(), whole)
    pairs = [(o, expected[:, here])]
    pairs += [
        (x, y[:, here]) for x, y in zip(gradients, expected_gradients, strict=True) if x.ndim > 2
    ]
    errors = [float((x - y).norm() / y.norm()) for x, y in pairs]
    right = all(error < 1e-5 for error in errors)
    print(f"rank {rank}: tokens {here.start} to {here.stop - 1}, ", end="")
    print("o and gradients as one process has them" if right else f"errors {errors}")
    store.set(f"{rank} is done", "")  # who leaves first may cut off what the other still reads
    store.wait([f"{n} is done" for n in range(2)], limit)
    dist.destroy_process_group()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where the two meet")
    parser.add_argument("about", type=json.loads, help="what they share, in JSON")
    parser.add_argument("rank", type=int, choices=(0, 1))
    run(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
