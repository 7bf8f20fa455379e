"""A small model learns to write Python's language reference: python -m rwkv_lessons.models.text

Character by character, on a CPU, in some minutes. With --record it keeps the weights that lesson 29
uses, in records/data/text.pt.
"""

import argparse
import sys
import time
from functools import partial

import torch

from rwkv_lessons.models import trained
from rwkv_lessons.models.rwkv6 import Model, Plan, Sizes, stream, train
from rwkv_lessons.models.tasks import alphabet, passages
from rwkv_lessons.runtime.command_line import as_seed, at_least, run, writable

BATCH, TOKENS = 16, 64
WIDTH, LAYERS, HEAD = 96, 2, 32
PLAN = Plan(steps=1200, rate=4e-3)


def sizes(letters):
    """The `Sizes` of a model that writes these letters."""
    return Sizes(len(letters), width=WIDTH, layers=LAYERS, head=HEAD)


def learned():
    """The model that `--record` kept, and its letters: token n is letters[n]."""
    model, about = trained.load("text", lambda about: sizes(about["letters"]))
    return model, about["letters"]


def story(model, letters, begin, count, mix=None, temperature=0.5, seed=0):
    """Gives `count` characters that the model writes after the text `begin`, one at a time.

    Args:
        begin: at least one character, all of them among the model's letters.
        mix, temperature: as for `write`. seed: of the characters that are drawn.
    """
    if not begin:
        raise ValueError("begin must be at least one character, got ''")
    if unknown := sorted(set(begin) - set(letters)):
        raise ValueError(f"begin must use the model's {len(letters)} letters, got {unknown[0]!r}")
    prompt = torch.tensor([[letters.index(x) for x in begin]])
    drawn = torch.Generator().manual_seed(seed)
    for token in stream(model, prompt, count, mix, temperature, drawn):
        yield letters[int(token)]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m rwkv_lessons.models.text", description=__doc__)
    parser.add_argument("--steps", type=at_least(1), default=PLAN.steps)
    parser.add_argument("--seed", type=as_seed, default=0)
    parser.add_argument("--checkpoint", type=writable, help="a file to continue from, and to write")
    parser.add_argument("--record", action="store_true", help="keep the weights")
    options = parser.parse_args(argv)
    from rich.progress import track

    torch.set_num_threads(1)  # more do not help: small sums
    torch.manual_seed(options.seed)
    model, plan = Model(sizes(alphabet())), Plan(options.steps, PLAN.rate)
    batch = partial(passages, batch=BATCH, T=TOKENS, seed=options.seed)
    began, recent = time.process_time(), []
    learning = train(model, batch, plan, options.checkpoint)
    for step, loss in track(learning, "learning", total=plan.steps):
        recent = [*recent[-199:], float(loss)]
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}: loss {sum(recent) / len(recent):.3f}", flush=True)
    seconds, loss = time.process_time() - began, sum(recent) / len(recent)
    if options.record:
        about = {"letters": alphabet(), "steps": options.steps, "loss": round(loss, 3)}
        trained.keep(model, "text", **about, processor_seconds=round(seconds))
    print("The ", *story(model, alphabet(), "The ", 300), sep="")


if __name__ == "__main__":
    sys.exit(run(main, "text"))
