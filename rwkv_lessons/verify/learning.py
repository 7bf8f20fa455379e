"""Loss curves with different arithmetic: python -m rwkv_lessons.verify.learning

An RWKV-7 model of two layers learns to reverse digits, from the same weights and with the same
batches each time. Only the recurrence differs: written out in float32, which is the reference; by
`wkv7` in float32; by `wkv7` with its arguments rounded to bfloat16; and by the arithmetic of
RWKV-LM's kernel (see block.py) with the same. On a GPU `wkv7` is its chunked kernels.
"""

import argparse
import sys

import torch

from rwkv_lessons.models.rwkv6 import Plan, train
from rwkv_lessons.models.rwkv7 import Learner, random_weights, ready_to_learn
from rwkv_lessons.models.tasks import REVERSAL_VOCABULARY, reversal
from rwkv_lessons.runtime.command_line import as_seed, at_least, run
from rwkv_lessons.verify.block import ClampW, clamped
from rwkv_lessons.wkv7 import METHODS, wkv7_reference

SIZES = {"layers": 2, "heads": 2, "N": 32, "rank": 8}
BATCH, LONGEST, RATE = 32, 5, 5e-3
REFERENCE = "float32, written out"


def in_bfloat16(recurrence):
    """With tokens, o and all gradients rounded to bfloat16."""
    return lambda *tokens: recurrence(*(x.bfloat16() for x in tokens)).to(tokens[0].dtype)


def ways(on_gpu):
    """{name: what computes o}; the reference first."""
    method = "chunked" if on_gpu else "wy"
    ours = clamped(METHODS[method])
    return {
        REFERENCE: clamped(wkv7_reference),
        f"{method}, float32": ours,
        f"{method}, bfloat16": in_bfloat16(ours),
        "RWKV-LM, bfloat16": in_bfloat16(ClampW.apply),
    }


def losses(recurrence, steps, device="cpu", seed=0):
    """The loss of each step, a list."""
    weights = ready_to_learn(random_weights(vocabulary=REVERSAL_VOCABULARY, **SIZES, seed=seed))
    model = Learner(weights, recurrence).to(device)

    def batch(step):
        tokens, counts = reversal(step, BATCH, LONGEST, seed=seed)
        return tokens.to(device), counts.to(device)

    return [float(loss) for _, loss in train(model, batch, Plan(steps, RATE))]


def compared(curves, every):
    """A table in Markdown: mean losses of `every` steps, and how far from the reference's."""
    reference = curves[REFERENCE]
    others = [name for name in curves if name != REFERENCE]
    yield f"| steps | {REFERENCE} | {' | '.join(others)} |"
    yield f"|---|---:|{'---:|' * len(others)}"
    for first in range(0, len(reference), every):
        part = slice(first, first + every)
        want = mean(reference[part])
        cells = (mean(curves[name][part]) - want for name in others)
        end = min(first + every, len(reference)) - 1
        yield f"| {first}–{end} | {want:.4f} | {' | '.join(f'{x:+.1e}' for x in cells)} |"


def mean(x):
    return sum(x) / len(x)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.verify.learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=at_least(1), default=200, help="default: 200")
    parser.add_argument(
        "--every", type=at_least(1), default=20, help="steps of a line (default: 20)"
    )
    parser.add_argument("--seed", type=as_seed, default=0)
    options = parser.parse_args(argv)
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    torch.set_num_threads(1)  # more do not help: small sums
    curves = {}
    for name, recurrence in ways(on_gpu).items():
        print(f"{options.steps} steps with {name} …", file=sys.stderr, flush=True)
        curves[name] = losses(recurrence, options.steps, device, options.seed)
    print(*compared(curves, options.every), sep="\n")


if __name__ == "__main__":
    sys.exit(run(main, "learning"))
