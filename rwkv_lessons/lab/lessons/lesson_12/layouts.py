"""Lesson 12's pictures of layouts: which lane of which warp holds which elements of a tile."""

import numpy as np

from warplens.cuda.memory_model import SECTOR
from warplens.pictures import style
from warplens.pictures.movable import Drawing, movable
from warplens.pictures.style import Picture
from warplens.triton.layouts import FLOAT32, Blocked

CELL = 0.26  # inches
WARPS = "sky blue", "orange"  # in turn
LIGHTEST, DARKEST = 0.25, 0.95  # share of a warp's colour: its first lane, its last
LEGEND = (
    "in a cell: the lane, and its register as a small number. A colour is a warp, darker from lane "
    "to lane. Bold: what the first load of warp 0 reads; framed: the sectors it touches."
)
PIXELS = 19  # of a cell in the movable picture
CHOICES = {  # of 16 × 16 elements and 2 warps, for a reader to swap
    "rows, 4 elements a lane": Blocked((1, 4), (8, 4), (2, 1), (1, 0)),
    "rows, 2 elements a lane": Blocked((1, 2), (4, 8), (2, 1), (1, 0)),
    "rows, 1 element a lane": Blocked((1, 1), (2, 16), (2, 1), (1, 0)),
    "columns, 1 element a lane": Blocked((1, 1), (16, 2), (1, 2), (0, 1)),
    "columns, 4 elements a lane": Blocked((4, 1), (4, 8), (1, 2), (0, 1)),
}


def dealt(shape, stride, **layouts):
    """A tile of float32 in several layouts: lanes, registers, and the sectors of the first load.

    Args:
        shape: rows and columns of the tile.
        stride: how many elements apart its rows begin in memory; a multiple of 8, so that a row
            begins with a sector.
        layouts: a `Blocked` for each panel, by its title ("_" for a space).

    Raises:
        ValueError: a layout does not fit the tile.
    """
    rows, columns = shape
    figure = style.figure(CELL * rows + 1.15)
    axes = figure.subplots(1, len(layouts), squeeze=False)[0]
    drawn = zip(axes, layouts.items(), strict=True)
    texts = [
        _panel(ax, shape, stride, name.replace("_", " "), layout) for ax, (name, layout) in drawn
    ]
    figure.supxlabel(LEGEND, size=8)
    return Picture(figure, "\n".join(texts))


def swap_layouts(stride=64):
    """A tile of 16 × 16 float32 whose layout a reader swaps: the first load of warp 0.

    Args:
        stride: as of `dealt`.
    """
    return movable({"layout": tuple(CHOICES)}, lambda layout: _first_load(layout, stride))


def _first_load(name, stride, shape=(16, 16)):
    """A `Drawing` of the tile with the first load of warp 0, and a sentence that says the same."""
    rows, columns = shape
    elements = CHOICES[name].elements(shape)
    width, touched = CHOICES[name].loads(shape, stride)
    loads, wide = touched.shape[1], SECTOR // FLOAT32
    drawing = Drawing(columns * PIXELS + 2, rows * PIXELS + 2)
    for warp, lane, register in np.ndindex(elements.shape[:3]):
        row, column = elements[warp, lane, register]
        first = warp == 0 and register < width
        fill = style.OKABE_ITO["orange" if first else "sky blue"] if warp == 0 else style.FAINT
        x, y = column * PIXELS + 1, row * PIXELS + 1
        drawing.box(x, y, PIXELS, PIXELS, fill, lane if warp == 0 else "")
    read = elements[0, :, :width].reshape(-1, 2)
    for row, sector in {(row, column // wide) for row, column in read}:
        x, y = sector * wide * PIXELS + 1, row * PIXELS + 1
        drawing.box(x, y, wide * PIXELS, PIXELS, edge=style.INK)
    used = len(read) / touched[0, 0] / wide
    return drawing, (
        f"{name}: {loads} load{'s' * (loads > 1)} of {FLOAT32 * width} bytes a lane. The first "
        f"load of warp 0 touches {touched[0, 0]} sectors and uses {used:.0%} of them; all its "
        f"loads together read {touched[0].sum()} sectors"
    )


def _panel(ax, shape, stride, name, layout):
    elements = layout.elements(shape)
    width, touched = layout.loads(shape, stride)
    for warp, lane, register in np.ndindex(elements.shape[:3]):
        row, column = elements[warp, lane, register]
        _cell(ax, row, column, (warp, lane, register), elements.shape[1], width)
    rows, columns = shape
    wide = SECTOR // FLOAT32
    first = {(row, column // wide) for row, column in elements[0, :, :width].reshape(-1, 2)}
    for row, sector in first:
        style.box(ax, sector * wide, row, wide, 1, "none", style.INK, line=1.6)
    ax.set(xlim=(-0.1, columns + 0.1), ylim=(rows + 0.1, -0.1))
    ax.axis("off")
    loads, sectors = touched.shape[1], int(touched[0].sum())
    times = "1 load" if loads == 1 else f"{loads} loads"
    lines = (
        f"{name}: a lane has {times} of {FLOAT32 * width} bytes",
        f"sectors that warp 0 reads: {touched[0, 0]} in its first load, {sectors} in all",
    )
    ax.set_title("\n".join(lines), loc="left", size=9)
    return "; ".join(lines)


def _cell(ax, row, column, owner, lanes, width):
    warp, lane, register = owner
    share = LIGHTEST + (DARKEST - LIGHTEST) * lane / (lanes - 1)
    colour = style.OKABE_ITO[WARPS[warp % len(WARPS)]]
    style.box(ax, column + 0.04, row + 0.05, 0.92, 0.9, colour, alpha=share)
    first = warp == 0 and register < width
    weight = "bold" if first else "normal"
    place = {"va": "center", "color": style.INK, "weight": weight}
    ax.text(column + 0.6, row + 0.52, lane, ha="right", size=7, **place)
    ax.text(column + 0.66, row + 0.68, register, ha="left", size=5, **place)
