"""The first kernel of forward.py for DeepSeek's sizes and a cache in pages: groups that take turns.

In pages of 64 tokens or a multiple of it, a tile is on one page: its page is looked up once, and
bulk copies load it, where roles.py looks up every token and computes its address. 12 warps:

    4   load tiles of tokens by bulk copies; the last, if it ends early, 16 bytes a thread
    4   group 0: scores and weights of tiles 0, 2, 4 …; columns 0 … 255 of the sum of every tile
    4   group 1: scores and weights of tiles 1, 3, 5 …; columns 256 … 511

While one group makes weights of its scores, its tensor cores add up the other's tile before, and
the other group's score the tile after. A group multiplies its own weights as they lie in registers;
the other finds them in shared memory, in the place of the tile's keys with rope, and takes them
into its registers, too.

A tile's time is that of a place in shared memory, from one load to the next, by how many tiles
there is room for beside the queries. So the columns of a tile go in four pieces, each scored as
soon as it has come, and its place loaded again as soon as it was added up; and the queries' part
with rope is in registers, which makes room for a ninth piece.

All sums of a row are relative to one score, that the groups hand on from tile to tile. It is raised
when a score is larger by more than MARGIN: seldom, and only then sums are rescaled.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.compile_triton import assembled
from ...runtime.launch_tiles import TensorDescriptor, replace_base
from .hopper import barrier, fetch, fetch_query
from .roles import MARGIN, MIN_SCORE, weights_to_l2
from .splits import NOT_SPECIALIZED

TOKENS = 64  # of a tile
WARPS = gl.constexpr(4)  # of each of the three roles
REGISTERS = gl.constexpr(224)  # of a group, 128 for its sums; 56 are left to load
RING = gl.constexpr(9)  # pieces in shared memory: two tiles, and the first piece of a third
PIECES = gl.constexpr(4)  # of the columns of a tile: each group has the sums of two of them
_described = {}


def suits(latent, k_rope, page_size, left_padding):
    """Whether every tile is on one page, and at a row of the cache as one matrix of equal strides.

    Tiles begin at the first token, so that left padding would shift them over the ends of pages.
    """
    if page_size == 0 or page_size % TOKENS or left_padding is not None:
        return False
    return all(0 < rows_of(x) < 2**31 for x in (latent, k_rope))


def rows_of(x):
    """Rows of a cache `[pages, page size, width]` as one matrix; 0 if it cannot be seen as one."""
    (pages, page_size, width), (of_page, of_row, _) = x.shape, x.stride()
    if pages == 0 or of_row < width or of_page % of_row:
        return 0
    return (pages - 1) * (of_page // of_row) + page_size


def described(x, columns):
    """Describes a cache that `suits` as one matrix, in tiles of TOKENS rows and so many columns.

    Triton takes 7 µs to check a descriptor; those of the same shape are copies of the first.
    """
    key = (*x.shape, *x.stride(), columns, x.dtype)
    model = _described.get(key)
    if model is None:
        shape, strides = [rows_of(x), x.shape[2]], [x.stride(1), 1]
        layout = gl.NVMMASharedLayout(128, 8 * x.itemsize, 2)
        matrix = x.as_strided(shape, strides)
        model = TensorDescriptor(matrix, shape, strides, [TOKENS, columns], layout)
        model = replace_base(model, None)
        model.__dict__.update(key=key, kind=("mla", columns, x.dtype))
        _described[key] = model
    return replace_base(model, x)


def pieces_of(latent, k_rope):
    """Descriptions of both parts of a cache, as `decode_turns_kernel` takes them."""
    columns = latent.shape[2] // PIECES.value
    return described(latent, columns), described(k_rope, k_rope.shape[2])


@gluon.jit
def arrive_behind_copies(full):
    """Arrives when all copies of these warps' threads are done, and the tensor cores see them."""
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    mbarrier.arrive(full)


@gluon.jit
def load(tiles, x, to, full, row, column, tokens, row_stride: gl.constexpr):
    """Starts loading a tile: x from this row and column on, which `tiles` describes.

    tokens: of the sequence from here on. If they end in this tile, zeros come after them, and not
    what the page has there.
    """
    BN: gl.constexpr = to.shape[0]
    if tokens >= BN:
        mbarrier.expect(full, 2 * BN * to.shape[1])
        tma.async_copy_global_to_shared(tiles, [row, column], full, to)
    else:
        x += row.to(gl.int64) * row_stride + column
        fetch(to, x, 0, tokens, 0, row_stride, 0, None, 0)
        arrive_behind_copies(full)


@gluon.jit
def load_tiles(
    w_v, q, latent, k_rope, d_c, d_k, table, s_q, s_c, s_k, full, q_full, empty, i_row, start,
    stop, count, M, q_m, q_h, c_b, k_b, pages, H: gl.constexpr, c_n: gl.constexpr,
    k_n: gl.constexpr, PAGE: gl.constexpr, w_h: gl.constexpr, CHUNKS: gl.constexpr,
):  # fmt: skip
    """The warps that load: one piece of a tile of tokens after the other.

    The second kernel's w_v comes to the L2 cache meanwhile.
    """
    BN: gl.constexpr = s_c.index(0).shape[0]
    PIECE: gl.constexpr = s_c.index(0).shape[1]
    c_rows = (c_b // c_n).to(gl.int32)  # from one page to the next
    k_rows = (k_b // k_n).to(gl.int32)
    page = gl.load(table + start // PAGE, start < stop, 0)
    for j in range(count):
        n0 = start + j * BN
        tokens = stop - n0
        page = gl.where((page >= 0) & (page < pages), page, 0).to(gl.int32)  # reads nothing outside
        c_row = page * c_rows + n0 % PAGE
        k_row = page * k_rows + n0 % PAGE
        page = gl.load(table + (n0 + BN) // PAGE, n0 + BN < stop, 0)  # one tile ahead
        for x in gl.static_range(PIECES):
            i = PIECES * j + x
            # First the half of the group which scores the tile.
            column = (x + j % 2 * (PIECES // 2)) % PIECES * PIECE
            mbarrier.wait(empty.index(i % RING), (i // RING + 1) % 2)
            load(d_c, latent, s_c.index(i % RING), full.index(i % RING), c_row, column, tokens, c_n)
            if x == 1:  # in the place of these keys were weights, until the other group had them
                mbarrier.wait(empty.index(RING + j % 2), (j // 2 + 1) % 2)
                s = j % 2
                load(d_k, k_rope, s_k.index(s), full.index(RING + s), k_row, 0, tokens, k_n)
        if j == 0:
            for x in gl.static_range(PIECES):
                fetch_query(s_q.index(x), q + x * PIECE, i_row, M, H, q_m, q_h)
            async_copy.mbarrier_arrive(q_full, increment_count=False)
        if j == 1:
            weights_to_l2(w_v, w_h, H, CHUNKS)
    async_copy.wait_group(0)


@gluon.jit
def start_scores(b_qr, s_q, s_c, s_k, full, j, zero, zeros, GROUP: gl.constexpr):
    """Starts the products of the queries and this group's tile j, as its pieces come."""
    b_s = zeros
    for x in gl.static_range(PIECES):
        n = PIECES * j + x
        p = (x + GROUP * (PIECES // 2)) % PIECES
        mbarrier.wait(full.index(n % RING), n // RING % 2)
        s_piece = s_c.index(n % RING).permute((1, 0))
        b_s = warpgroup_mma(s_q.index(p + zero), s_piece, b_s, use_acc=x > 0, is_async=True)
    mbarrier.wait(full.index(RING + GROUP), j // 2 % 2)
    s_rope = s_k.index(GROUP + zero).permute((1, 0))
    return warpgroup_mma(b_qr, s_rope, b_s, is_async=True)


@gluon.jit
def weigh_tile(b_s, s_p, s_f, s_t, ready, top, b_top, b_sum, n0, last, all_see, scale):
    """Weights of a tile, for both groups, relative to a score that is `top` or has grown.

    Returns them, that score, and this group's sum of weights, which was relative to b_top, by it.
    """
    BN: gl.constexpr = s_p.shape[1]
    b_s = b_s * scale
    if n0 + BN > all_see:
        n = n0 + gl.arange(0, BN, gl.SliceLayout(0, b_s.type.layout))
        b_s = gl.where(n[None, :] <= last[:, None], b_s, float("-inf"))
    new = gl.max(b_s, 1)
    new = gl.where(new > top + MARGIN, new, top)
    b_p = gl.exp2(b_s - new[:, None])
    barrier()  # all warps' products with the keys are over
    b_w = b_p.to(s_p.dtype)
    s_p.store(b_w)
    s_f.store(gl.exp2(top - new))
    s_t.store(new)
    fence_async_shared()
    barrier()
    mbarrier.arrive(ready)
    return b_w, new, b_sum * gl.exp2(b_top - new) + gl.sum(b_p, 1)


@gluon.jit
def add_tile(b_0, b_1, b_w, s_f, s_c, n):
    """Starts the products of weights and this group's two pieces, n and n + 1, of a tile."""
    ALL: gl.constexpr = gl.BlockedLayout([2], [32], [WARPS], [0])  # in each warp: no barrier
    if gl.max((s_f.load(ALL) < 1.0).to(gl.int32), 0) > 0:
        factor = s_f.load(gl.SliceLayout(1, b_0.type.layout))[:, None]
        b_0, b_1 = b_0 * factor, b_1 * factor
    b_0 = warpgroup_mma(b_w, s_c.index(n % RING), b_0, is_async=True)
    return b_0, warpgroup_mma(b_w, s_c.index((n + 1) % RING), b_1, is_async=True)


@gluon.jit
def release_tile(b_0, b_1, b_w, empty, n):
    """Waits for these products; each piece may be loaded again as soon as it was added up."""
    b_0 = warpgroup_mma_wait(1, deps=(b_0,))
    barrier()
    mbarrier.arrive(empty.index(n % RING))
    b_1 = warpgroup_mma_wait(0, deps=(b_1, b_w))[0]
    barrier()
    mbarrier.arrive(empty.index((n + 1) % RING))
    return b_0, b_1


@gluon.jit
def attend_tiles(
    q_rope, parts, lse, s_q, s_c, s_k, s_f, s_t, s_sum, full, q_full, ready, empty, i_b, i_row,
    i_s, start, stop, end, count, rows, M, S, r_m, r_h, scale, H: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """One of the two groups: scores of every other tile, and half of the columns of the sum."""
    BM: gl.constexpr = s_k.index(0).shape[1]  # the weights take the place of keys: P is BM
    BN: gl.constexpr = s_c.index(0).shape[0]
    PIECE: gl.constexpr = s_c.index(0).shape[1]
    R: gl.constexpr = PIECES * PIECE
    OTHER: gl.constexpr = 1 - GROUP
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, PART, 2)
    o_row = i_row * BM + gl.arange(0, BM, ROW)
    last = gl.minimum(end - M + o_row // H, stop - 1)  # the last token that a row sees here
    all_see = gl.minimum(end - M + 1, stop)  # the tokens before this one
    zeros = gl.full([BM, BN], 0.0, gl.float32, SCORES)
    QUERIES: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, QUERIES))
    at = (row // H).to(gl.int64) * r_m + row % H * r_h
    at = at[:, None] + gl.arange(0, BM, gl.SliceLayout(0, QUERIES))[None, :]
    b_qr = gl.load(q_rope + at, (row < M * H)[:, None], 0.0)
    b_sum = gl.full([BM], 0.0, gl.float32, ROW)
    b_top = gl.full([BM], MIN_SCORE, gl.float32, ROW)
    b_0 = gl.full([BM, PIECE], 0.0, gl.float32, PART)
    b_1 = b_0
    mbarrier.wait(q_full, 0)
    fence_async_shared()
    if GROUP == 0:  # the first tile has none before it
        b_s = start_scores(b_qr, s_q, s_c, s_k, full, 0, 0, zeros, GROUP)
        b_s = warpgroup_mma_wait(0, deps=(b_s,))
        b_w, b_top, b_sum = weigh_tile(
            b_s, s_k.index(0), s_f.index(0), s_t.index(0), ready.index(0), b_top, b_top, b_sum,
            start, last, all_see, scale,
        )  # fmt: skip
        b_first = gl.convert_layout(b_w, WEIGHTS)
        b_0, b_1 = add_tile(b_0, b_1, b_first, s_f.index(0), s_c, 0)
        b_0, b_1 = release_tile(b_0, b_1, b_first, empty, 0)
    for j in range(2 - GROUP, count, 2):
        # 0, but the compiler does not know, and computes no addresses in front of the loop: there
        # are no registers for them.
        zero = j >> 26
        b_s = start_scores(b_qr, s_q, s_c, s_k, full, j, zero, zeros, GROUP)
        mbarrier.wait(ready.index(OTHER), (j - 1) // 2 % 2)
        top = s_t.index(OTHER).load(ROW)
        b_other = s_k.index(OTHER + zero).load(WEIGHTS)
        barrier()
        mbarrier.arrive(empty.index(RING + OTHER))
        n = PIECES * (j - 1) + PIECES // 2
        b_0, b_1 = add_tile(b_0, b_1, b_other, s_f.index(OTHER), s_c, n)
        b_s = warpgroup_mma_wait(2, deps=(b_s,))
        b_w, b_top, b_sum = weigh_tile(
            b_s, s_k.index(GROUP), s_f.index(GROUP), s_t.index(GROUP), ready.index(GROUP), top,
            b_top, b_sum, start + j * BN, last, all_see, scale,
        )  # fmt: skip
        b_0, b_1 = release_tile(b_0, b_1, b_other, empty, n)
        b_own = gl.convert_layout(b_w, WEIGHTS)
        b_0, b_1 = add_tile(b_0, b_1, b_own, s_f.index(GROUP), s_c, PIECES * j)
        b_0, b_1 = release_tile(b_0, b_1, b_own, empty, PIECES * j)
    top = b_top
    if (count - 1) % 2 == OTHER:
        mbarrier.wait(ready.index(OTHER), (count - 1) // 2 % 2)
        top = s_t.index(OTHER).load(ROW)
        b_last = s_k.index(OTHER).load(WEIGHTS)
        n = PIECES * (count - 1) + PIECES // 2
        b_0, b_1 = add_tile(b_0, b_1, b_last, s_f.index(OTHER), s_c, n)
        b_0, b_1, b_last = warpgroup_mma_wait(0, deps=(b_0, b_1, b_last))

    b_sum = b_sum * gl.exp2(b_top - top)
    s_sum.index(GROUP).store(b_sum)
    barrier()
    mbarrier.arrive(ready.index(2 + GROUP))
    mbarrier.wait(ready.index(2 + OTHER), 0)
    b_sum += s_sum.index(OTHER).load(ROW)
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    if GROUP == 0:
        gl.store(lse + at, top + gl.log2(b_sum), o_row < M * H)
    share = gl.convert_layout(1.0 / gl.where(b_sum > 0, b_sum, 1.0), gl.SliceLayout(1, PART))
    o_row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, PART))
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    columns = GROUP * (R // 2) + gl.arange(0, PIECE, gl.SliceLayout(0, PART))
    at = at[:, None] * R + columns[None, :]
    gl.store(parts + at, b_0 * share[:, None], (o_row < M * H)[:, None])
    gl.store(parts + at + PIECE, b_1 * share[:, None], (o_row < M * H)[:, None])


@assembled
@gluon.jit(do_not_specialize=NOT_SPECIALIZED)
def decode_turns_kernel(
    q, q_rope, latent, k_rope, lengths, left_padding, table, parts, lse, w_v, d_c, d_k, scale, q_b,
    q_m, q_h, r_b, r_m, r_h, c_b, k_b, table_b, pages, M, N, S, UNIT: gl.constexpr,
    H: gl.constexpr, R: gl.constexpr, P: gl.constexpr, c_n: gl.constexpr, k_n: gl.constexpr,
    PAGE: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, PDL: gl.constexpr,
    w_h: gl.constexpr, CHUNKS: gl.constexpr,
):  # fmt: skip
    """Same arguments and results as `decode_roles_kernel`, of caches that `suits`.

    d_c, d_k: latent and k_rope, described by `pieces_of`.
    """
    if PDL:
        gdc_launch_dependents()
    q_b, r_b = q_b.to(gl.int64) * UNIT, r_b.to(gl.int64) * UNIT
    c_b, k_b = c_b.to(gl.int64) * UNIT, k_b.to(gl.int64) * UNIT
    q_m, q_h, r_m, r_h = q_m * UNIT, q_h * UNIT, r_m * UNIT, r_h * UNIT
    DTYPE: gl.constexpr = q.dtype.element_ty
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, R // PIECES], DTYPE)
    ROPE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, P], DTYPE)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s_q = gl.allocate_shared_memory(DTYPE, [PIECES, BM, R // PIECES], WIDE)
    s_c = gl.allocate_shared_memory(DTYPE, [RING, BN, R // PIECES], WIDE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, BN, P], ROPE)
    s_f = gl.allocate_shared_memory(gl.float32, [2, BM], FLAT)
    s_t = gl.allocate_shared_memory(gl.float32, [2, BM], FLAT)
    s_sum = gl.allocate_shared_memory(gl.float32, [2, BM], FLAT)
    # Of each piece in shared memory, and of the two tiles' keys with rope.
    full = gl.allocate_shared_memory(gl.int64, [RING + 2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [RING + 2, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=WARPS * 32)
    ready = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(4):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(RING + 2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()

    tiles = gl.cdiv(M * H, BM)
    i_row = gl.program_id(0) % tiles
    i_s = gl.program_id(0) // tiles % S
    i_b = (gl.program_id(0) // tiles // S).to(gl.int64)
    rows = gl.num_programs(0) // tiles // S * M
    end = N
    if lengths is not None:
        end = gl.maximum(gl.minimum(gl.load(lengths + i_b), N), 0).to(gl.int32)
    share = gl.cdiv(gl.cdiv(end, S), BN) * BN
    start = i_s * share
    stop = gl.minimum(start + share, end)
    count = gl.maximum(gl.cdiv(stop - start, BN), 1)
    table += i_b * table_b
    q += i_b * q_b
    q_rope += i_b * r_b
    gl.warp_specialize(
        [
            (load_tiles, (
                w_v, q, latent, k_rope, d_c, d_k, table, s_q, s_c, s_k, full, q_full, empty,
                i_row, start, stop, count, M, q_m, q_h, c_b, k_b, pages, H, c_n, k_n, PAGE, w_h,
                CHUNKS,
            )),
            (attend_tiles, (
                q_rope, parts, lse, s_q, s_c, s_k, s_f, s_t, s_sum, full, q_full, ready, empty,
                i_b, i_row, i_s, start, stop, end, count, rows, M, S, r_m, r_h, scale, H, 0,
            )),
            (attend_tiles, (
                q_rope, parts, lse, s_q, s_c, s_k, s_f, s_t, s_sum, full, q_full, ready, empty,
                i_b, i_row, i_s, start, stop, end, count, rows, M, S, r_m, r_h, scale, H, 1,
            )),
        ],
        [WARPS, WARPS],
        [REGISTERS, REGISTERS],
    )  # fmt: skip
