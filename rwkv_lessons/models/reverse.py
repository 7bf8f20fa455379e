"""A small model learns to reverse digits, on a CPU: python -m rwkv_lessons.models.reverse

Shows its progress and continues from its checkpoint. With --record it keeps the curve and the
weights that lesson 29 uses, in records/data/reversal.json and reversal.pt.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

from rwkv_lessons.models import trained
from rwkv_lessons.models.rwkv6 import Model, Plan, Sizes, stream, train
from rwkv_lessons.models.tasks import ASK, END, REVERSAL_VOCABULARY, reversal, reversed_right
from rwkv_lessons.runtime.command_line import as_seed, at_least, run, writable

LONGEST, BATCH = 6, 64  # digits that it is trained on, and lines of a step
SIZES = Sizes(REVERSAL_VOCABULARY, width=64, layers=2, head=32)
PLAN = Plan(steps=3000, rate=5e-3)
TESTED = 512  # new lines of each length
CURVE = Path(__file__).parents[1] / "records" / "data" / "reversal.json"


def make(seed=0):
    """The model, before it has learned."""
    torch.manual_seed(seed)
    return Model(SIZES)


def steps(model, plan=PLAN, seed=0, checkpoint=None):
    """(step, loss) of each step."""
    return train(
        model, partial(reversal, batch=BATCH, longest=LONGEST, seed=seed), plan, checkpoint
    )


def curve():
    """What `--record` kept."""
    return json.loads(CURVE.read_text(encoding="utf-8"))


def learned():
    """The model that `--record` kept."""
    return trained.load("reversal", lambda _: SIZES)[0]


def answer(model, digits, mix=None):
    """Gives the characters that the model writes after a line of digits: "314" → "4", "1", "3".

    Args:
        digits: a text of at least one digit.
        mix: what computes one token, as for `write`.
    """
    if not isinstance(digits, str) or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"digits must be a text such as '314', got {digits!r}")
    prompt = torch.tensor([[int(x) for x in digits] + [ASK]])
    for token in stream(model, prompt, len(digits) + 1, mix):
        if int(token) == END:
            return
        yield "?" if int(token) == ASK else str(int(token))


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.models.reverse", description=__doc__
    )
    parser.add_argument("--steps", type=at_least(1), default=PLAN.steps)
    parser.add_argument("--seed", type=as_seed, default=0)
    parser.add_argument(
        "--threads", type=at_least(1), default=1, help="more do not help: small sums"
    )
    parser.add_argument("--checkpoint", type=writable, help="a file to go on from, and to write")
    parser.add_argument("--record", action="store_true", help="keep the curve")
    options = parser.parse_args(argv)
    if options.record and options.checkpoint:
        parser.error("--record is of a whole run, without --checkpoint")
    from rich.progress import track

    torch.set_num_threads(options.threads)
    model, plan = make(options.seed), Plan(options.steps, PLAN.rate)
    losses, began, processor_began = [], time.perf_counter(), time.process_time()
    learning = steps(model, plan, options.seed, options.checkpoint)
    for step, loss in track(learning, "learning", total=plan.steps):
        losses.append(float(loss))
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    seconds = time.perf_counter() - began, time.process_time() - processor_began
    if options.record:
        trained.keep(model, "reversal")
        model = learned()  # what is tested is what a lesson loads
    right = {n: reversed_right(model, n, TESTED) for n in range(1, 2 * LONGEST + 1)}
    print(f"{seconds[0]:.0f} s ({seconds[1]:.0f} of the processor)")
    print(f"digits → share of {TESTED} new lines that are right:")
    print("  ".join(f"{n}: {share:.3f}" for n, share in right.items()))
    if options.record:
        keep(options, model, seconds, losses, right)


def keep(options, model, seconds, losses, right):
    commit = ["git", "describe", "--always", "--dirty"]
    report = {
        "command": f"python -m rwkv_lessons.models.reverse --steps {options.steps} --seed "
        f"{options.seed} --threads {options.threads} --record",
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip(),
        "cpu": processor(),
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "parameters": sum(x.numel() for x in model.parameters()),
        "longest": LONGEST,
        "lines": TESTED,
        "seconds": round(seconds[0], 1),
        "processor_seconds": round(seconds[1], 1),
        "right": {str(n): round(share, 4) for n, share in right.items()},
        "losses": [float(f"{x:.4g}") for x in losses],
    }
    CURVE.write_text(json.dumps(report) + "\n", encoding="utf-8")
    print(f"recorded: {CURVE}")


def processor():
    """What the system calls its CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(run(main, "reverse"))
