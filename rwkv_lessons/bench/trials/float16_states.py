"""What a float16 state of RWKV-7 costs in error, token by token, on a CPU: docs/serving.md's table.

    python -m rwkv_lessons.bench.trials.float16_states              100,000 tokens; 80 s
    python -m rwkv_lessons.bench.trials.float16_states --tokens 2000

Each row is a head of 64 keys and 64 values whose tokens come one at a time, as in generation. The
arithmetic is float32; only what a step leaves in the pool differs. Errors are of o against float64.
"""

import argparse
import sys
from functools import partial

import torch

from rwkv_lessons.runtime.command_line import at_least, run
from rwkv_lessons.sequences.states.pool import rounded

N, COMPARED = 64, 1000  # keys and values; the last tokens, whose o is compared
SPARSE, MEAN = 100, 1.0  # one token in so many writes; of k and v where they are biased
ROWS = (  # tokens, memory in tokens (the decay is exp(-1/memory)), b / κ
    ("random", 3, 0.5),
    ("random", 1_800, 0.5),
    ("random", 36_000, 0.01),
    ("biased", 1_800, 0.01),
    ("biased", 36_000, 0.01),
    ("sparse", 1_800, 0.01),
    ("sparse", 36_000, 0.01),
)


def tokens(t, generator):
    """r, log w, k, v, a and b of token t of every row, float32: `[rows, 1, N]`."""
    r, k, v, kappa = torch.randn(4, len(ROWS), 1, N, generator=generator)
    kappa = torch.nn.functional.normalize(kappa, dim=-1)
    kinds = [kind for kind, *_ in ROWS]
    mean = torch.tensor([MEAN * (kind == "biased") for kind in kinds])[:, None, None]
    writes = [kind != "sparse" or t % SPARSE == 0 for kind in kinds]
    on = torch.tensor(writes, dtype=torch.float32)[:, None, None]
    memory, rate = (torch.tensor(x)[:, None, None] for x in list(zip(*ROWS, strict=True))[1:])
    k, v = (k + mean) * on, (v + mean) * on
    return r, (-1 / memory).expand_as(r), k, v, -kappa, kappa * rate * on


def step(r, w, k, v, a, b, s):
    """o `[rows, 1, 1, N]` and the next state `[rows, 1, N, N]`."""
    z = a[..., None, :] @ s
    s = w.exp()[..., None] * s + b[..., None] * z + k[..., None] * v[..., None, :]
    return r[..., None, :] @ s, s


def measure(count):
    """{kind of state: ‖error‖ / ‖reference‖ of each row over the last tokens}."""
    generator = torch.Generator().manual_seed(0)
    pools = {  # what a state is after each step
        "float64": lambda s, t: s,
        "float32": lambda s, t: s,
        "float16, nearest": lambda s, t: rounded(s, torch.float16).float(),
        "float16, stochastic": lambda s, t: rounded(s, torch.float16, seeds_at(t)).float(),
    }
    seeds_at = partial(torch.full, (len(ROWS),), dtype=torch.int32)
    states = {name: torch.zeros(len(ROWS), 1, N, N) for name in pools}
    states["float64"] = states["float64"].double()
    outputs = {name: [] for name in pools}
    for t in range(count):
        inputs = tokens(t, generator)
        for name, keep in pools.items():
            o, s = step(*(x.to(states[name].dtype) for x in inputs), states[name])
            states[name] = keep(s, t)
            if t >= count - COMPARED:
                outputs[name].append(o.double())
    reference, *others = (torch.cat(x, dim=2).flatten(1) for x in outputs.values())
    errors = [(o - reference).norm(dim=1) / reference.norm(dim=1) for o in others]
    return dict(zip(list(pools)[1:], torch.stack(errors).tolist(), strict=True))


def table(errors):
    """It in markdown."""
    heads = ["tokens", "memory", "rate", *errors]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row, of_row in zip(ROWS, zip(*errors.values(), strict=True), strict=True):
        kind, memory, rate = row
        cells = [
            kind,
            f"{memory:,}",
            f"{rate:g}",
            *(f"{x:.1e}".replace("e-0", "e-") for x in of_row),
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("e-0", "e-"))
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--tokens", type=at_least(1), default=100_000, metavar="T")
    print(table(measure(parser.parse_args(argv).tokens)))


if __name__ == "__main__":
    sys.exit(run(main, "float16_states"))
