"""How a decode step is cut up: the tiles of its two kernels, and the splits of the cache.

Everything follows from shapes and the GPU, never from what a tensor holds, so that a captured
CUDA graph stays right when the lengths change.
"""

from typing import NamedTuple

import torch

from ...runtime.bounded import remembered

MAX_SPLITS = 64  # as many as the second kernel's tile has rows
MIN_TILES_PER_SPLIT = 2  # of tokens: fewer cost more to add up than they save

# Measured on an H200, in the time that a program takes for a tile of tokens:
PROGRAM_OVERHEAD = 4  # its start and its end
PART_OVERHEAD = 0.02  # writing and reading one more part
TIME_OF_A_PAIR = 0.83  # of two programs at once on an SM, relative to one after the other


class Tile(NamedTuple):
    """Rows and tokens of a tile, warps, tiles of tokens in flight, programs that share an SM."""

    rows: int
    tokens: int
    warps: int
    stages: int
    side_by_side: int


def decode_tile(rows, R, P, dtype, gpu):
    """The tile for so many rows a sequence (heads × queries), this rank and size of rope."""
    if dtype == torch.float32:  # three products of TF32 instead of one
        return Tile(16, 32, 4, 2, 1)
    if not gpu.like_hopper:
        return Tile(16, 32, 4, 2, 1)
    if rows <= 16:  # a tile of the older tensor core instructions, which need not have 64 rows
        return Tile(16, 64, 8, 3, 1) if R > 256 else Tile(16, 64, 4, 3, 2)
    pair = 2 * 2 * (64 + 2 * 64) * (R + P) <= 227 * 1024 - 2048  # bytes of queries and tokens
    return Tile(64, 64, 8, 2, 1) if R > 256 else Tile(64, 64, 4, 2, 1 + pair)


def combine_tile(rows, H, R, splits):
    """Rows (sequences × queries) and splits of each that a program of the second kernel takes.

    Their product is that of a tile of the tensor cores, 64, or less to make programs enough.
    """
    splits_per_program = 1 << (splits - 1).bit_length()
    all_rows = 1 << (rows - 1).bit_length()
    few = max(
        1, (64 if R > 256 else 32) // splits_per_program
    )  # of w_v, more is worth reading less often
    while (
        few > 1 and few * splits_per_program > 16 and (few > all_rows or H * -(-rows // few) < 128)
    ):
        few //= 2
    return few, max(splits_per_program, 16 // few)


def combine_columns(rows, BV, dtype, gpu):
    """Columns of the latent that the second kernel multiplies by w_v at a time: 64, 128 if it can.

    Args:
        rows: of its tile. BV: columns of a value, as a tile has them.
    """
    three = 3 * 128 * (4 * rows + 2 * BV)  # in flight: parts in float32, w_v in halves
    fits = gpu.like_hopper and three <= 0.9 * gpu.shared_bytes
    return 128 if fits and dtype != torch.float32 else 64


@remembered
def splits_for(programs, tiles, sms, side_by_side):
    """Into how many splits each sequence is cut, so that all is done soonest.

    Args:
        programs: without splits, one for each sequence and tile of rows.
        tiles: of tokens in the longest sequence.
        sms: of the GPU.
        side_by_side: how many programs share an SM.
    """
    max_splits = max(1, min(tiles // MIN_TILES_PER_SPLIT, MAX_SPLITS))

    def time(splits):  # in the time of a tile
        programs_per_sm = -(-programs * splits // sms)
        rounds = -(-programs_per_sm // side_by_side)
        share = TIME_OF_A_PAIR if side_by_side > 1 and programs_per_sm > 1 else 1
        return (
            programs_per_sm * share * -(-tiles // splits)
            + rounds * PROGRAM_OVERHEAD
            + (programs * splits * PART_OVERHEAD)
        )

    return min(range(1, max_splits + 1), key=time)
