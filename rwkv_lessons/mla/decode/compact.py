"""Decode steps with an FP8 cache, with lists of the tokens that queries see, or with both.

A list makes each query a sequence of its own, whose N tokens are the entries of the list. Tokens
are looked up one tile ahead: the entry, its page, and the row of the cache. Parts and the second
kernel are those of forward.py. FP8 caches have their kernel in fp8.py, for DeepSeek's sizes on
Hopper; others are computed in torch.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from . import fp8
from .programs import program_place, tokens_of_split
from .splits import Tile, splits_for

MIN_SCORE = tl.constexpr(-1e30)
ROWS = 16  # of queries in a tile: heads, times query tokens
DTYPES = (torch.float16, torch.bfloat16)
LARGEST_RANK = 512
NUMBERS = [
    "scale", "first_b", "tokens_b", "table_b", "pages", "room", "M", "lists", "N", "S",
]  # fmt: skip


class ListedSizes(NamedTuple):
    """The constants of a launch."""

    H: int
    R: int
    P: int
    c_n: int  # strides of a token of the latent and of its keys with rope
    k_n: int
    PAGE: int  # tokens of a page; 0: no pages
    PAGE_ROWS: int  # rows of the cache from a page to the next
    BM: int
    BN: int
    BR: int
    BP: int
    STAGES: int
    PDL: bool


@triton.jit
def row_of(n, stop, end, tokens, table, first, pages, PAGE: tl.constexpr, PAGE_ROWS: tl.constexpr):
    """The rows of the cache with entries n of a list; -1 for those that do not count."""
    token = tl.load(tokens + n, n < stop, -1)
    counts = (token >= 0) & (token < end)
    if PAGE:
        page = tl.load(table + token // PAGE, counts, 0)
        page = tl.where((page >= 0) & (page < pages), page, 0)  # nothing outside is read
        row = page * PAGE_ROWS + token % PAGE
    else:
        row = first + token
    return tl.where(counts, row, -1).to(tl.int32)


@assembled
@triton.jit(do_not_specialize=NUMBERS)
def decode_listed_kernel(
    q, q_rope, latent, k_rope, lengths, table, tokens, parts, lse, scale, first_b, tokens_b,
    table_b, pages, room, M, lists, N, S, SIZES: tl.constexpr,
):  # fmt: skip
    """Parts and log-sum-exps as those of `decode_kernel`, of the tokens in lists.

    Args:
        q, q_rope: `[…, H, R]` and `[…, H, P]`, in one piece.
        first_b: from a sequence to the next, in rows of the cache. tokens_b: from a list to the
            next. lists: of a sequence.
        room: the tokens that a sequence can have. M: 1. N: the entries of a list.
    """
    H: tl.constexpr = SIZES.H
    P: tl.constexpr = SIZES.P
    R: tl.constexpr = SIZES.R
    PAGE: tl.constexpr = SIZES.PAGE
    PAGE_ROWS: tl.constexpr = SIZES.PAGE_ROWS
    BM: tl.constexpr = SIZES.BM
    BN: tl.constexpr = SIZES.BN
    BR: tl.constexpr = SIZES.BR
    BP: tl.constexpr = SIZES.BP
    if SIZES.PDL:
        gdc_launch_dependents()
    i_row, i_s, i_q, rows = program_place(M, S, H, BM)
    i_b = i_q // lists
    tokens += i_q * tokens_b
    start, stop, _ = tokens_of_split(None, None, i_q, i_s, N, S, BN)
    _, _, end = tokens_of_split(lengths, None, i_b, 0, room, 1, BN)
    if PAGE:
        table += i_b * table_b
    first = i_b * first_b

    o_row = i_row * BM + tl.arange(0, BM)
    o_n, o_r, o_p = tl.arange(0, BN), tl.arange(0, BR), tl.arange(0, BP)
    m_row, m_r, m_p = (o_row < M * H)[:, None], (o_r < R)[None, :], (o_p < P)[None, :]
    at = i_q * M * H + o_row
    b_qr = tl.load(q_rope + at[:, None] * P + o_p[None, :], m_row & m_p, 0.0)
    b_q = tl.load(q + at[:, None] * R + o_r[None, :], m_row & m_r, 0.0)
    b_part = tl.zeros([BM, BR], tl.float32)
    b_top = tl.full([BM], MIN_SCORE, tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    row = row_of(start + o_n, stop, end, tokens, table, first, pages, PAGE, PAGE_ROWS)
    for n0 in tl.range(start, stop, BN, num_stages=SIZES.STAGES):
        n = n0 + o_n
        # Tokens that do not count are zeros: a NaN times a weight of 0 would be NaN.
        m_n, at_n = row >= 0, row.to(tl.int64)
        row = row_of(n + BN, stop, end, tokens, table, first, pages, PAGE, PAGE_ROWS)
        b_k = tl.load(k_rope + at_n[:, None] * SIZES.k_n + o_p[None, :], m_n[:, None] & m_p, 0.0)
        b_s = tl.dot(b_qr, tl.trans(b_k))
        b_c = tl.load(latent + at_n[:, None] * SIZES.c_n + o_r[None, :], m_n[:, None] & m_r, 0.0)
        b_s = tl.dot(b_q, tl.trans(b_c), b_s)
        b_s = tl.where(m_n[None, :], b_s * scale, float("-inf"))  # [BM, BN]
        top = tl.maximum(b_top, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - top[:, None])
        rescale = tl.exp2(b_top - top)
        b_sum = b_sum * rescale + tl.sum(b_p, 1)
        b_part = tl.dot(b_p.to(b_c.dtype), b_c, b_part * rescale[:, None])
        b_top = top

    at = ((o_row % H).to(tl.int64) * rows + i_q * M + o_row // H) * S + i_s
    b_part = b_part / tl.where(b_sum > 0, b_sum, 1)[:, None]
    tl.store(parts + at[:, None] * R + o_r[None, :], b_part, m_row & m_r)
    tl.store(lse + at, b_top + tl.log2(b_sum), o_row < M * H)


def tile_for(R, gpu):
    """The tile of the kernel above."""
    if not gpu.like_hopper:
        return Tile(ROWS, 32, 4, 2, 1)
    return Tile(ROWS, 64, 8, 3, 1) if R > 256 else Tile(ROWS, 64, 4, 3, 2)


def takes(q, latent, scales, k_rope, paged, gpu):
    """Whether there is a kernel for such tensors. q may not be absorbed yet."""
    apart = rows_apart(latent, scales, k_rope)
    if apart is None or q.dtype not in DTYPES:
        return False
    if scales is None:
        return latent.shape[-1] <= LARGEST_RANK
    whole = not paged or apart == latent.shape[1]
    return gpu.capability == (9, 0) and whole and in_words(q, latent, k_rope, scales) is not None


def rows_apart(*tensors):
    """Rows from a sequence, or page, to the next: one number for all parts of a cache, or None."""
    tensors = [x for x in tensors if x is not None]
    if any(x.stride(2) != 1 or x.stride(1) <= 0 or x.stride(0) % x.stride(1) for x in tensors):
        return None
    apart = {x.stride(0) // x.stride(1) for x in tensors if len(x) > 1} or {tensors[0].shape[1]}
    last = max(apart) * (len(tensors[0]) - 1) + tensors[0].shape[1]
    return apart.pop() if len(apart) == 1 and last < 2**31 else None


def in_words(q, latent, k_rope, scales):
    """latent and k_rope as int32 where the kernel of fp8.py can read them, else None."""
    if scales.shape[-1] not in (1, fp8.GROUPS.value) or q.dtype != torch.bfloat16:
        return None
    if (latent.shape[-1], k_rope.shape[-1]) != (fp8.R, fp8.P):
        return None
    addresses = [x.data_ptr() for x in (latent, k_rope)]
    strides = [x.stride(n) * x.element_size() for x in (latent, k_rope) for n in (0, 1)]
    if math.gcd(*addresses, *strides) % 16:  # rows begin at 16 bytes
        return None
    return latent.view(torch.int32), k_rope.view(torch.int32)


def _aligned(x):
    """x, or a copy that begins at 16 bytes."""
    return x.clone() if x.data_ptr() % 16 else x


def attend(
    q, q_rope, latent, k_rope, scale, lengths, left_padding, block_table, scales, tokens, gpu
):
    """Parts `[H, B·M, splits, R]` and their log-sum-exps, in base 2, by the first kernel."""
    q, q_rope = (_aligned(x.contiguous()) for x in (q, q_rope))
    integers = lengths, left_padding, block_table, tokens
    lengths, left_padding, block_table, tokens = (
        x if x is None else x.contiguous() for x in integers
    )
    (B, M, H, R), P, N = q.shape, q_rope.shape[-1], latent.shape[1]
    apart, page_size, pages = rows_apart(latent, scales, k_rope), 0, len(latent)
    if block_table is not None:
        page_size, N = N, N * block_table.shape[1]
    queries, lists, room, entries = M, 1, N, 0  # of a sequence
    if tokens is not None:
        queries, lists, N = 1, M, tokens.shape[-1]
        entries = N
    sequences = B * lists

    overlap = gpu.capability >= (9, 0)
    tile = tile_for(R, gpu)
    if scales is not None:
        tile = Tile(ROWS, fp8.TOKENS.value, fp8.WARPS, 1, fp8.SIDE_BY_SIDE)
    programs = sequences * -(-queries * H // tile.rows)
    splits = splits_for(programs, -(-N // tile.tokens), gpu.sms, tile.side_by_side)
    parts = torch.empty((H, B * M, splits, R), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((H, B * M, splits), dtype=torch.float32, device=q.device)
    numbers = (
        scale, 0 if page_size else apart, entries,
        block_table.shape[1] if page_size else 0, pages, room, queries, lists, N, splits,
    )  # fmt: skip
    integers = lengths, left_padding, block_table, tokens
    if scales is None:
        BR, BP = (max(16, triton.next_power_of_2(x)) for x in (R, P))
        strides = latent.stride(1), k_rope.stride(1), page_size, apart
        sizes = ListedSizes(H, R, P, *strides, *tile[:2], BR, BP, tile.stages, overlap)
        tensors = (q, q_rope, latent, k_rope, lengths, block_table, tokens, parts, part_lse)
        launch(decode_listed_kernel, programs * splits, tile.warps, tensors, numbers, (sizes,))
        return parts, part_lse
    latent, k_rope = in_words(q, latent, k_rope, scales)
    strides = latent.stride(1), scales.stride(1), k_rope.stride(1), int(scales.shape[-1] > 1)
    sizes = fp8.Fp8Sizes(H, *strides, page_size, tokens is not None, overlap)
    tensors = (q, q_rope, latent, scales, k_rope, *integers, parts, part_lse)
    launch(fp8.decode_fp8_kernel, programs * splits, tile.warps, tensors, numbers, (sizes,))
    return parts, part_lse
