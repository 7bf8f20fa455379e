"""How often each element of an array was read, written or updated, drawn at reduced resolution."""

import numpy as np

from .markup import box, element, joined, picture

MOST_CELLS = 48, 96  # rows and columns
STRIP = 128  # cells of an array with one dimension
LEVELS = 8
SIZE = 320, 160  # units of a picture at most
DONE = {"load": "read", "store": "written", "atomic": "updated by atomics"}


def element_numbers(offsets, width, shape, strides, itemsize):
    """The number of each element that accesses of `width` bytes at `offsets` touch, in C order."""
    pieces = max(1, width // itemsize)
    remainder = (offsets[:, None] + itemsize * np.arange(pieces)).ravel()
    index = [np.zeros(len(remainder), np.int64) for _ in shape]
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis] > 0 and shape[axis] > 1:
            index[axis], remainder = np.divmod(remainder, strides[axis])
    return np.ravel_multi_index(index, shape, mode="clip") if shape else np.zeros_like(remainder)


def memory_map(array, shape, op, elements, times=None, each=1, whose=""):
    """A <figure> of one array and kind of access.

    Args:
        array: its name. shape: of it. op: "load", "store", "atomic".
        elements: the number of the element of every access, in C order.
        times: how many accesses each of these stands for; one by default.
        each: by how many the counts are divided, as of arrays that each block has; whose: says so.
    """
    size = int(np.prod(shape))
    rows, columns = _folded(shape, size)
    tall, wide = (1, min(columns, STRIP)) if rows == 1 else np.minimum((rows, columns), MOST_CELLS)
    row, column = np.divmod(elements, columns)
    cell = (row * tall // rows) * wide + column * wide // columns
    counts = np.bincount(cell, times, minlength=tall * wide).reshape(tall, wide)
    mean = counts / np.outer(_sizes(rows, tall), _sizes(columns, wide)) / each
    touched = len(np.unique(elements))
    name = f"{array} [{', '.join(map(str, shape))}]"
    mean_of_all = counts.sum() / each / size
    text = f"{DONE[op]} {_times(mean_of_all, mean_of_all)} per element{whose} on average, "
    text += f"{size - touched:,} of {size:,} never" if touched < size else "each at least once"
    levels = _levels(mean)
    return element(
        "figure",
        _drawn(name, text, op, mean, levels),
        element("figcaption", element("b", name), f" {text}", _legend(op, levels)),
    )


def _folded(shape, size):
    """Rows and columns: the last dimension across, all others down."""
    columns = shape[-1] if shape else 1
    return (1, size) if columns == 1 else (size // columns, columns)


def _sizes(elements, cells):
    """How many rows, or columns, are drawn in each cell's."""
    edges = -(-np.arange(cells + 1) * elements // cells)
    return np.diff(edges)


def _levels(mean):
    """[(in words, mask of the cells)]: a level per count, or a few ranges where counts are many."""
    values = np.unique(np.round(mean[mean > 0], 6))
    if len(values) <= LEVELS:
        return [(_times(v, v), np.isclose(mean, v, rtol=0, atol=1e-6)) for v in values]
    edges = np.geomspace(values[0], values[-1], LEVELS + 1)
    level = np.digitize(mean, edges[1:-1])
    masks = [(level == n) & (mean > 0) for n in range(LEVELS)]
    return [(_times(mean[m].min(), mean[m].max()), m) for m in masks if m.any()]


def _times(low, high):
    text = f"{low:.3g}" if high == low else f"{low:.3g} to {high:.3g}"
    return f"{text} time{'' if text == '1' else 's'}"


def _shade(n, levels):
    return f"{0.3 + 0.7 * (n + 1) / len(levels):.2f}"


def _drawn(name, text, op, mean, levels):
    tall, wide = mean.shape
    x, y = min(SIZE[0] / wide, 12), 14 if tall == 1 else min(SIZE[1] / tall, 12)
    paths = [
        element(
            "path",
            element("title", f"{DONE[op]} {label}"),
            d=_runs(mask),
            class_=op,
            fill_opacity=_shade(n, levels),
        )
        for n, (label, mask) in enumerate(levels)
    ]
    return picture(
        x * wide,
        y * tall,
        f"memory map of {name}, {DONE[op]}",
        text,
        element("g", box(0, 0, wide, tall, "faint"), *paths, transform=f"scale({x:g} {y:g})"),
        width=f"{x * wide:g}",
        height=f"{y * tall:g}",
        class_="map",
    )


def _runs(mask):
    """The cells of a mask as a path: neighbours in a row are one rectangle."""
    parts = []
    for row, cells in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.r_[0, cells.astype(np.int8), 0]))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            parts.append(f"M{first} {row}h{end - first}v1H{first}z")
    return "".join(parts)


def _legend(op, levels):
    keys = [
        element(
            "span",
            picture(10, 10, label, label, box(0, 0, 10, 10, op, fill_opacity=_shade(n, levels)),
                    width="10", height="10"),
            f" {label}",
        )
        for n, (label, _) in enumerate(levels)
    ]  # fmt: skip
    return element("span", joined(*keys, between=" "), class_="legend")
