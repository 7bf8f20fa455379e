"""Pictures of a model that learns: its memories at the start, its losses, what it gets right."""

import numpy as np

from rwkv_lessons.models import reverse
from warplens.pictures import style
from warplens.pictures.style import Picture


def memories(rates, C=256, depths=(0.0, 0.5, 1.0)):
    """After how many tokens half of a channel's state is left, before anything is learned.

    Args:
        rates: (C, depth) → x of exp(-exp(x)), of each channel.
    """
    figure, texts = style.figure(3.0), []
    ax = figure.subplots()
    for depth in depths:
        tokens = np.log(2) / np.exp(np.asarray(rates(C, depth), dtype=float))
        ax.plot(np.arange(C), tokens, label=f"depth {depth:g}")
        half = int((tokens >= 10).sum())
        texts.append(
            f"depth {depth:g}: from {tokens[0]:.0f} tokens to {tokens[-1]:.1f}; "
            f"{half} of {C} channels remember 10 tokens or more"
        )
    ax.set(yscale="log", xlabel="channel", ylabel="tokens until half is forgotten")
    ax.legend()
    return Picture(figure, "\n".join(texts))


def reversal_curve():
    """The recorded run that learned to reverse digits: its loss, and what it then got right."""
    curve = reverse.curve()
    losses, right = np.array(curve["losses"]), {int(n): x for n, x in curve["right"].items()}
    figure = style.figure(3.0)
    left, accuracy = figure.subplots(1, 2, width_ratios=(1.6, 1))
    left.plot(losses, color=style.FAINT, linewidth=0.6)
    window = 50
    smooth = np.convolve(losses, np.ones(window) / window, "valid")
    left.plot(np.arange(len(smooth)) + window / 2, smooth, color=style.LOAD)
    left.set(yscale="log", xlabel="step", ylabel="loss, nats a digit")
    left.set_title(
        f"{curve['parameters']:,} parameters, {curve['processor_seconds']:.0f} s of a CPU"
    )
    longest = curve["longest"]
    colours = [style.LOAD if n <= longest else style.STORE for n in right]
    accuracy.bar(list(right), list(right.values()), color=colours)
    accuracy.axvline(longest + 0.5, color=style.INK, linestyle=":", linewidth=1)
    accuracy.set(xlabel="digits", ylabel="lines that are right", ylim=(0, 1.05))
    accuracy.set_title(f"trained on 1 to {longest} digits")
    shares = "  ".join(f"{n}: {100 * x:.0f} %" for n, x in right.items())
    where = f"{curve['date']}, torch {curve['torch']}, one thread; {curve['command']}"
    return Picture(
        figure,
        f"loss {losses[0]:.2f} → {losses[-window:].mean():.5f} in {len(losses)} steps\n"
        f"digits → share of {curve['lines']} new lines that are right: {shares}\n{where}",
    )


def curves(**losses):
    """Losses of several runs, step by step."""
    figure = style.figure(2.6)
    ax = figure.subplots()
    for n, (name, values) in enumerate(losses.items()):
        line = {"linestyle": "-:"[n], "linewidth": 6 - 4 * n, "alpha": (0.4, 1)[n]}  # both are seen
        ax.plot(values, label=name.replace("_", " "), **line)
    ax.set(xlabel="step", ylabel="loss, nats a character")
    ax.legend()
    texts = [f"{name.replace('_', ' ')}: {x[0]:.1f} → {x[-1]:.1f}" for name, x in losses.items()]
    return Picture(figure, "\n".join(texts))
