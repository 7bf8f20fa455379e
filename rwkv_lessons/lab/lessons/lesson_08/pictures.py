"""Pictures of decay that the data sets: which token lets the state forget how much."""

import torch
from matplotlib.ticker import LogFormatter

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....inputs import words

SHOWN = 26  # tokens along the text


def memory(w):
    """Tokens after which e⁻¹ of the state is left, from its log decay w ≤ 0."""
    return -1 / w


def decay_of_a_text(w, fixed, channels=(2, 30, 61), offset=0):
    """The decay of three channels along a text, token by token, and the spread of all channels.

    Args:
        w: log decay of one head over the text, `[T, N]`.
        fixed: log decay `[N]` of the same head in RWKV-5, the same for every token.
        channels: which to follow; offset: from which token on.
    """
    figure = style.figure(3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for n, channel in enumerate(channels):
        look = {"color": f"C{n}", "label": f"channel {channel}"}
        left.plot(range(SHOWN), memory(w[offset : offset + SHOWN, channel]), "o-", ms=4, **look)
        left.axhline(memory(fixed[channel]), color=f"C{n}", linewidth=1, linestyle="--")
    text = [_shown(word) for word in words()[offset : offset + SHOWN]]
    left.set_xticks(range(SHOWN), text, rotation=90, family="monospace")
    left.set(yscale="log", ylabel="tokens until 1/e is left")
    left.set_title("along a text")
    left.plot([], [], "--", color=style.INK, label="RWKV-5")
    left.legend(loc="upper right", bbox_to_anchor=(1, 1.16), ncols=len(channels) + 1, fontsize=8)

    order = fixed.argsort(descending=True)
    tokens = memory(w[:, order])
    low, middle, high = (torch.quantile(tokens, q, dim=0) for q in (0.05, 0.5, 0.95))
    channel = range(len(order))
    right.fill_between(channel, low, high, color="C0", alpha=0.25, label="5 … 95 %")
    right.plot(channel, middle, color="C0", label="median")
    right.plot(channel, memory(fixed[order]), "--", color=style.INK)
    right.set(yscale="log", xlabel="channel, slow ones first")
    right.set_title(f"over {len(w):,} tokens")
    right.legend(loc="upper right", bbox_to_anchor=(1, 1.16), ncols=2, fontsize=8)
    lows, highs = zip(left.get_ylim(), right.get_ylim(), strict=True)
    for axes in (left, right):
        axes.set_ylim(min(lows), max(highs))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(3, 0.4)))
    factor = float((high / low).median())
    return Picture(figure, f"{len(w):,} tokens: the memory of a channel varies {factor:.1f}-fold")


def _shown(word):
    return word.strip() or ("␣" if "\n" not in word else "\\n")
