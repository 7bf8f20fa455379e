"""The first kernel of forward.py for DeepSeek's sizes, with roles: warps that load, score, or add.

hopper.py's warps take turns at everything, and the tensor cores wait while weights are computed.
Here 16 warps have three roles, and pass tiles of tokens on through mbarriers:

    4 load     a tile of tokens, 16 bytes a thread (`cp.async`), zeros instead of masked rows
    4 score    products with the queries, 64 × 64 a tile, and the weights of the tokens
    8 add      weights times tokens, each warpgroup half of the columns of the sum

Two tiles of tokens are in shared memory in turn: while one is added up, the next is scored. Either
half of a tile is loaded again as soon as it is added up. The weights take the place of the tile's
keys with rope, which are not needed any more. The sums of a row are rescaled only when its largest
score has grown by more than MARGIN.

Where each tile is on one page, that page is looked up once, one tile ahead; else each token's is.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.compile_triton import assembled
from .hopper import barrier, fetch, fetch_query, scores
from .programs import (
    NOT_SPECIALIZED,
    program_place,
    strides_of_cache,
    strides_of_query,
    tokens_of_split,
)

RANK_AND_ROPE = (512, 64)
STAGES = 2  # tiles of tokens in shared memory, and the queries: 222 KB
MIN_SCORE = tl.constexpr(-1e30)
MARGIN = tl.constexpr(8.0)  # weights are at most 2**8: as long as that holds, no sum is rescaled
ADD_REGISTERS = tl.constexpr(160)  # 128 of them for the sums
COLUMNS = tl.constexpr(128)  # of the sum in one instruction: for 256 ptxas wants more registers
LOAD_WARPS = tl.constexpr(4)
LOAD_REGISTERS = tl.constexpr(72)


def chunks(w_v):
    """How many pieces of 2 KB a head's part of w_v has; none if it is not in one piece."""
    _, V, R = w_v.shape
    whole = w_v.stride(1) == R and w_v.stride(0) % 8 == 0 and w_v.data_ptr() % 16 == 0
    return V * R // 1024 if whole else 0


@gluon.jit
def to_l2(pointers, bytes):
    """Each thread has so many bytes brought to the L2 cache, a multiple of 16."""
    gl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;", "=r,l,r", [pointers, bytes],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def weights_to_l2(x, stride, H: gl.constexpr, CHUNKS: gl.constexpr):
    """This program's share of x `[H, CHUNKS · 2 KB]`."""
    THREADS: gl.constexpr = 32 * gl.num_warps()
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    for first in range(gl.program_id(0) * THREADS, H * CHUNKS, gl.num_programs(0) * THREADS):
        chunk = gl.minimum(first + gl.arange(0, THREADS, LAYOUT), H * CHUNKS - 1)
        at = (chunk // CHUNKS).to(gl.int64) * stride + chunk % CHUNKS * 1024
        to_l2(x + at, gl.full([THREADS], 2048, gl.int32, LAYOUT))


@gluon.jit
def load_tiles(
    w_v, q, q_rope, latent, k_rope, table, tiles, barriers, i_row, start, stop, count, M, strides,
    pages, SIZES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """The warps that load: queries once, then one tile of tokens after the other.

    The second kernel's w_v comes to the L2 cache meanwhile.
    """
    s_q, s_qr, s_c, s_k = tiles
    full, half_empty, empty = barriers
    q_m, q_h, r_m, r_h, c_b, k_b = strides
    H: gl.constexpr = SIZES.H
    c_n: gl.constexpr = SIZES.c_n
    k_n: gl.constexpr = SIZES.k_n
    PAGE: gl.constexpr = SIZES.PAGE
    STAGES: gl.constexpr = SIZES.STAGES
    BN: gl.constexpr = s_c.index(0).shape[0]
    fetch_query(s_q, q, i_row, M, H, q_m, q_h)
    fetch_query(s_qr, q_rope, i_row, M, H, r_m, r_h)
    LOOKED_UP: gl.constexpr = 0 if WHOLE else PAGE
    c_page = latent
    k_page = k_rope
    if WHOLE:
        page = gl.load(table + start // PAGE, start < stop, 0)
    for j in range(count):
        i = j % STAGES
        n0 = start + j * BN
        if WHOLE:  # where token 0 would be, if all were on this tile's page
            page = gl.where((page >= 0) & (page < pages), page, 0).to(gl.int64)
            before = n0 - n0 % PAGE
            c_page = latent + (page * c_b - before.to(gl.int64) * c_n)
            k_page = k_rope + (page * k_b - before.to(gl.int64) * k_n)
            page = gl.load(table + (n0 + BN) // PAGE, n0 + BN < stop, 0)  # one tile ahead
        mbarrier.wait(half_empty.index(i), (j // STAGES + 1) % 2)
        s_0 = s_c.index(i).slice(0, BN // 2, dim=0)
        s_1 = s_c.index(i).slice(BN // 2, BN // 2, dim=0)
        fetch(s_0, c_page, n0, stop, c_b, c_n, LOOKED_UP, table, pages)
        mbarrier.wait(empty.index(i), (j // STAGES + 1) % 2)
        fetch(s_1, c_page, n0 + BN // 2, stop, c_b, c_n, LOOKED_UP, table, pages)
        fetch(s_k.index(i), k_page, n0, stop, k_b, k_n, LOOKED_UP, table, pages)
        async_copy.mbarrier_arrive(full.index(i), increment_count=False)
        if j == 0:
            weights_to_l2(w_v, SIZES.w_h, H, SIZES.CHUNKS)
    async_copy.wait_group(0)


@gluon.jit
def score_tiles(
    lse, s_q, s_qr, s_c, s_k, s_p, s_f, full, ready, i_b, i_row, i_s, start, stop, end, count,
    rows, M, S, scale, H: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warps that score: weights of each tile, and what the sums before are multiplied by."""
    BM: gl.constexpr = s_q.shape[0]
    BN: gl.constexpr = s_c.index(0).shape[0]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    o_row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, SCORES))
    o_n = gl.arange(0, BN, gl.SliceLayout(0, SCORES))
    last = gl.minimum(end - M + o_row // H, stop - 1)  # the last token that a row sees here
    all_see = gl.minimum(end - M + 1, stop)  # the tokens before this one
    zeros = gl.full([BM, BN], 0.0, gl.float32, SCORES)
    b_sum = gl.full([BM], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    b_top = gl.full([BM], MIN_SCORE, gl.float32, gl.SliceLayout(1, SCORES))
    for j in range(count):
        i = j % STAGES
        mbarrier.wait(full.index(i), j // STAGES % 2)
        fence_async_shared()
        b_s = scores(s_q, s_qr, s_c.index(i), s_k.index(i), zeros)
        b_s = warpgroup_mma_wait(0, deps=(b_s,))
        b_s = b_s * scale
        if start + (j + 1) * BN > all_see:
            n = start + j * BN + o_n
            b_s = gl.where(n[None, :] <= last[:, None], b_s, float("-inf"))
        top = gl.max(b_s, 1)
        top = gl.where(top > b_top + MARGIN, top, b_top)
        b_p, rescale, b_top = gl.exp2(b_s - top[:, None]), gl.exp2(b_top - top), top
        barrier()  # all warps' products with the keys are over
        s_p.index(i).store(b_p.to(s_q.dtype))
        s_f.index(i).store(rescale)
        fence_async_shared()
        barrier()
        mbarrier.arrive(ready.index(i))
        b_sum = b_sum * rescale + gl.sum(b_p, 1)
    s_f.index(STAGES).store(b_sum)
    barrier()
    mbarrier.arrive(ready.index(STAGES))
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    gl.store(lse + at, b_top + gl.log2(b_sum), o_row < M * H)


@gluon.jit
def add_tiles(
    parts, s_c, s_p, s_f, ready, half_empty, empty, i_b, i_row, i_s, count, rows, M, S,
    H: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warps that add: weights times tokens, and in the end the part of the sum."""
    BM: gl.constexpr = s_p.index(0).shape[0]
    BN: gl.constexpr = s_c.index(0).shape[0]
    R: gl.constexpr = s_c.index(0).shape[1]
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, COLUMNS, 16])
    b_part = gl.full([BM, R], 0.0, gl.float32, PART)
    for j in range(count):
        i = j % STAGES
        mbarrier.wait(ready.index(i), j // STAGES % 2)
        rescale = s_f.index(i).load(gl.SliceLayout(1, PART))
        if gl.min(rescale, 0) < 1.0:
            b_part = b_part * rescale[:, None]
        for half in gl.static_range(2):
            s_half = s_c.index(i).slice(half * BN // 2, BN // 2, dim=0)
            s_weights = s_p.index(i).slice(half * BN // 2, BN // 2, dim=1)
            b_part = warpgroup_mma(s_weights, s_half, b_part, is_async=True)
        warpgroup_mma_wait(1, deps=(rescale,))
        barrier()
        mbarrier.arrive(half_empty.index(i))
        b_part = warpgroup_mma_wait(0, deps=(b_part,))
        barrier()
        mbarrier.arrive(empty.index(i))
    mbarrier.wait(ready.index(STAGES), 0)
    b_sum = s_f.index(STAGES).load(gl.SliceLayout(1, PART))
    o_row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, PART))
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    at = at[:, None] * R + gl.arange(0, R, gl.SliceLayout(0, PART))[None, :]
    b_part = b_part * (1.0 / gl.where(b_sum > 0, b_sum, 1.0))[:, None]
    gl.store(parts + at, b_part, (o_row < M * H)[:, None])


@assembled
@gluon.jit(do_not_specialize=NOT_SPECIALIZED)
def decode_roles_kernel(
    q, q_rope, latent, k_rope, lengths, left_padding, table, parts, lse, w_v, scale, q_b, q_m, q_h,
    r_b, r_m, r_h, c_b, k_b, table_b, pages, M, N, S, SIZES: gl.constexpr,
):  # fmt: skip
    """Same arguments and results as `decode_kernel`, and w_v: CHUNKS · 2 KB for each head."""
    H: gl.constexpr = SIZES.H
    R: gl.constexpr = SIZES.R
    P: gl.constexpr = SIZES.P
    PAGE: gl.constexpr = SIZES.PAGE
    BM: gl.constexpr = SIZES.BM
    BN: gl.constexpr = SIZES.BN
    STAGES: gl.constexpr = SIZES.STAGES
    if SIZES.PDL:
        gdc_launch_dependents()
    q_b, q_m, q_h = strides_of_query(q_b, q_m, q_h, SIZES.UNIT)
    r_b, r_m, r_h = strides_of_query(r_b, r_m, r_h, SIZES.UNIT)
    c_b, k_b = strides_of_cache(c_b, k_b, SIZES.UNIT)
    DTYPE: gl.constexpr = q.dtype.element_ty
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, R], DTYPE)
    ROPE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, P], DTYPE)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s_q = gl.allocate_shared_memory(DTYPE, [BM, R], WIDE)
    s_qr = gl.allocate_shared_memory(DTYPE, [BM, P], ROPE)
    s_c = gl.allocate_shared_memory(DTYPE, [STAGES, BN, R], WIDE)
    s_k = gl.allocate_shared_memory(DTYPE, [STAGES, BN, P], ROPE)
    s_p = s_k  # the weights take the place of the keys with rope, which are as many: P = BM
    s_f = gl.allocate_shared_memory(gl.float32, [STAGES + 1, BM], FLAT)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    half_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=LOAD_WARPS * 32)
        mbarrier.init(half_empty.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
        mbarrier.init(ready.index(i), count=1)
    mbarrier.init(ready.index(STAGES), count=1)
    fence_async_shared()

    i_row, i_s, i_b, rows = program_place(M, S, H, BM)
    start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, BN)
    count = gl.maximum(gl.cdiv(stop - start, BN), 1)
    # Tiles begin at multiples of their size, and so do pages: each tile is on one.
    WHOLE: gl.constexpr = PAGE > 0 and PAGE % BN == 0 and left_padding is None
    if PAGE:
        table += i_b * table_b
    else:
        latent += i_b * c_b
        k_rope += i_b * k_b
    q += i_b * q_b
    q_rope += i_b * r_b
    gl.warp_specialize(
        [
            (score_tiles, (
                lse, s_q, s_qr, s_c, s_k, s_p, s_f, full, ready, i_b, i_row, i_s, start, stop,
                end, count, rows, M, S, scale, H, STAGES,
            )),
            (add_tiles, (
                parts, s_c, s_p, s_f, ready, half_empty, empty, i_b, i_row, i_s, count, rows, M, S,
                H, STAGES,
            )),
            (load_tiles, (
                w_v, q, q_rope, latent, k_rope, table, (s_q, s_qr, s_c, s_k),
                (full, half_empty, empty), i_row, start, stop, count, M,
                (q_m, q_h, r_m, r_h, c_b, k_b), pages, SIZES, WHOLE,
            )),
        ],
        [8, LOAD_WARPS],
        [ADD_REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip
