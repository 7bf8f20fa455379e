"""The first kernel of forward.py once more, in Gluon, for Hopper's tensor cores and ranks 256, 512.

Triton gives a product whose result goes into another product to all warps along the rows. With 64
rows and 8 warps both warpgroups then compute all scores. Here the layouts are written down: each
warpgroup has half of the tokens of the scores, and half of the columns of the sum. The weights go
through shared memory from one product to the next; with 4 warps they stay in registers.

A tile of tokens is in shared memory once and is read by both products. While one is worked on, the
next is on its way, 16 bytes a thread (`cp.async`), with zeros instead of masked rows.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.compile_triton import assembled
from .parts import barrier, store_part, unit_of
from .programs import (
    NOT_SPECIALIZED,
    program_place,
    strides_of_cache,
    strides_of_query,
    tokens_of_split,
)

RANKS = (256, 512)
ROPE_SIZES = (16, 32, 64, 128)
MIN_SCORE = tl.constexpr(-1e30)


@gluon.constexpr_function
def rows_over_warps(columns, warps):
    """A layout in which a thread has 8 neighbours of a row: 16 bytes of a half type."""
    across = min(columns // 8, 32)
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def fetch(to, x, first, stop, stride, row_stride: gl.constexpr, PAGE: gl.constexpr, table, pages):
    """Starts copying tokens first … stop - 1 of a cache to shared memory, zeros after them."""
    BN: gl.constexpr = to.shape[0]
    LAYOUT: gl.constexpr = rows_over_warps(to.shape[1], gl.num_warps())
    n = first + gl.arange(0, BN, gl.SliceLayout(1, LAYOUT))
    if PAGE:
        page = gl.load(table + n // PAGE, n < stop, 0)
        page = gl.where((page >= 0) & (page < pages), page, 0)  # nothing outside is read
        at = page.to(gl.int64) * stride + n % PAGE * row_stride
    else:
        at = n.to(gl.int64) * row_stride
    columns = gl.arange(0, to.shape[1], gl.SliceLayout(0, LAYOUT))
    pointers = x + at[:, None] + columns[None, :]
    async_copy.async_copy_global_to_shared(to, pointers, (n < stop)[:, None])


@gluon.jit
def fetch_query(to, x, i_row, M, H: gl.constexpr, stride_m, stride_h):
    """Starts copying the rows of a tile of queries to shared memory, zeros after the last."""
    BM: gl.constexpr = to.shape[0]
    LAYOUT: gl.constexpr = rows_over_warps(to.shape[1], gl.num_warps())
    row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, LAYOUT))
    at = (row // H).to(gl.int64) * stride_m + row % H * stride_h
    columns = gl.arange(0, to.shape[1], gl.SliceLayout(0, LAYOUT))
    pointers = x + at[:, None] + columns[None, :]
    async_copy.async_copy_global_to_shared(to, pointers, (row < M * H)[:, None])


@gluon.jit
def scores(s_q, s_qr, s_c, s_k, zeros):
    """Starts two products, of queries and a tile of tokens."""
    b_s = warpgroup_mma(s_q, s_c.permute((1, 0)), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(s_qr, s_k.permute((1, 0)), b_s, is_async=True)


@gluon.jit
def weigh(b_s, last, n, b_top):
    """The weights of tokens n, the factor that rescales the sums so far, and the new maximum."""
    b_s = gl.where(n[None, :] <= last[:, None], b_s, float("-inf"))
    top = gl.maximum(b_top, gl.max(b_s, 1))
    return gl.exp2(b_s - top[:, None]), gl.exp2(b_top - top), top


@gluon.jit
def add(b_part, b_p, s_p, s_c, GROUPS: gl.constexpr):
    """Starts the product of weights and a tile of tokens, on top of b_part."""
    if GROUPS > 1:
        s_p.store(b_p.to(s_c.dtype))
        fence_async_shared()
        barrier()
        return warpgroup_mma(s_p, s_c, b_part, is_async=True)
    else:
        LAYOUT: gl.constexpr = gl.DotOperandLayout(0, b_part.type.layout, 2)
        b_p = gl.convert_layout(b_p.to(s_c.dtype), LAYOUT)
        return warpgroup_mma(b_p, s_c, b_part, is_async=True)


@assembled
@gluon.jit(do_not_specialize=NOT_SPECIALIZED)
def decode_hopper_kernel(
    q, q_rope, latent, k_rope, lengths, left_padding, table, parts, units, lse, scale, q_b, q_m,
    q_h, r_b, r_m, r_h, c_b, k_b, table_b, pages, M, N, S, SIZES: gl.constexpr,
):  # fmt: skip
    """As `decode_kernel`; but parts are float16, in units of their rows (parts.py)."""
    H: gl.constexpr = SIZES.H
    R: gl.constexpr = SIZES.R
    P: gl.constexpr = SIZES.P
    c_n: gl.constexpr = SIZES.c_n
    k_n: gl.constexpr = SIZES.k_n
    PAGE: gl.constexpr = SIZES.PAGE
    BM: gl.constexpr = SIZES.BM
    BN: gl.constexpr = SIZES.BN
    if SIZES.PDL:
        gdc_launch_dependents()
    q_b, q_m, q_h = strides_of_query(q_b, q_m, q_h, SIZES.UNIT)
    r_b, r_m, r_h = strides_of_query(r_b, r_m, r_h, SIZES.UNIT)
    c_b, k_b = strides_of_cache(c_b, k_b, SIZES.UNIT)
    DTYPE: gl.constexpr = q.dtype.element_ty
    GROUPS: gl.constexpr = gl.num_warps() // 4
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BN // GROUPS, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, 256, 16])
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, R], DTYPE)
    ROPE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, P], DTYPE)
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BN], DTYPE)
    s_q = gl.allocate_shared_memory(DTYPE, [BM, R], WIDE)
    s_qr = gl.allocate_shared_memory(DTYPE, [BM, P], ROPE)
    s_c = gl.allocate_shared_memory(DTYPE, [2, BN, R], WIDE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, BN, P], ROPE)
    s_p = s_qr
    if GROUPS > 1:
        s_p = gl.allocate_shared_memory(DTYPE, [BM, BN], WEIGHTS)

    i_row, i_s, i_b, rows = program_place(M, S, H, BM)
    start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, BN)
    if PAGE:
        table += i_b * table_b
    else:
        latent += i_b * c_b
        k_rope += i_b * k_b

    fetch_query(s_q, q + i_b * q_b, i_row, M, H, q_m, q_h)
    fetch_query(s_qr, q_rope + i_b * r_b, i_row, M, H, r_m, r_h)
    fetch(s_c.index(0), latent, start, stop, c_b, c_n, PAGE, table, pages)
    fetch(s_k.index(0), k_rope, start, stop, k_b, k_n, PAGE, table, pages)
    async_copy.commit_group()

    o_row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, SCORES))
    o_n = gl.arange(0, BN, gl.SliceLayout(0, SCORES))
    last = gl.minimum(end - M + o_row // H, stop - 1)  # the last token that a row sees here
    zeros = gl.full([BM, BN], 0.0, gl.float32, SCORES)
    b_sums = zeros  # each thread adds up its own weights; the rows are summed at the end
    b_top = gl.full([BM], MIN_SCORE, gl.float32, gl.SliceLayout(1, SCORES))
    b_part = gl.full([BM, R], 0.0, gl.float32, PART)

    async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    b_s = scores(s_q, s_qr, s_c.index(0), s_k.index(0), zeros)
    fetch(s_c.index(1), latent, start + BN, stop, c_b, c_n, PAGE, table, pages)
    fetch(s_k.index(1), k_rope, start + BN, stop, k_b, k_n, PAGE, table, pages)
    async_copy.commit_group()
    b_s = warpgroup_mma_wait(0, deps=(b_s,))
    i = 0
    for n0 in range(start, stop - BN, BN):
        b_p, rescale, b_top = weigh(b_s * scale, last, n0 + o_n, b_top)
        b_sums = b_sums * rescale[:, None] + b_p
        b_part = b_part * gl.convert_layout(rescale, gl.SliceLayout(1, PART))[:, None]
        b_part = add(b_part, b_p, s_p, s_c.index(i), GROUPS)

        async_copy.wait_group(0)
        fence_async_shared()
        barrier()  # the next tile is there: its scores wait behind the product above
        b_s = scores(s_q, s_qr, s_c.index(1 - i), s_k.index(1 - i), zeros)
        # Of one warpgroup the product reads b_p in registers, which no wait here names: that they
        # are left alone until it is done is read in the machine code (bench/machine_code).
        warpgroup_mma_wait(2, deps=(b_top,))
        barrier()  # the product is done: this tile is no longer needed
        fetch(s_c.index(i), latent, n0 + 2 * BN, stop, c_b, c_n, PAGE, table, pages)
        fetch(s_k.index(i), k_rope, n0 + 2 * BN, stop, k_b, k_n, PAGE, table, pages)
        async_copy.commit_group()
        b_part, b_s = warpgroup_mma_wait(0, deps=(b_part, b_s))
        i = 1 - i
    async_copy.wait_group(0)
    n0 = start + gl.maximum(gl.cdiv(stop - start, BN) - 1, 0) * BN
    b_p, rescale, b_top = weigh(b_s * scale, last, n0 + o_n, b_top)
    b_sums = b_sums * rescale[:, None] + b_p
    b_part = b_part * gl.convert_layout(rescale, gl.SliceLayout(1, PART))[:, None]
    b_part = add(b_part, b_p, s_p, s_c.index(i), GROUPS)
    b_part = warpgroup_mma_wait(0, deps=(b_part,))

    b_sum = gl.sum(b_sums, 1)
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    gl.store(lse + at, b_top + gl.log2(b_sum), o_row < M * H)
    share = gl.convert_layout(1.0 / gl.where(b_sum > 0, b_sum, 1.0), gl.SliceLayout(1, PART))
    unit, inverse = unit_of(gl.max(gl.abs(b_part), 1) * share)
    gl.store(units + at, gl.convert_layout(unit, gl.SliceLayout(1, SCORES)), o_row < M * H)
    s_half = s_q._reinterpret(gl.float16, [BM, R], WIDE)
    barrier()  # all warps' products with the queries are done
    s_half.store((b_part * (share * inverse)[:, None]).to(gl.float16))
    barrier()
    STORED: gl.constexpr = rows_over_warps(R, gl.num_warps())
    zero = S >> 26  # the compiler does not know, or it would keep the places of queries for this
    o_row = i_row * BM + gl.arange(0, BM, gl.SliceLayout(1, STORED)) + zero
    at = ((o_row % H).to(gl.int64) * rows + i_b * M + o_row // H) * S + i_s
    store_part(parts, s_half, at * R, o_row < M * H, STORED)
