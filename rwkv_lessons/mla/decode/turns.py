"""The first kernel of forward.py for DeepSeek's sizes: two warpgroups that take tiles in turn.

hopper.py's warps take turns at everything, and the tensor cores wait while weights are computed.
Here a program has 9 warps:

    4   group 0: scores and weights of tiles 0, 2, 4 …; columns 0 … 255 of the sum of every tile
    4   group 1: scores and weights of tiles 1, 3, 5 …; columns 256 … 511
    1   loads tiles of tokens (TMA), each in two pieces of 256 columns

A group multiplies its own weights as they lie in registers; the other group finds them in shared
memory. There is room for the queries and two tiles. While a tile is weighed, EARLY pieces of the
next are scored; the other follows when the tile is added up, so that the tensor cores go on. Both
pieces early would keep two tiles in shared memory for longer, and no third could be loaded. A piece
is loaded again as soon as it was added up.

All sums of a row are relative to one score, which the groups hand on from tile to tile. It is
raised when a score is larger by more than MARGIN: seldom, and only then sums are rescaled.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.bounded import remembered
from ...runtime.compile_triton import assembled
from ...runtime.launch_tiles import launch_tiles, replace_base
from .parts import barrier, store_part, unit_of
from .programs import tokens_of_split

ROWS = gl.constexpr(64)  # heads, times query tokens
TOKENS = gl.constexpr(64)  # of a tile
RANK_AND_ROPE = (512, 64)
R = gl.constexpr(512)
P = gl.constexpr(64)
PIECES = gl.constexpr(2)  # of the columns of a tile: each group has the sums of one of them
PIECE = gl.constexpr(256)
MIN_SCORE = gl.constexpr(-1e30)
EARLY = gl.constexpr(1)  # pieces that are scored before the tile before is added up
AHEAD = gl.constexpr(2)  # tiles, from the one that is loaded to the one brought to the L2 cache
MANY = gl.constexpr(8)  # tiles of a program, from which on that pays
REGISTERS = gl.constexpr(240)  # of a group, 128 for its sums
LOAD_REGISTERS = gl.constexpr(24)
MARGIN = gl.constexpr(8.0)  # weights are at most 2**8: as long as that holds, no sum is rescaled
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
OF_THREADS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 4]
    )
)  # of sums: a row as SCORES has it, in four threads
PART = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))  # 16 bytes in a thread
FOUR = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))  # in each thread


NUMBERS = ["scale", "c_b", "k_b", "elements_b", "table_b", "pages", "rows", "M", "N", "S"]


class TurnSizes(NamedTuple):
    """The constants of a launch."""

    H: int
    PAGE: int  # tokens of a page; 0: no pages
    IN_ROWS: bool  # whether a query token's heads are rows of q's description, or all tokens' are
    c_n: int  # the stride of a token of the latent
    c_bytes: int  # of a token: its latent, and its keys with rope if they are behind that


@gluon.constexpr_function
def piece_of(x, group):
    """The piece of a tile of this group that is scored at place x: in turn each group's."""
    return (x + group) % 2


@gluon.jit
def rows_to_l2(x, n, stop, stride: gl.constexpr, BYTES: gl.constexpr):
    """Has rows n … n + 31 of the cache brought to the L2 cache, those before `stop`."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    row = gl.minimum(n + gl.arange(0, 32, LANES), stop - 1)
    gl.inline_asm_elementwise(
        f"cp.async.bulk.prefetch.L2.global [$1], {BYTES}; mov.b32 $0, 0;", "=r,l",
        [x + row.to(gl.int64) * stride], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def page_of(table, n, stop, pages, PAGE: gl.constexpr):
    """The page of token n, one that is there: nothing outside is read."""
    page = gl.load(table + n // PAGE, n < stop, 0)
    return gl.where((page >= 0) & (page < pages), page, 0).to(gl.int32)


@gluon.jit
def tile_to_l2(x, table, i_b, n, stop, place, SIZES: gl.constexpr):
    """Has half of the tile of tokens n … brought to the L2 cache.

    Either of the two programs that have heads of a sequence brings one half.
    """
    c_b, k_b, elements_b, pages = place
    PAGE: gl.constexpr = SIZES.PAGE
    n += gl.program_id(0) % 2 * (TOKENS // 2)
    if n < stop:
        if PAGE:  # where token 0 would be, if all were on this page
            in_page = page_of(table, n, stop, pages, PAGE).to(gl.int64)
            x += in_page * elements_b - (n - n % PAGE).to(gl.int64) * SIZES.c_n
        else:
            x += i_b.to(gl.int64) * elements_b
        rows_to_l2(x, n, stop, SIZES.c_n, SIZES.c_bytes)


@gluon.jit
def load_tiles(
    q, q_rope, latent, k_rope, rows_of_latent, table, tiles, barriers, i_b, start, stop, count,
    query, place, SIZES: gl.constexpr,
):  # fmt: skip
    """The warp that loads: queries once, then one piece of a tile of tokens after the other."""
    s_q, s_qr, s_c, s_k, s_p = tiles
    q_full, full, empty = barriers
    q_row, q_column, r_row, r_column = query
    c_b, k_b, elements_b, pages = place
    PAGE: gl.constexpr = SIZES.PAGE
    BYTES: gl.constexpr = 2 * TOKENS * PIECE
    mbarrier.expect(q_full, 2 * ROWS * (R + P))
    for i in gl.static_range(PIECES):
        tma.async_copy_global_to_shared(q, [q_row, q_column + i * PIECE], q_full, s_q.index(i))
    tma.async_copy_global_to_shared(q_rope, [r_row, r_column], q_full, s_qr.index(0))
    page = i_b
    if PAGE:
        page = page_of(table, start, stop, pages, PAGE)
    for j in range(count):
        g = j % 2
        n0 = start + j * TOKENS
        first = n0
        if PAGE:
            first = n0 % PAGE
        c_row, k_row = page * c_b + first, page * k_b + first
        if PAGE:
            page = page_of(table, n0 + TOKENS, stop, pages, PAGE)  # one tile ahead
        for x in gl.static_range(PIECES):
            p = (x + g) % 2
            loaded = full[x].index(g)
            mbarrier.wait(empty.index(PIECES * g + p), (j // 2 + 1) % 2)
            mbarrier.expect(loaded, BYTES + (2 * TOKENS * P if x == PIECES - 1 else 0))
            to = s_c.index(PIECES * g + p)
            tma.async_copy_global_to_shared(latent, [c_row, p * PIECE], loaded, to)
            if x == PIECES - 1:
                tma.async_copy_global_to_shared(k_rope, [k_row, 0], loaded, s_k.index(g))
        if count > MANY and j > 0:  # not before both tiles that there is room for
            tile_to_l2(rows_of_latent, table, i_b, n0 + AHEAD * TOKENS, stop, place, SIZES)
        if count > MANY and j == 1:
            tile_to_l2(rows_of_latent, table, i_b, n0 + (AHEAD - 1) * TOKENS, stop, place, SIZES)


@gluon.jit
def score(b_s, tiles, full, j, zero, FIRST: gl.constexpr, END: gl.constexpr, GROUP: gl.constexpr):
    """Starts the products of the queries and so many pieces of this group's tile j.

    zero: 0, but the compiler does not know, and computes no addresses in front of a loop: there are
    no registers for them.
    """
    s_q, s_qr, s_c, s_k, s_p = tiles
    for x in gl.static_range(FIRST, END):
        p = piece_of(x, GROUP)
        mbarrier.wait(full[x].index(GROUP), j // 2 % 2)
        s_piece = s_c.index(PIECES * GROUP + p + zero).permute((1, 0))
        b_s = warpgroup_mma(s_q.index(p + zero), s_piece, b_s, use_acc=x > 0, is_async=True)
        if x == PIECES - 1:
            s_rope = s_k.index(GROUP + zero).permute((1, 0))
            b_s = warpgroup_mma(s_qr.index(zero), s_rope, b_s, is_async=True)
    return b_s


@gluon.jit
def weigh(b_s, scale, state, top, n0, last, all_see, GROUP: gl.constexpr):
    """Weights of a tile, relative to a score for each row, `top` or one that has grown; and that.

    What both groups need to know of it is left in shared memory.
    """
    s_f, s_t, s_grew, s_sum = state
    if n0 + TOKENS > all_see:
        n = n0 + gl.arange(0, TOKENS, gl.SliceLayout(0, SCORES))
        b_s = gl.where(n[None, :] <= last[:, None], b_s, float("-inf"))
    most = gl.max(gl.max(b_s.reshape([ROWS, 8, 8]), 1), 1)  # in shorter chains than all at once
    new = gl.convert_layout(most, gl.SliceLayout(1, SCORES)) * scale
    new = gl.where(new > top + MARGIN, new, top)
    s_grew.index(GROUP).store(gl.max((new > top).to(gl.int32).reshape([4, 16]), 1))
    s_f.index(GROUP).store(gl.exp2(top - new))
    s_t.index(GROUP).store(new)
    return gl.exp2(b_s * scale - new[:, None]), new


@gluon.jit
def clear_end(s_c, n0, stop, GROUP: gl.constexpr):
    """Zeros instead of tokens from `stop` on: NaN in an empty slot, times 0, would be NaN."""
    if n0 + TOKENS > stop:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        barrier()  # all warps' products with the keys are over
        o_n = n0 + gl.arange(0, TOKENS, gl.SliceLayout(1, LAYOUT))
        for p in range(PIECES):
            for column in gl.static_range(0, PIECE, 64):  # registers are few
                s_part = s_c.index(PIECES * GROUP + p).slice(column, 64, dim=1)
                b_c = s_part.load(LAYOUT)
                s_part.store(gl.where((o_n < stop)[:, None], b_c, 0.0).to(b_c.dtype))
        fence_async_shared()


@gluon.jit
def add(b_x, weights, s_c, state, STAGE: gl.constexpr, GROUP: gl.constexpr):
    """Starts adding up this group's piece of the tile in this stage."""
    s_f, s_t, s_grew, s_sum = state
    if gl.max(s_grew.index(STAGE).load(FOUR), 0) > 0:
        factor = s_f.index(STAGE).load(gl.SliceLayout(1, PART))[:, None]
        b_x = b_x * factor
    return warpgroup_mma(weights, s_c.index(PIECES * STAGE + GROUP), b_x, is_async=True)


@gluon.jit
def release(b_x, empty, BEHIND: gl.constexpr, STAGE: gl.constexpr, GROUP: gl.constexpr):
    """The piece of `add` may be loaded again as soon as all warps have added it up.

    BEHIND: products that were started since.
    """
    b_x = warpgroup_mma_wait(BEHIND, deps=(b_x,))
    barrier()
    mbarrier.arrive(empty.index(PIECES * STAGE + GROUP))
    return b_x


@gluon.jit
def in_threads(b_p):
    """The sums over what each thread has of a row, [ROWS, 4]."""
    pairs = gl.sum(gl.sum(b_p.reshape([ROWS, 8, 4, 2]), 1), 2)
    return gl.convert_layout(pairs, OF_THREADS)


@gluon.jit
def weigh_and_add(
    b_x, b_s, b_sum, b_top, top, tiles, state, barriers, n0, ends, last, scale,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Weights of this group's own tile, and its part of the sum.

    That starts before the other group gets the weights, whose part then ends no later. Returns
    this group's columns of the sum, the sum of its weights in each thread (`in_threads`) and the
    score that both are relative to, `top` or more; they were relative to b_top.
    """
    s_q, s_qr, s_c, s_k, s_p = tiles
    q_full, full, empty, ready = barriers
    b_p, new = weigh(b_s, scale, state, top, n0, last, ends[1], GROUP)
    b_w = b_p.to(s_p.dtype)
    b_own = gl.convert_layout(b_w, gl.DotOperandLayout(0, PART, 2))
    clear_end(s_c, n0, ends[0], GROUP)
    barrier()  # all warps' products with the keys are over, and what `weigh` left is there
    b_x = add(b_x, b_own, s_c, state, GROUP, GROUP)
    s_p.store(b_w)  # the weights that were there are this group's to read, and it has
    fence_async_shared()
    barrier()
    mbarrier.arrive(ready.index(GROUP))
    b_sum = b_sum * gl.convert_layout(gl.exp2(b_top - new), gl.SliceLayout(1, OF_THREADS))[
        :, None
    ] + in_threads(b_p)
    b_x = release(b_x, empty, 0, GROUP, GROUP)
    warpgroup_mma_wait(0, deps=(b_own,))
    return b_x, b_sum, new


@gluon.jit
def attend_tiles(
    parts, units, lse, tiles, state, barriers, place, tokens, scale, H: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """One of the two groups: scores of every other tile, and half of the columns of the sum."""
    s_q, s_qr, s_c, s_k, s_p = tiles
    s_f, s_t, s_grew, s_sum = state
    q_full, full, empty, ready = barriers
    first_row, rows, first, per_head, S = place
    start, stop, before_first, count = tokens
    ends = (stop, gl.minimum(before_first + 1, stop))  # all rows see the tokens before the second
    OTHER: gl.constexpr = 1 - GROUP
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    o_row = first_row + gl.arange(0, ROWS, ROW)
    last = gl.minimum(before_first + o_row // H, stop - 1)  # the last token that a row sees here
    zeros = gl.full([ROWS, TOKENS], 0.0, gl.float32, SCORES)
    b_sum = gl.full([ROWS, 4], 0.0, gl.float32, OF_THREADS)
    b_top = gl.full([ROWS], MIN_SCORE, gl.float32, ROW)
    b_x = gl.full([ROWS, PIECE], 0.0, gl.float32, PART)
    mbarrier.wait(q_full, 0)
    if GROUP == 0:  # the first tile has none before it
        b_s = score(zeros, tiles, full, 0, count >> 26, 0, PIECES, GROUP)
        b_s = warpgroup_mma_wait(0, deps=(b_s,))
        b_x, b_sum, b_top = weigh_and_add(
            b_x, b_s, b_sum, b_top, b_top, tiles, state, barriers, start, ends, last, scale,
            GROUP,
        )  # fmt: skip
    for j in range(2 - GROUP, count, 2):
        b_s = score(zeros, tiles, full, j, j >> 26, 0, EARLY, GROUP)
        mbarrier.wait(ready.index(OTHER), (j - 1) // 2 % 2)
        top = s_t.index(OTHER).load(ROW)
        b_x = add(b_x, s_p, s_c, state, OTHER, GROUP)
        b_s = score(b_s, tiles, full, j, j >> 26, EARLY, PIECES, GROUP)
        b_x = release(b_x, empty, PIECES - EARLY + 1, OTHER, GROUP)
        b_s = warpgroup_mma_wait(0, deps=(b_s,))
        b_x, b_sum, b_top = weigh_and_add(
            b_x, b_s, b_sum, b_top, top, tiles, state, barriers, start + j * TOKENS, ends,
            last, scale, GROUP,
        )  # fmt: skip
    top = b_top
    if (count - 1) % 2 == OTHER:
        mbarrier.wait(ready.index(OTHER), (count - 1) // 2 % 2)
        top = s_t.index(OTHER).load(ROW)
        b_x = add(b_x, s_p, s_c, state, OTHER, GROUP)
        b_x = release(b_x, empty, 0, OTHER, GROUP)

    b_sum = gl.convert_layout(gl.sum(b_sum, 1), ROW) * gl.exp2(b_top - top)
    s_sum.index(GROUP).store(b_sum)
    most = gl.max(gl.abs(b_x), 1)
    s_sum.index(2 + GROUP).store(most)
    barrier()
    mbarrier.arrive(ready.index(2 + GROUP))
    mbarrier.wait(ready.index(2 + OTHER), 0)  # and nobody reads queries any more
    b_sum += s_sum.index(OTHER).load(ROW)
    most = gl.maximum(most, s_sum.index(2 + OTHER).load(gl.SliceLayout(1, PART)))
    at = (o_row % H).to(gl.int64) * per_head + o_row // H * S + first
    if GROUP == 0:
        gl.store(lse + at, top + gl.log2(b_sum), o_row < rows)
    share = gl.convert_layout(1.0 / gl.where(b_sum > 0, b_sum, 1.0), gl.SliceLayout(1, PART))
    unit, inverse = unit_of(most * share)
    if GROUP == 0:
        gl.store(units + at, gl.convert_layout(unit, ROW), o_row < rows)
    s_half = s_q.index(GROUP)._reinterpret(gl.float16, [ROWS, PIECE], TILE)
    s_half.store((b_x * (share * inverse)[:, None]).to(gl.float16))
    barrier()
    o_row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, STORED))
    at = (o_row % H).to(gl.int64) * per_head + o_row // H * S + first
    store_part(parts, s_half, at * R + GROUP * PIECE, o_row < rows, STORED)


@assembled
@gluon.jit(do_not_specialize=NUMBERS)
def decode_turns_kernel(
    q, q_rope, latent, k_rope, rows_of_latent, lengths, left_padding, table, parts, units, lse,
    scale, c_b, k_b, elements_b, table_b, pages, rows, M, N, S, SIZES: gl.constexpr,
):  # fmt: skip
    """Results as of `decode_hopper_kernel`; the first four arguments are descriptions of tiles.

    rows_of_latent: latent itself. c_b, k_b: rows of the cache's description from a sequence, or
    page, to the next; elements_b: elements of latent. rows: query tokens of all sequences.
    """
    gdc_launch_dependents()
    H: gl.constexpr = SIZES.H
    DTYPE: gl.constexpr = rows_of_latent.dtype.element_ty
    s_q = gl.allocate_shared_memory(DTYPE, [PIECES, ROWS, PIECE], TILE)
    s_qr = gl.allocate_shared_memory(DTYPE, [1, ROWS, P], TILE)
    s_c = gl.allocate_shared_memory(DTYPE, [2 * PIECES, TOKENS, PIECE], TILE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, TOKENS, P], TILE)
    s_p = gl.allocate_shared_memory(DTYPE, [ROWS, TOKENS], TILE)
    s_f = gl.allocate_shared_memory(gl.float32, [2, ROWS], FLAT)
    s_t = gl.allocate_shared_memory(gl.float32, [2, ROWS], FLAT)
    s_grew = gl.allocate_shared_memory(gl.int32, [2, 4], FLAT)
    s_sum = gl.allocate_shared_memory(gl.float32, [4, ROWS], FLAT)
    # Of either piece its own array: between two waits at one array Triton has all warps meet.
    full_0 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full_1 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = (full_0, full_1)
    empty = gl.allocate_shared_memory(gl.int64, [2 * PIECES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * PIECES):
        mbarrier.init(full[i // 2].index(i % 2), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(4):
        mbarrier.init(ready.index(i), count=1)
    mbarrier.init(q_full, count=1)
    fence_async_shared()

    i_tile = gl.program_id(0)
    tiles_of_rows = gl.cdiv(M * H, ROWS)
    i_row, i_s = i_tile % tiles_of_rows, i_tile // tiles_of_rows % S
    i_b = (i_tile // tiles_of_rows // S).to(gl.int64)
    start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, TOKENS)
    count = gl.maximum(gl.cdiv(stop - start, TOKENS), 1)
    token, head = i_b.to(gl.int32) * M + i_row * ROWS // H, i_row * ROWS % H
    if SIZES.IN_ROWS:
        row = i_b.to(gl.int32) * M * H + i_row * ROWS
        query = (row, 0, row, 0)
    else:
        query = (head, token * R, token * H + head, 0)
    if SIZES.PAGE:
        table += i_b * table_b
    tiles = (s_q, s_qr, s_c, s_k, s_p)
    barriers = (q_full, full, empty, ready)
    place = (i_row * ROWS, M * H, i_b * M * S + i_s, rows * S, S)
    state = (s_f, s_t, s_grew, s_sum)
    gl.warp_specialize(
        [
            (attend_tiles, (
                parts, units, lse, tiles, state, barriers, place, (start, stop, end - M, count),
                scale, H, 0,
            )),
            (attend_tiles, (
                parts, units, lse, tiles, state, barriers, place, (start, stop, end - M, count),
                scale, H, 1,
            )),
            (load_tiles, (
                q, q_rope, latent, k_rope, rows_of_latent, table, tiles,
                (q_full, full, empty), i_b.to(gl.int32), start, stop, count, query,
                (c_b, k_b, elements_b, pages), SIZES,
            )),
        ],
        [4, 1],
        [REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip


@remembered
def described(*key):
    """A description without a tensor: rows, their stride, columns, those of a tile, dtype."""
    rows, stride, columns, block, dtype = key
    nowhere = torch.empty(0, dtype=dtype, device="meta")
    model = TensorDescriptor(nowhere, [rows, columns], [stride, 1], [64, block], TILE.value)
    model = replace_base(model, None)
    model.__dict__.update(key=key, kind=("mla", block, dtype))
    return model


def tiles_of(x, rows, stride, columns, block):
    """Describes x as rows, and so many columns, of which tiles of 64 rows are moved."""
    return replace_base(described(rows, stride, columns, block, x.dtype), x)


def queries(x, block):
    """Describes q or q_rope [B, M, H, …]; and whether each head of each token is a row."""
    B, M, H, width = x.shape
    b, m, h, _ = x.stride()
    tokens = B * M * width
    in_columns = (M == 1 or m == width) and b == M * width and h >= tokens  # as `absorb` leaves q
    if in_columns and (M == 1 or H % ROWS.value == 0):
        return tiles_of(x, H, h, tokens, block), False
    if (m != H * h and B * M > 1) or (b != M * m and B > 1):
        x = x.contiguous()
        h = width
    return tiles_of(x, B * M * H, h, width, block), True


def rows_between(x):
    """Rows of a cache [sequences or pages, tokens, …] from one to the next; None if not a whole."""
    b, n, _ = x.stride()
    return b // n if n and b % n == 0 else None


def cache(x, block):
    """Describes latent or k_rope as rows, of all sequences or pages."""
    rows = (len(x) - 1) * rows_between(x) + x.shape[1]
    return tiles_of(x, rows, x.stride(1), x.shape[2], block)


def takes(q, q_rope, latent, k_rope, page_size, left_padding):
    """Whether the kernel computes these: DeepSeek's sizes, and tiles that are rows of the cache.

    Tiles begin at the first token, so that left padding would shift them over the ends of pages.
    """
    if (q.shape[3], q_rope.shape[3]) != RANK_AND_ROPE:
        return False
    if page_size and (page_size % TOKENS.value or left_padding is not None):
        return False
    rows = [rows_between(x) for x in (latent, k_rope)]
    return all(n is not None and len(latent) * n < 2**31 for n in rows)


def attend(
    q, q_rope, latent, k_rope, lengths, left_padding, block_table, parts, units, lse, scale, N,
    page_size, programs,
):  # fmt: skip
    """Launches the first kernel, for what it `takes`: parts, their units and lse.

    Args:
        N: tokens of the longest sequence. programs: of all splits.
    """
    (B, M, H, _), splits = q.shape, parts.shape[2]
    if scale <= 0:  # the largest score has to have the largest weight
        sign = -1 if scale else 0
        q, q_rope, scale = sign * q, sign * q_rope, abs(scale) or 1.0
    (d_q, in_rows), (d_qr, rope_in_rows) = queries(q, PIECE.value), queries(q_rope, P.value)
    if not rope_in_rows:
        d_qr, _ = queries(q_rope.contiguous(), P.value)
    tiles = d_q, d_qr, cache(latent, PIECE.value), cache(k_rope, P.value)
    tensors = (*tiles, latent, lengths, left_padding, block_table, parts, units, lse)
    table_b = 0 if block_table is None else block_table.stride(0)
    strides = rows_between(latent), rows_between(k_rope), latent.stride(0), table_b
    numbers = (scale, *strides, len(latent), B * M, M, N, splits)
    beside = latent.stride() == k_rope.stride() and k_rope.data_ptr() - latent.data_ptr() == 1024
    token = latent.stride(1), 2 * (R.value + beside * P.value)
    sizes = TurnSizes(H, page_size, in_rows, *token)
    launch_tiles(decode_turns_kernel, (programs, 1, 1), 4, tensors, numbers, (sizes,))
