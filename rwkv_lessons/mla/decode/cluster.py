"""The first kernel of forward.py for 128 heads, in clusters of two programs that share each tile.

roles.py's programs have 64 heads each, and the two programs of a sequence load the same tokens.
Here they are a cluster, which Gluon writes as one program of 128 rows: a tile of tokens is loaded
once, and arrives in the shared memory of both (TMA with multicast). The roles are those of
roles.py, 16 warps in each of the two programs:

    4 score    products with the queries of two tiles, one behind the other, then their weights
    8 add      weights times tokens, each warpgroup half of the columns of the sum
    4 load     a tile of tokens, as three copies, in the first of the two programs

Tiles come in pairs. The scores of a pair's second tile keep the tensor cores busy while the first
tile's weights are computed, and the sums of either tile do so while the other is loaded again.
Scores start when half of the columns of a tile are there.

A tile may be loaded again when both programs are done with it. In Triton 3.7 an mbarrier counts
arrivals of its own program only, and `cluster.arrive` counts the warps that call it, of all warps
of both programs. So every role of both programs calls it once for each tile that is released.

docs/designs_mla.md predicts this kernel's time. No GPU has run it, and nothing in the library calls
it: `python -m rwkv_lessons.bench mla-cluster` does.
"""

from typing import NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime import devices
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from .combine import ROWS as ROWS_OF_COMBINE
from .combine import WARPS as WARPS_OF_COMBINE
from .combine import combine_hopper_kernel, pieces_in_flight
from .forward import LOG2E
from .hopper import barrier
from .programs import tokens_of_split
from .splits import splits_for

cluster = getattr(hopper, "cluster", None)  # Triton 3.6 has none
RELEASE = "3.7"  # of Triton, whose clusters do what this kernel needs
ROWS = gl.constexpr(128)  # of a cluster: 64 in each of its programs
TOKENS = gl.constexpr(64)  # of a tile
HALF = gl.constexpr(256)  # columns of the latent that a copy brings
P = gl.constexpr(64)
STAGES = gl.constexpr(2)
MIN_SCORE = gl.constexpr(-1e30)


class ClusterSizes(NamedTuple):
    """The constants of a launch."""

    H: int
    PAGE: int  # tokens of a page; 0: no pages
    IN_ROWS: bool  # whether a query token's heads are rows of q's description, or all tokens' are
    PAIRS: bool = True  # the scores of two tiles behind each other, or each tile's for itself
    MULTICAST: bool = True  # a tile is loaded once for both programs, or by each for itself
    ADD_REGISTERS: int = 160  # 128 of them for the sums
    LOAD_REGISTERS: int = 32


@gluon.constexpr_function
def sums_layout(columns, warps):
    """Sums of a product of ROWS rows: half of the rows in each program."""
    return gl.NVMMADistributedLayout([3, 0], [4, warps // 4], [16, columns, 16], [[1, 0]])


@gluon.constexpr_function
def tile_layout(rows, columns, dtype, shared):
    """A tile in shared memory: the same in both programs, or half of its rows in each."""
    cga_layout = [[0, 0]] if shared else [[1, 0]]
    return gl.NVMMASharedLayout.get_default_for([rows, columns], dtype, cga_layout=cga_layout)


@gluon.constexpr_function
def tokens_over_warps(warps):
    """A tile of tokens in the registers of each of the two programs."""
    return gl.BlockedLayout([1, 8], [1, 32], [warps, 1], [1, 0], [[0, 0]])


@gluon.constexpr_function
def flat_layout():
    return gl.SwizzledSharedLayout(1, 1, 1, [0], [[1]])


@gluon.constexpr_function
def of_each_program():
    """A barrier in each of the two programs."""
    return mbarrier.MBarrierLayout([[1]])


@gluon.jit
def start_cluster():
    """This role's part of the first barrier of the cluster: all mbarriers are there after it."""
    mbarrier.fence_init_release_cluster()
    cluster.arrive(relaxed=True)


@gluon.jit
def next_release():
    """The tile before is released; this role is done with this one.

    No memory is ordered (`relaxed`), which costs a fence of the whole GPU: what is released has
    been read, by products that were waited for.
    """
    cluster.wait()
    cluster.arrive(relaxed=True)


@gluon.jit
def end_cluster():
    """Neither program ends before the other: it may still be signalled."""
    cluster.wait()
    cluster.arrive(relaxed=True)
    cluster.wait()


@gluon.jit
def copy(x, at, loaded, to, MULTICAST: gl.constexpr):
    tma.async_copy_global_to_shared(x, at, loaded, to, multicast=MULTICAST)


@gluon.jit
def load_tile(latent, k_rope, table, s_c, s_k, full, j, start, stop, place, SIZES: gl.constexpr):
    """Starts the copies of tile j, which arrive in both programs."""
    PAGE: gl.constexpr = SIZES.PAGE
    i_b, c_b, k_b, pages = place
    n0 = start + j * TOKENS
    if PAGE:
        page = gl.load(table + n0 // PAGE, n0 < stop, 0)
        page = gl.where((page >= 0) & (page < pages), page, 0)  # nothing outside is read
        i_b, first = page.to(gl.int32), n0 % PAGE
    else:
        first = n0
    i = j % STAGES
    c_row, k_row = i_b * c_b + first, i_b * k_b + first
    for half in gl.static_range(2):
        loaded = full.index(2 * i + half)
        mbarrier.expect(loaded, 2 * TOKENS * (HALF + half * P))
        copy(latent, [c_row, half * HALF], loaded, s_c.index(2 * i + half), SIZES.MULTICAST)
    copy(k_rope, [k_row, 0], full.index(2 * i + 1), s_k.index(i), SIZES.MULTICAST)


@gluon.jit
def load_tiles(
    q, q_rope, latent, k_rope, table, tiles, barriers, start, stop, count, query, place,
    SIZES: gl.constexpr,
):  # fmt: skip
    """The warps that load: queries once, then one tile of tokens after the other."""
    s_q, s_qr, s_c, s_k = tiles
    q_full, full = barriers
    q_row, q_column, r_row, r_column = query
    start_cluster()
    mbarrier.expect(q_full, 2 * ROWS // 2 * (2 * HALF + P))
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(q, [q_row, q_column + half * HALF], q_full, s_q.index(half))
    tma.async_copy_global_to_shared(q_rope, [r_row, r_column], q_full, s_qr)
    cluster.wait()
    for j in range(count):
        if j >= STAGES:
            cluster.arrive(relaxed=True)
            cluster.wait()
        load_tile(latent, k_rope, table, s_c, s_k, full, j, start, stop, place, SIZES)
    cluster.arrive(relaxed=True)
    cluster.wait()


@gluon.jit
def scores(s_q, s_qr, s_c, s_k, full, j, zeros):
    """Starts the products of queries and tile j, each when its columns are there."""
    i = j % STAGES
    phase = j // STAGES % 2
    mbarrier.wait(full.index(2 * i), phase)
    s_tokens = s_c.index(2 * i).permute((1, 0))
    b_s = warpgroup_mma(s_q.index(0), s_tokens, zeros, use_acc=False, is_async=True)
    mbarrier.wait(full.index(2 * i + 1), phase)
    s_tokens = s_c.index(2 * i + 1).permute((1, 0))
    b_s = warpgroup_mma(s_q.index(1), s_tokens, b_s, is_async=True)
    return warpgroup_mma(s_qr, s_k.index(i).permute((1, 0)), b_s, is_async=True)


@gluon.jit
def weigh(b_s, b_top, b_sum, s_c, s_p, s_f, ready, added, j, last, ends, H: gl.constexpr):
    """Hands on the weights of tile j, and what the sums before are multiplied by."""
    start, stop, all_see = ends
    n0 = start + j * TOKENS
    if n0 + TOKENS > all_see:
        o_n = gl.arange(0, TOKENS, gl.SliceLayout(0, b_s.type.layout))
        b_s = gl.where((n0 + o_n)[None, :] <= last[:, None], b_s, float("-inf"))
    top = gl.maximum(b_top, gl.max(b_s, 1))
    b_p, rescale = gl.exp2(b_s - top[:, None]), gl.exp2(b_top - top)
    b_sum = b_sum * rescale + gl.sum(b_p, 1)
    mbarrier.wait(added, (j + 1) % 2)
    s_p.store(b_p.to(s_p.dtype))
    s_f.index(0).store(rescale)
    if n0 + TOKENS > stop:  # NaN in an empty slot, times a weight of 0, would be NaN
        LAYOUT: gl.constexpr = tokens_over_warps(gl.num_warps())
        o_n = gl.arange(0, TOKENS, gl.SliceLayout(1, LAYOUT))
        for half in range(2):
            s_tokens = s_c.index(2 * (j % STAGES) + half)
            b_c = s_tokens.load(LAYOUT)
            s_tokens.store(gl.where((n0 + o_n < stop)[:, None], b_c, 0.0).to(b_c.dtype))
    fence_async_shared()
    barrier()
    mbarrier.arrive(ready)
    return top, b_sum


@gluon.jit
def score_tiles(
    lse, tiles, s_p, s_f, barriers, ready, added, i_b, i_row, i_s, ends, end, count, rows, M, S,
    scale, SIZES: gl.constexpr,
):  # fmt: skip
    """The warps that score: weights of each tile, and what the sums before are multiplied by."""
    s_q, s_qr, s_c, s_k = tiles
    q_full, full = barriers
    H: gl.constexpr = SIZES.H
    SCORES: gl.constexpr = sums_layout(TOKENS, 4)
    start_cluster()
    o_row = i_row * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    last = gl.minimum(end - M + o_row // H, ends[1] - 1)  # the last token that a row sees here
    zeros = gl.full([ROWS, TOKENS], 0.0, gl.float32, SCORES)
    b_sum = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    b_top = gl.full([ROWS], MIN_SCORE, gl.float32, gl.SliceLayout(1, SCORES))
    mbarrier.wait(q_full, 0)
    for j in range(0, count, 2):
        b_s = scores(s_q, s_qr, s_c, s_k, full, j, zeros)
        if SIZES.PAIRS:
            b_next = scores(s_q, s_qr, s_c, s_k, full, j + 1, zeros)
            b_s = warpgroup_mma_wait(3, deps=(b_s,))
        else:
            b_s = warpgroup_mma_wait(0, deps=(b_s,))
        b_top, b_sum = weigh(
            b_s * scale, b_top, b_sum, s_c, s_p, s_f, ready, added, j, last, ends, H
        )
        if j + STAGES < count:
            next_release()
        if not SIZES.PAIRS:
            b_next = scores(s_q, s_qr, s_c, s_k, full, j + 1, zeros)
        b_s = warpgroup_mma_wait(0, deps=(b_next,))
        b_top, b_sum = weigh(
            b_s * scale, b_top, b_sum, s_c, s_p, s_f, ready, added, j + 1, last, ends, H
        )
        if j + STAGES < count:
            next_release()
    mbarrier.wait(added, (count + 1) % 2)
    s_f.index(1).store(b_sum)
    barrier()
    mbarrier.arrive(ready)
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    gl.store(lse + at, b_top + gl.log2(b_sum), o_row < M * H)
    end_cluster()


@gluon.jit
def add_tiles(
    parts, s_c, s_p, s_f, ready, added, i_b, i_row, i_s, count, rows, M, S, H: gl.constexpr
):
    """The warps that add: weights times tokens, and in the end the part of the sum."""
    PART: gl.constexpr = sums_layout(128, 8)
    start_cluster()
    b_left = gl.full([ROWS, HALF], 0.0, gl.float32, PART)
    b_right = gl.full([ROWS, HALF], 0.0, gl.float32, PART)
    for j in range(count):
        i = j % STAGES
        mbarrier.wait(ready, j % 2)
        rescale = s_f.index(0).load(gl.SliceLayout(1, PART))
        b_left = b_left * rescale[:, None]
        b_right = b_right * rescale[:, None]
        b_left = warpgroup_mma(s_p, s_c.index(2 * i), b_left, is_async=True)
        b_right = warpgroup_mma(s_p, s_c.index(2 * i + 1), b_right, is_async=True)
        b_left, b_right = warpgroup_mma_wait(0, deps=(b_left, b_right))
        barrier()
        mbarrier.arrive(added)
        if j + STAGES < count:
            next_release()
    mbarrier.wait(ready, count % 2)
    b_sum = s_f.index(1).load(gl.SliceLayout(1, PART))
    shrink = (1.0 / gl.where(b_sum > 0, b_sum, 1.0))[:, None]
    o_row = i_row * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, PART))
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    at = at[:, None] * (2 * HALF) + gl.arange(0, HALF, gl.SliceLayout(0, PART))[None, :]
    gl.store(parts + at, b_left * shrink, (o_row < M * H)[:, None])
    gl.store(parts + at + HALF, b_right * shrink, (o_row < M * H)[:, None])
    end_cluster()


@assembled
@gluon.jit(do_not_specialize=["scale", "c_b", "k_b", "table_b", "pages", "rows", "M", "N", "S"])
def decode_cluster_kernel(
    q, q_rope, latent, k_rope, lengths, left_padding, table, parts, lse, scale, c_b, k_b, table_b,
    pages, rows, M, N, S, SIZES: gl.constexpr,
):  # fmt: skip
    """Results as those of `decode_kernel`; the first four arguments are descriptions of tiles.

    c_b, k_b: rows of the cache's description from a sequence, or page, to the next. rows: query
    tokens of all sequences.
    """
    gdc_launch_dependents()
    H: gl.constexpr = SIZES.H
    DTYPE: gl.constexpr = gl.bfloat16
    s_q = gl.allocate_shared_memory(DTYPE, [2, ROWS, HALF], tile_layout(ROWS, HALF, DTYPE, False))
    s_qr = gl.allocate_shared_memory(DTYPE, [ROWS, P], tile_layout(ROWS, P, DTYPE, False))
    s_c = gl.allocate_shared_memory(
        DTYPE, [2 * STAGES, TOKENS, HALF], tile_layout(TOKENS, HALF, DTYPE, True)
    )
    s_k = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, P], tile_layout(TOKENS, P, DTYPE, True))
    s_p = gl.allocate_shared_memory(DTYPE, [ROWS, TOKENS], tile_layout(ROWS, TOKENS, DTYPE, False))
    s_f = gl.allocate_shared_memory(gl.float32, [2, ROWS], flat_layout())
    full = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 2], of_each_program())
    q_full = gl.allocate_shared_memory(gl.int64, [2], of_each_program())
    ready = gl.allocate_shared_memory(gl.int64, [2], of_each_program())
    added = gl.allocate_shared_memory(gl.int64, [2], of_each_program())
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(full.index(i), count=1)
    mbarrier.init(q_full, count=1)
    mbarrier.init(ready, count=1)
    mbarrier.init(added, count=1)
    fence_async_shared(cluster=True)

    i_tile = gl.program_id(0)
    tiles_of_rows = M * H // ROWS
    i_row, i_s = i_tile % tiles_of_rows, i_tile // tiles_of_rows % S
    i_b = (i_tile // tiles_of_rows // S).to(gl.int64)
    start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, TOKENS)
    # Of an odd number of tiles the last has no other: all tokens of one more weigh nothing.
    count = gl.maximum(gl.cdiv(stop - start, 2 * TOKENS), 1) * 2
    all_see = gl.minimum(end - M + 1, stop)  # the tokens before this one
    token, head = i_b.to(gl.int32) * M + i_row * ROWS // H, i_row * ROWS % H
    query = (head, token * (2 * HALF), token * H + head, 0)
    if SIZES.IN_ROWS:
        query = (token * H + head, 0, token * H + head, 0)
    place = (i_b.to(gl.int32), c_b, k_b, pages)
    if SIZES.PAGE:
        table += i_b * table_b
    tiles = (s_q, s_qr, s_c, s_k)
    barriers = (q_full, full)
    gl.warp_specialize(
        [
            (score_tiles, (
                lse, tiles, s_p, s_f, barriers, ready, added, i_b, i_row, i_s,
                (start, stop, all_see), end, count, rows, M, S, scale, SIZES,
            )),
            (add_tiles, (
                parts, s_c, s_p, s_f, ready, added, i_b, i_row, i_s, count, rows, M, S, H,
            )),
            (load_tiles, (
                q, q_rope, latent, k_rope, table, tiles, barriers, start, stop, count, query,
                place, SIZES,
            )),
        ],
        [8, 4],
        [SIZES.ADD_REGISTERS, SIZES.LOAD_REGISTERS],
    )  # fmt: skip


def tiles_of(x, rows, columns, block, shared):
    """Describes x, whose last elements are neighbours, as rows of columns, in tiles of a cluster.

    Args:
        rows, columns: (size, stride) each; the stride of columns is 1.
        block: rows and columns of a tile. shared: the same tile in both programs of a cluster.
    """
    layout = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]] if shared else [[1, 0]])
    return TensorDescriptor(x, [rows[0], columns], [rows[1], 1], list(block), layout)


def queries(x, columns):
    """Describes q or q_rope [B, M, H, …]; and whether each head of each token is a row."""
    B, M, H, R = x.shape
    b, m, h, _ = x.stride()
    block = (ROWS.value, columns)
    if (M == 1 or b == M * m) and h >= B * M * R and b == M * R:  # as `absorb` leaves q
        return tiles_of(x, (H, h), B * M * R, block, False), False
    if not (m == H * h or B * M == 1) or not (b == M * m or B == 1):
        x = x.contiguous()
        h = R
    return tiles_of(x, (B * M * H, h), R, block, False), True


def cache(x, columns):
    """Describes latent or k_rope [sequences or pages, tokens, …], and rows from one to the next."""
    B, N, R = x.shape
    b, n, _ = x.stride()
    if b % n:
        x = x.contiguous()
        b, n = N * R, R
    return tiles_of(x, ((B - 1) * (b // n) + N, n), R, (TOKENS.value, columns), True), b // n


def missing():
    """Why this Triton cannot compile the kernel, or None."""
    release = ".".join(triton.__version__.split(".")[:2])
    if release == RELEASE:
        return None
    why = "3.6 has no clusters, 3.8 refuses cluster.arrive in a role, and 3.9 has none"
    return f"the cluster kernel needs Triton {RELEASE}, and {triton.__version__} is here: {why}"


def takes(q, q_rope, page_size, left_padding):
    """Whether the kernel computes these: DeepSeek's sizes in bfloat16, on Hopper."""
    sizes = q.shape[2] % ROWS.value == 0 and (q.shape[3], q_rope.shape[3]) == (2 * HALF.value, 64)
    pages = not page_size or (page_size % TOKENS.value == 0 and left_padding is None)
    return sizes and pages and q.dtype == torch.bfloat16 and devices.gpu_of(q.device).is_hopper


def decode_in_clusters(
    q, q_rope, latent, k_rope, w_v, scale, lengths=None, left_padding=None, block_table=None,
    **variant,
):  # fmt: skip
    """`mla_decode`'s o and lse for an absorbed q; an experiment.

    Args:
        variant: PAIRS, MULTICAST, ADD_REGISTERS and LOAD_REGISTERS of `ClusterSizes`.

    Raises:
        ValueError: the kernel does not take these; see `takes`.
    """
    (B, M, H, R), N, V = q.shape, latent.shape[1], w_v.shape[1]
    page_size = 0 if block_table is None else N
    if not takes(q, q_rope, page_size, left_padding):
        call = f"{q.dtype}, {H} heads, rank {R}, {q_rope.shape[3]} with rope, pages of {page_size}"
        raise ValueError(
            f"the call has {call}, on {q.device}: the cluster kernel needs bfloat16, a multiple "
            "of 128 heads, rank 512, 64 with rope, pages of a multiple of 64 tokens without left "
            "padding, and a Hopper GPU; mla_decode computes the rest"
        )
    w_v = w_v.contiguous()
    lengths, left_padding = (x if x is None else x.contiguous() for x in (lengths, left_padding))
    if block_table is not None:
        block_table, N = block_table.contiguous(), N * block_table.shape[1]
    gpu = devices.gpu_of(q.device)
    clusters, tiles = B * (M * H // ROWS.value), -(-N // TOKENS.value)
    splits = splits_for(clusters, tiles, gpu.sms // 2, 1)
    parts = torch.empty((H, B * M, splits, R), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((H, B * M, splits), dtype=torch.float32, device=q.device)
    o = torch.empty((B, M, H, V), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, M, H), dtype=torch.float32, device=q.device)

    (s_q, in_rows), (s_qr, rope_in_rows) = queries(q, HALF.value), queries(q_rope, P.value)
    if not rope_in_rows:
        s_qr, _ = queries(q_rope.contiguous(), P.value)
    (s_c, c_rows), (s_k, k_rows) = cache(latent, HALF.value), cache(k_rope, P.value)
    run(
        clusters * splits, s_q, s_qr, s_c, s_k, lengths, left_padding, block_table, parts, part_lse,
        scale * LOG2E, c_rows, k_rows, 0 if block_table is None else block_table.stride(0),
        latent.shape[0], B * M, M, N, splits, ClusterSizes(H, page_size, in_rows, **variant),
    )  # fmt: skip
    stages = pieces_in_flight(R, V, gpu)
    together = 1 << (splits - 1).bit_length()
    rows = ROWS_OF_COMBINE // together
    constants = (*w_v.stride()[:2], H, R, V, rows, together, stages, True)
    launch(
        combine_hopper_kernel, H * -(-B * M // rows), WARPS_OF_COMBINE,
        (parts, part_lse, w_v, o, lse), (B * M, splits), constants, launch_pdl=True,
    )  # fmt: skip
    return o, lse


def run(programs, *args):
    decode_cluster_kernel[(programs,)](*args, num_warps=4, num_ctas=2)
