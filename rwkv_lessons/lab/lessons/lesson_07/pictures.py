"""Lesson 07's pictures: the part of the state that a thread keeps, and padding to try."""

import numpy as np
from numba import cuda, float32

from warplens.cuda.banks import BANKS, schedule
from warplens.cuda.trace import trace
from warplens.pictures import style
from warplens.pictures.movable import Drawing, movable
from warplens.pictures.style import Picture
from warplens.wording import many

N = 64  # head size
ROW = N  # floats from one row of the shared state to the next
CELL = 19  # pixels across a bank


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
    text = f"{name}: {height * width} elements, {read} values to load per token"
    ax.set_title(text, loc="center")
    return text


@cuda.jit
def keys_first(x, y):
    """Lane j stores and reads element [0, j] of a state laid out as keys × values."""
    s_state = cuda.shared.array((N, ROW), float32)
    j = cuda.threadIdx.x
    s_state[0, j] = x[j]
    y[j] = s_state[0, j]


@cuda.jit
def values_first(x, y):
    """Lane j stores and reads element [j, 0] of a state laid out as values × keys."""
    s_state = cuda.shared.array((N, ROW), float32)
    j = cuda.threadIdx.x
    s_state[j, 0] = x[j]
    y[j] = s_state[j, 0]


LAYOUTS = {"s_state[j, i]": values_first, "s_state[i, j]": keys_first}


def padding_to_try(paddings=(0, 1, 2, 3, 4, 8, 16, 32)):
    """One load of a warp from the shared state, with sliders for the layout and for the padding.

    Args:
        paddings: floats that are added to each row of N.

    Returns:
        A `Movable`: in which wavefront each bank serves which lane, from a trace.
    """

    def draw(layout, padding):
        x = np.ones(BANKS, np.float32)
        t = trace(LAYOUTS[layout], 1, BANKS, x, x.copy(), constants={"ROW": N + padding})
        request = t.request(array="s_state", op="load")
        lanes = range(BANKS)
        wavefronts = schedule(lanes, request.addresses, request.row.width, request.row.op)
        drawing = Drawing(40 + BANKS * CELL, 30 + BANKS * 11)
        for bank in range(BANKS):
            x = 36 + bank * CELL
            drawing.box(x, 4, CELL, 14, style.FAINT, bank)
            for n, (served, extra) in enumerate(wavefronts):
                if bank in served:
                    colour = style.OKABE_ITO["orange"] if extra else style.LOAD
                    ink = style.INK if extra else "white"
                    drawing.box(x, 20 + 11 * n, CELL, 11, colour, served[bank][0], ink)
        drawing.write(0, 14, "bank")
        drawing.write(0, 29, "lane")
        extra = len(wavefronts) - 1
        text = f"{layout}, rows of {N} + {padding} floats: {many(len(wavefronts), 'wavefront')}, "
        return drawing, text + (many(extra, "conflict") if extra else "no conflict")

    return movable({"layout": LAYOUTS, "padding": paddings}, draw)
