"""Pictures of a model with latent attention: its seam, and how long it takes to write."""

from warplens.pictures import style
from warplens.pictures.style import Picture

from ....records.lookup import GPU, record
from ..lessons_25_28.pictures import COLOURS


def generation(gpu=GPU, folder=None):
    """Prints the recorded seconds of whole sequences, one line a size: batch × tokens in × out."""
    try:
        measured = record("mla-generate", gpu, folder)
    except LookupError:
        print(f"Writing with all 62 layers of MiniCPM3-4B: not recorded on an {gpu} yet.")
        return
    methods = list(dict.fromkeys(row.method for row in measured.rows))
    print(f"{'batch × in × out':18}" + "".join(f"{name:>14}" for name in methods) + "   seconds")
    for shape in dict.fromkeys(row.shape for row in measured.rows):
        cells = {r.method: r for r in measured.rows if r.shape == shape}
        line = "".join(f"{_seconds(cells.get(name)):>14}" for name in methods)
        print(f"{' × '.join(map(str, shape)):18}{line}")
    where = measured.provenance
    print(f"{where.gpu}, {where.date}; random weights, {measured.rows[0].dtype}")


def _seconds(row):
    if row is None:
        return "–"
    return row.problem or f"{row.host_ms / 1e3:.2f}"


def seam():
    """The path of one token through the layer: unmodified, and with the latent left alone."""
    figure = style.figure(3.3)
    ax = figure.subplots()
    lanes = {
        1.7: ("unmodified", "expand_kv", "keys, values\nN × H·(K+P+V)", "attention"),
        0.3: (
            "changed at the seam",
            "returns its inputs",
            "latent, rope key\nN × (R + P)",
            "w_k · attention · w_v",
        ),
    }
    arrow = {"arrowstyle": "->", "color": style.INK}
    for y, (name, *boxes) in lanes.items():
        ax.text(-0.1, y + 0.75, name, weight="bold", va="bottom")
        for x, text in enumerate(("cache\nN × (R + P)", *boxes)):
            large = text.startswith("keys")
            colour = COLOURS["v"] if large else COLOURS["latent"] if "N ×" in text else style.FAINT
            style.box(ax, 2.4 * x, y, 1.9, 0.7, colour)
            ink = style.INK if colour == style.FAINT else "white"
            ax.text(2.4 * x + 0.95, y + 0.35, text, ha="center", va="center", size=9, color=ink)
            ax.annotate("", (2.4 * x + 2.4, y + 0.35), (2.4 * x + 1.9, y + 0.35), arrowprops=arrow)
        ax.text(2.4 * 4 + 0.05, y + 0.35, "o", va="center")
        place = {"ha": "center", "va": "top", "arrowprops": arrow}
        ax.annotate("query", (8.15, y), (8.15, y - 0.35), **place)
    ax.set(xlim=(-0.2, 10.1), ylim=(-0.35, 2.8))
    ax.axis("off")
    return Picture(figure, "expand_kv makes keys and values of the whole cache, or leaves it alone")
