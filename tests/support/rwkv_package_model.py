"""A small RWKV-7 model of random weights, in the layout of released checkpoints; and its tokens.

Run as a program: greedy tokens of the `rwkv` package by its own functions, and by ours.
"""

import os
import sys

import torch


def weights(layers=2, heads=2, N=64, vocabulary=50, low=16):
    """Name → tensor, as a released .pth file has them."""
    g = torch.Generator().manual_seed(0)
    C = heads * N

    def normal(*sizes, scale=None):
        return torch.randn(*sizes, generator=g) * (scale or sizes[-1] ** -0.5)

    found = {"emb.weight": normal(vocabulary, C, scale=1.0), "head.weight": normal(vocabulary, C)}
    norms = ["ln_out", "blocks.0.ln0"]
    for i in range(layers):
        att, ffn = f"blocks.{i}.att.", f"blocks.{i}.ffn."
        norms += [f"blocks.{i}.ln1", f"blocks.{i}.ln2", f"{att}ln_x"]
        for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"):
            found[att + name] = torch.rand(1, 1, C, generator=g)
        for name in "wavg":
            found[f"{att}{name}1"], found[f"{att}{name}2"] = normal(C, low), normal(low, C)
        found[f"{att}r_k"] = normal(heads, N)
        for name in ("receptance", "key", "value", "output"):
            found[f"{att}{name}.weight"] = normal(C, C)
        found[f"{ffn}x_k"] = torch.rand(1, 1, C, generator=g)
        found[f"{ffn}key.weight"], found[f"{ffn}value.weight"] = normal(4 * C, C), normal(C, 4 * C)
    for name in norms:
        found[f"{name}.weight"] = 1 + normal(C, scale=0.1)
        found[f"{name}.bias"] = normal(C, scale=0.1)
    return found


def greedy(model, count=40):
    """A prompt at once, then single tokens; the state after them."""
    logits, state = model.forward([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], None)
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

    def counted(*given):
        calls.append(len(given[3]))
        return time_mix(*given)

    rwkv_package.time_mix = counted
    if whose == "ours":
        rwkv_package.patch_rwkv_package()
    file = os.path.join(folder, whose)
    torch.save(weights(), f"{file}.pth")
    tokens, state = greedy(rwkv.model.RWKV_x070(file, "cpu fp32"))
    # Two layers: the prompt, and each of 40 tokens.
    assert calls == ([10, 10] + [1] * 80 if whose == "ours" else []), calls
    torch.save((tokens, state), f"{file}.results")


if __name__ == "__main__":
    main(*sys.argv[1:])
