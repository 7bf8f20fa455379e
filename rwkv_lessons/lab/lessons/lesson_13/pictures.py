"""How the blocks of a launch, or the programs of Triton, spread over a GPU that runs only them."""

from collections import Counter

from warplens.architectures import ARCHITECTURES
from warplens.pictures import style
from warplens.pictures.style import Picture

COLUMNS = 33  # squares in a row: 132 are four rows of 33
SHADES = 4  # warps on an SM from which on a square is as dark as it gets


def on_the_gpu(*launches, arch="sm_90"):
    """A square for each SM, darker with more warps; one panel per launch.

    Args:
        launches: (name, blocks, warps of a block) each; blocks are dealt out evenly.
        arch: "sm_80", "sm_90" or another of `warplens.architectures`.
    """
    sms = ARCHITECTURES[arch].sms
    rows = -(-sms // COLUMNS)
    figure = style.figure(0.2 + 1.3 * len(launches), 8)
    drawn = figure.subplots(len(launches), 1, squeeze=False)[:, 0]
    texts = []
    for ax, (name, blocks, warps) in zip(drawn, launches, strict=True):
        on = [warps * (blocks // sms + (n < blocks % sms)) for n in range(sms)]
        for n, count in enumerate(on):
            _square(ax, n % COLUMNS, n // COLUMNS, count)
        text = f"{name}: {blocks:,} × {_warps(warps)}, {_spread(on)}"
        ax.set_title(text, loc="left")
        ax.set(xlim=(0, COLUMNS), ylim=(rows, 0), aspect="equal")
        ax.axis("off")
        texts.append(text)
    return Picture(figure, "\n".join(texts))


def _square(ax, x, y, warps):
    from matplotlib.patches import Rectangle

    share = min(warps, SHADES) / SHADES
    colour, alpha = (style.LOAD, 0.25 + 0.75 * share) if warps else (style.FAINT, 1)
    ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fc=colour, alpha=alpha))
    if warps:
        ink = "white" if share > 0.4 else style.INK
        ax.text(x + 0.5, y + 0.52, warps, ha="center", va="center", size=6, color=ink)


def _spread(on):
    busy = Counter(n for n in on if n)
    counts = " or ".join(str(n) for n in sorted(busy))
    return f"on {sum(busy.values())} of {len(on)} SMs, {_warps(counts)} each"


def _warps(n):
    return f"{n} warp" if str(n) == "1" else f"{n} warps"
