"""Lesson 07's picture: the part of the state a thread keeps, and what it has to read for it."""

from warplens.pictures import style
from warplens.pictures.style import Picture


def tiles(N=64, keys=8, values=8):
    """The state of a head, N × N, with one thread's share: a column, and a tile of the same size.

    Args:
        N: head size.
        keys, values: of the tile.

    Returns:
        A `Picture`.
    """
    figure = style.figure(3.6)
    axes = figure.subplots(1, 2)
    column = _share(axes[0], N, "a column", (0, N), (N // 2, N // 2 + 1))
    i, j = N // 4, N // 2
    tile = _share(axes[1], N, "a tile", (i, i + keys), (j, j + values))
    return Picture(figure, f"{column}\n{tile}")


def _share(ax, N, name, keys, values):
    """`keys` and `values` are the half-open ranges of the thread's rows and columns."""
    (top, bottom), (left, right) = keys, values
    height, width, band = bottom - top, right - left, N / 14
    style.box(ax, 0, 0, N, N, "white", style.INK)
    style.box(ax, 0, top, N, height, style.FAINT)
    style.box(ax, left, 0, width, N, style.FAINT)
    style.box(ax, left, top, width, height, style.LOAD)
    style.box(ax, -1.6 * band, top, band, height, style.STORE)
    style.box(ax, left, -1.6 * band, width, band, style.OKABE_ITO["green"])
    ax.text(
        -2.2 * band, (top + bottom) / 2, f"{height} of r\n{height} of k", ha="right", va="center"
    )
    ax.text((left + right) / 2, -2.2 * band, f"{width} of v", ha="center", va="bottom")
    ax.text(N / 2, N + 0.6 * band, "values j →", ha="center", va="top", size=8)
    ax.set(xlim=(-7 * band, N + 7 * band), ylim=(N + 2 * band, -4.5 * band), aspect="equal")
    ax.axis("off")
    read = 2 * height + width
    text = f"{name}: {height * width} elements, {read} numbers to read for a token"
    ax.set_title(text, loc="center")
    return text
