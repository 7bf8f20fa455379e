"""Greedy tokens of a small RWKV-7 model of random weights, in a program of its own.

By the `rwkv` package's functions, and by its model on ours.
"""

import os
import sys

import torch

from rwkv_lessons.models.rwkv7 import random_weights

WEIGHTS = random_weights(vocabulary=50)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def greedy(model, count=40):
    """A prompt at once, then single tokens; the state after them."""
    logits, state = model.forward(PROMPT, None)
    tokens = []
    for _ in range(count):
        tokens.append(int(logits.argmax()))
        logits, state = model.forward([tokens[-1]], state)
    return tokens, state


def main(folder, whose):
    os.environ["RWKV_V7_ON"] = "1"
    import rwkv.model

    from rwkv_lessons.interop import rwkv_package

    calls, time_mix = [], rwkv_package.time_mix

    def counted(*args):
        calls.append(len(args[3]))
        return time_mix(*args)

    rwkv_package.time_mix = counted
    if whose == "ours":
        rwkv_package.patch_rwkv_package()
    file = os.path.join(folder, whose)
    torch.save(WEIGHTS, f"{file}.pth")
    tokens, state = greedy(rwkv.model.RWKV_x070(file, "cpu fp32"))
    # Two layers: the prompt, and each of 40 tokens.
    assert calls == ([10, 10] + [1] * 80 if whose == "ours" else []), calls
    torch.save((tokens, state), f"{file}.results")


if __name__ == "__main__":
    main(*sys.argv[1:])
