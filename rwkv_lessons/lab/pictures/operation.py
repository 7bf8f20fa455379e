"""Pictures of the operation itself: its arrays in memory, how long a state lasts, its roof."""

import math

from warplens.least_time import roof_over
from warplens.pictures import style
from warplens.pictures.style import Picture

from ...operations import work
from ...records.lookup import GPU
from ..course import progress
from .roofline import Dot, ceiling, plot_roofline


def memory(shape, h=0, tokens=3, itemsize=4):
    """The start of a `[B, T, H, N]` tensor as the one line of numbers that it is in memory.

    Args:
        shape: B, T, H, N.
        h: the head to mark.
        tokens: how many tokens to draw.
    """
    _, T, H, N = shape
    if not 0 <= h < H:
        raise ValueError(f"h is {h}, needs one of the heads 0 … {H - 1}")
    tokens = min(tokens, T)
    figure = style.figure(2.0)
    ax = figure.subplots()
    for t in range(tokens):
        for head in range(H):
            mine = head == h
            colour = style.LOAD if mine else style.FAINT
            style.box(ax, t * H + head, 0, 1, 1, colour, edge="white")
            ink = "white" if mine else style.INK
            at = (t * H + head + 0.5, 0.5)
            ax.text(*at, f"h={head}\n{N}", ha="center", va="center", size=8, color=ink)
        ax.text(t * H + H / 2, 1.12, f"t={t}", ha="center", size=9)
        ax.plot([t * H, t * H], [-0.1, 1.3], color=style.INK, linewidth=1.5)
    left, right = h + 0.5, h + H + 0.5
    if tokens > 1:
        arrow = {"arrowstyle": "<->", "color": style.STORE}
        ax.annotate("", (left, -0.25), (right, -0.25), arrowprops=arrow)
        step = f"one token on: H·N = {H * N:,} elements, {H * N * itemsize:,} bytes"
        ax.text((left + right) / 2, -0.42, step, ha="center", va="top", size=9)
    ax.text(tokens * H + 0.15, 0.5, "…", va="center", size=14)
    ax.set(xlim=(-0.1, tokens * H + 0.6), ylim=(-0.8, 1.5))
    ax.axis("off")
    text = (
        f"head {h}: {N} elements side by side, then {(H - 1) * N:,} of other heads, token by token"
    )
    ax.set_title(text)
    return Picture(figure, text)


def half_lives(**log_decays):
    """After how many tokens half of a row of the state is left, row by row.

    Args:
        log_decays: by name, w `[H, N]`, all below 0.
    """
    figure = style.figure(3.0)
    ax = figure.subplots()
    texts = []
    for name, w in log_decays.items():
        tokens = (math.log(0.5) / w.double()).flatten()
        label = name.replace("_", " ")
        channel = [n / max(len(tokens) - 1, 1) for n in range(len(tokens))]
        ax.plot(channel, tokens.tolist(), linewidth=2, label=label)
        low, middle, high = tokens.quantile(tokens.new_tensor([0, 0.5, 1])).tolist()
        texts.append(
            f"{label}: {low:.1f} to {high:.0f} tokens, half of the rows below {middle:.0f}"
        )
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="row of the state: first head's first … last head's last", xticks=[])
    ax.set(ylabel="half-life, tokens")
    ax.legend()
    return Picture(figure, "half-life of a row\n" + "\n".join(texts))


def roof(operation, shape, dtype="float32", gpu=GPU, folder=None, predicted=None, unit=None):
    """The roofline of a GPU over one operation, and the least time that it leaves.

    Args:
        predicted: id of a prediction in milliseconds, drawn beside it if there is one.
        unit: what does the arithmetic, as for `ceiling`.

    Returns None, and prints a line that says so, where the GPU's ceilings are not recorded yet.
    """
    try:
        limit = ceiling(dtype, gpu, folder, unit)
    except LookupError as missing:
        print(f"No roofline: {missing}")
        return None
    print(f"{limit.name}: memory is the limit up to {limit.ridge:.1f} operations a byte")
    todo = work(operation, shape, dtype)
    floor_ms = roof_over(todo, limit).floor_ms * (1 + 1e-9)  # rounding must not lift it above
    guess = progress.prediction(predicted) if predicted else None
    times = {"the least": floor_ms, "your prediction": guess}
    dots = [Dot("predicted", label, todo, ms) for label, ms in times.items() if ms]
    return plot_roofline(limit, dots)
