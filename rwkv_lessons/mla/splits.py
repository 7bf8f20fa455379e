"""How a decode step is cut up: the tiles of its two kernels, and the splits of the cache.

Everything follows from shapes and the card, never from what a tensor holds, so that a captured
CUDA graph stays right when the lengths change.
"""

from functools import cache
from typing import NamedTuple

import torch

LARGEST_RANK = 512  # the sums of 64 rows then fill half of the registers of a multiprocessor
COLUMNS = 64  # of the latent that the second kernel multiplies by w_v at a time
STAGES_OF_START = 4  # a program's start and end take as long as this many tiles of tokens
FEWEST_TILES = 2  # of a split: fewer cost more to add up than they save


class Tile(NamedTuple):
    """Rows and tokens of a tile, warps, copies of it in flight, and programs a multiprocessor."""

    rows: int
    tokens: int
    warps: int
    stages: int
    programs: int


def decode_tile(rows, R, dtype):
    """The tile for so many rows a sequence (heads × queries) and a rank padded to a power of 2."""
    if dtype == torch.float32:  # three products of tf32 in the place of one
        return Tile(16, 16 if R > 256 else 32, 4, 2, 1)
    if rows <= 16:
        return Tile(16, 64, 8, 3, 1) if R > 256 else Tile(16, 64, 4, 3, 2)
    return Tile(64, 64, 8, 2, 1) if R > 256 else Tile(64, 64, 4, 2, 2)


def combine_tile(rows, H, splits):
    """Rows (sequences × queries) and splits of each that a program of the second kernel takes.

    Their product is that of a tile of the tensor cores, 64, or less to make programs enough.
    """
    together = min(64, 1 << (splits - 1).bit_length())
    most = 1 << (rows - 1).bit_length()
    few = max(1, 64 // together)
    while few > 1 and few * together > 16 and (few > most or H * -(-rows // few) < 128):
        few //= 2
    return few, max(together, 16 // few)


@cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def splits_for(programs, tiles, slots):
    """Into how many splits each sequence is cut, so that all is done soonest.

    Args:
        programs: without splits, one for each sequence and tile of rows.
        tiles: of tokens in the longest sequence.
        slots: programs that the card runs at a time.
    """
    most = max(1, min(-(-tiles // FEWEST_TILES), 2 * slots // programs))

    def time(splits):
        waves = -(-programs * splits // slots)
        return waves * (-(-tiles // splits) + STAGES_OF_START), splits

    return min(range(1, most + 1), key=time)
