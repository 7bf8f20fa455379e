"""Where a program of the first decode kernels is, and what these are compiled for."""

from typing import NamedTuple

import triton
import triton.language as tl

from ..prefill.forward import bounds

# What a launch may change without another compilation.
NOT_SPECIALIZED = [
    "scale", "q_b", "q_m", "q_h", "r_b", "r_m", "r_h", "c_b", "k_b", "table_b", "pages", "M", "N",
    "S",
]  # fmt: skip


class DecodeSizes(NamedTuple):
    """The constants of a kernel; those with a default are of one kernel alone."""

    UNIT: int  # elements that the other strides are counted in: what they can be divided by
    H: int
    R: int
    P: int
    c_n: int  # strides of a token of the latent and of the keys with rope
    k_n: int
    PAGE: int  # tokens of a page; 0: no pages
    BM: int
    BN: int
    PDL: bool  # whether the second kernel is launched meanwhile
    BR: int = 0
    BP: int = 0
    STAGES: int = 0
    PRECISION: str | None = None


@triton.jit
def strides_of_query(in_batch, of_token, of_head, UNIT: tl.constexpr):
    """The strides of a query in elements, that of a sequence as int64."""
    return in_batch.to(tl.int64) * UNIT, of_token * UNIT, of_head * UNIT


@triton.jit
def strides_of_cache(latent, k_rope, UNIT: tl.constexpr):
    """The strides of a sequence, or page, of both parts of the cache in elements; int64."""
    return latent.to(tl.int64) * UNIT, k_rope.to(tl.int64) * UNIT


@triton.jit
def program_place(M, S, H: tl.constexpr, BM: tl.constexpr):
    """Tile of rows, split and sequence, and how many tokens all sequences ask with."""
    tiles = tl.cdiv(M * H, BM)
    i_row, i_s = tl.program_id(0) % tiles, tl.program_id(0) // tiles % S
    i_b = (tl.program_id(0) // tiles // S).to(tl.int64)
    return i_row, i_s, i_b, tl.num_programs(0) // tiles // S * M


@triton.jit
def tokens_of_split(lengths, left_padding, i_b, i_s, N, S, BN: tl.constexpr):
    """The first token of a split, the one after its last, and the end of the sequence."""
    start, end = bounds(lengths, left_padding, i_b, N)
    share = tl.cdiv(tl.cdiv(tl.maximum(end - start, 0), S), BN) * BN
    start += i_s * share
    return start, tl.minimum(start + share, end), end
