"""Blocked layouts of Triton: which lane of which warp holds which elements of a tile.

A blocked layout gives every lane a small box of neighbours, lays the lanes of a warp side by side,
then the warps; each time along the first axis of `order` first. What the tile has beyond that is
dealt out the same way once more, into further registers.
"""

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from ..cuda.memory_model import sectors

FLOAT32 = 4  # bytes
WIDTHS = 4, 2, 1  # float32 numbers in one load of a lane: 16, 8 or 4 bytes
LOAD = re.compile(r"tt\.load .*: tensor<([\dx]+)x!tt\.ptr<f32>, #(\w+)>")


@dataclass(frozen=True)
class Blocked:
    """A blocked layout of tiles with two axes, by the names that Triton's TTGIR has for it.

    Attributes:
        size_per_thread, threads_per_warp, warps_per_cta: (rows, columns).
        order: the axes, the one first along which neighbours are dealt out: (1, 0) along a row.
    """

    size_per_thread: tuple
    threads_per_warp: tuple
    warps_per_cta: tuple
    order: tuple

    def elements(self, shape):
        """The row and column in every register, [warps, lanes, registers, 2].

        Raises:
            ValueError: the tile is no multiple of what the warps hold with a box each.
        """
        parts = self.size_per_thread, self.threads_per_warp, self.warps_per_cta
        covered = [prod(sizes) for sizes in zip(*parts, strict=True)]
        if any(size % box for size, box in zip(shape, covered, strict=True)):
            raise ValueError(f"shape is {shape}, needs multiples of {tuple(covered)}")
        again = [size // box for size, box in zip(shape, covered, strict=True)]
        box, lane, warp, turn = (self._places(sizes) for sizes in (*parts, again))
        # A coordinate is ((turn · warps + warp) · lanes + lane) · box + place in the box.
        box_size, lanes, _ = (np.array(sizes) for sizes in parts)
        turn, warp, lane = turn * covered, warp * lanes * box_size, lane * box_size
        register = (turn[:, None] + box).reshape(-1, 2)
        return warp[:, None, None] + lane[:, None] + register

    def loads(self, shape, stride):
        """The loads of a float32 tile whose rows begin `stride` numbers apart.

        Returns:
            How many numbers a lane takes in one load, and how many sectors of 32 bytes each load
            of a warp touches, [warps, loads].
        """
        row, column = np.moveaxis(self.elements(shape), -1, 0)
        address = row * stride + column  # [warps, lanes, registers]
        lanes, registers = address.shape[1:]
        width = next(n for n in WIDTHS if registers % n == 0 and _side_by_side(address, n))
        first = FLOAT32 * address[..., ::width].swapaxes(1, 2)  # bytes, [warps, loads, lanes]
        request = np.arange(first.size) // lanes
        return width, sectors(request, first.ravel()).reshape(first.shape[:2])

    def _places(self, sizes):
        """All (row, column) of a box, in the layout's order."""
        fast, slow = self.order
        places = np.zeros((prod(sizes), 2), int)
        places[:, slow], places[:, fast] = np.divmod(np.arange(prod(sizes)), sizes[fast])
        return places


def layout_of_load(assembly):
    """The shape of the first tile of float32 that a compiled Triton kernel loads, and its layout.

    Args:
        assembly: what `assembly` returned.

    Returns:
        (rows, columns) and a `Blocked`.

    Raises:
        LookupError: it loads none of two axes in a blocked layout.
    """
    for shape, name in LOAD.findall(assembly.ttgir or ""):
        shape = tuple(map(int, shape.split("x")))
        written = re.search(rf"^#{name} = #ttg\.blocked<{{(.*)}}>", assembly.ttgir, re.MULTILINE)
        if len(shape) == 2 and written:
            fields = re.findall(r"(\w+) = \[([\d, ]+)\]", written[1])
            sizes = {key: tuple(map(int, numbers.split(","))) for key, numbers in fields}
            names = "sizePerThread", "threadsPerWarp", "warpsPerCTA", "order"
            return shape, Blocked(*(sizes[key] for key in names))
    raise LookupError(f"{assembly.name} loads no tile of float32 in a blocked layout")


def _side_by_side(address, n):
    """Whether every n registers in turn hold neighbours in memory, the first a multiple of n."""
    groups = address.reshape(*address.shape[:2], -1, n)
    return (groups == groups[..., :1] + np.arange(n)).all() and (groups[..., 0] % n == 0).all()
