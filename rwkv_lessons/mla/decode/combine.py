"""The second kernel of forward.py in Gluon, for Hopper: what need not wait is there first.

A program has 64 rows, of sequences and splits, of one head. Its w_v is loaded into shared memory
while the first kernel still runs (programmatic dependent launch). Then the parts are asked for, as
many pieces of 128 columns of the latent as find room. Each piece goes through registers, weighted
and cut into two of w_v's dtype, into the product with w_v.
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
from triton.language.extra.cuda import gdc_wait

from ...runtime.compile_triton import assembled
from .hopper import rows_over_warps
from .parts import barrier

ROWS = 64  # sequences × splits: a tile of the tensor cores
COLUMNS = tl.constexpr(128)  # of the latent at a time
WARPS = 8
MIN_SCORE = tl.constexpr(-1e30)
LN2 = tl.constexpr(0.6931471805599453)


def pieces_in_flight(R, V, gpu, bytes_of_part):
    """How many pieces of parts fit beside w_v, up to all; 0 where this kernel cannot be used."""
    pieces = R // 128 if R % 128 == 0 and V in (64, 128) else 0
    room = gpu.shared_bytes - 1024 - 2 * R * V
    fit = max(0, room // (bytes_of_part * ROWS * 128))
    return min(pieces, fit) if gpu.capability == (9, 0) else 0


@gluon.jit
def fetch_piece(to, parts, at, inside, r0, FEW: gl.constexpr):
    """Starts copying columns r0 … of rows of the parts, whose numbers are `at`."""
    LAYOUT: gl.constexpr = parts_over_warps(gl.num_warps(), FEW)
    pointers = parts + at[:, None] + (r0 + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT)))[None]
    async_copy.async_copy_global_to_shared(to, pointers, inside[:, None])
    async_copy.commit_group()


@gluon.constexpr_function
def parts_over_warps(warps, few):
    """A layout in which a warp has whole rows of 128, and a thread `few` neighbours, 16 bytes."""
    return gl.BlockedLayout([1, few], [few // 4, 128 // few], [warps, 1], [1, 0])


@assembled
@gluon.jit(do_not_specialize=["rows", "S"])
def combine_hopper_kernel(
    parts, units, part_lse, w_v, o, lse, rows, S, w_h: gl.constexpr, w_n: gl.constexpr,
    H: gl.constexpr, R: gl.constexpr, V: gl.constexpr, BM: gl.constexpr, BS: gl.constexpr,
    STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Same arguments and results as `combine_kernel`: BM rows, and BS splits of each, 64 in all."""
    BX: gl.constexpr = BM * BS
    PIECES: gl.constexpr = R // COLUMNS
    DTYPE: gl.constexpr = w_v.dtype.element_ty
    # Of a float32, what DTYPE can hold: rounding a number twice would take slower instructions.
    MASK: gl.constexpr = -(1 << 16) if DTYPE == gl.bfloat16 else -(1 << 13)
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, V // 2, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    COPY: gl.constexpr = rows_over_warps(COLUMNS, gl.num_warps())
    OF_PART: gl.constexpr = parts.dtype.element_ty
    FEW: gl.constexpr = 4 if OF_PART == gl.float32 else 8  # elements in 16 bytes
    PARTS: gl.constexpr = parts_over_warps(gl.num_warps(), FEW)
    SPLITS: gl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // min(BS, 32), min(BS, 32)], [8, 1], [1, 0]
    )
    OUT: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [8, 1], [1, 0])
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([V, COLUMNS], DTYPE)
    # 8 elements of a row stay together, and 4 or 8 rows side by side: no bank serves two at once.
    TURNED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, FEW, [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s_w = gl.allocate_shared_memory(DTYPE, [PIECES, V, COLUMNS], WIDE)
    s_x = gl.allocate_shared_memory(OF_PART, [STAGES, BX, COLUMNS], TURNED)
    s_weight = gl.allocate_shared_memory(gl.float32, [BX], FLAT)

    i_h = gl.program_id(0) % H
    i_row = gl.program_id(0) // H * BM
    o_v = gl.arange(0, V, gl.SliceLayout(1, COPY))
    at_w = i_h.to(gl.int64) * w_h + o_v.to(gl.int64) * w_n
    for c in gl.static_range(PIECES):
        columns = c * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, COPY))
        inside = (o_v < V)[:, None]
        pointers = w_v + at_w[:, None] + columns[None, :]
        async_copy.async_copy_global_to_shared(s_w.index(c), pointers, inside)
    async_copy.commit_group()
    if PDL:
        gdc_wait()

    o_x = gl.arange(0, BX, gl.SliceLayout(1, PARTS))
    at = ((i_h.to(gl.int64) * rows + i_row + o_x // BS) * S + o_x % BS) * R
    inside = (i_row + o_x // BS < rows) & (o_x % BS < S)
    for c in gl.static_range(STAGES):
        fetch_piece(s_x.index(c), parts, at, inside, c * COLUMNS, FEW)

    o_row = i_row + gl.arange(0, BM, gl.SliceLayout(1, SPLITS))
    o_s = gl.arange(0, BS, gl.SliceLayout(0, SPLITS))
    at_lse = (i_h.to(gl.int64) * rows + o_row)[:, None] * S + o_s[None, :]
    m_lse = (o_row < rows)[:, None] & (o_s < S)[None, :]
    b_lse = gl.load(part_lse + at_lse, m_lse, float("-inf"))
    top = gl.maximum(gl.max(b_lse, 1), MIN_SCORE)
    b_weight = gl.exp2(b_lse - top[:, None])
    total = gl.sum(b_weight, 1)
    gl.store(lse + o_row.to(gl.int64) * H + i_h, (top + gl.log2(total)) * LN2, o_row < rows)
    b_weight = b_weight / gl.where(total > 0, total, 1.0)[:, None]
    if units is not None:
        b_weight *= gl.load(units + at_lse, m_lse, 0.0)
    s_weight.store(gl.convert_layout(b_weight.reshape([BX]), gl.SliceLayout(1, PARTS)))
    barrier()
    weight = s_weight.load(gl.SliceLayout(1, LEFT))

    b_v = gl.full([BX, V], 0.0, gl.float32, SUM)
    for c in gl.static_range(PIECES):
        if c + STAGES <= PIECES:
            async_copy.wait_group(STAGES - 1)
        else:
            async_copy.wait_group(PIECES - 1 - c)
        fence_async_shared()
        barrier()
        b_part = s_x.index(c % STAGES).load(LEFT).to(gl.float32) * weight[:, None]
        b_high = (b_part.to(gl.int32, bitcast=True) & MASK).to(gl.float32, bitcast=True)
        coarse, fine = b_high.to(DTYPE), (b_part - b_high).to(DTYPE)
        s_right = s_w.index(c).permute((1, 0))
        b_v = warpgroup_mma(coarse, s_right, b_v, is_async=True)
        b_v = warpgroup_mma(fine, s_right, b_v, is_async=True)
        if c + STAGES < PIECES:
            barrier()
            fetch_piece(s_x.index(c % STAGES), parts, at, inside, (c + STAGES) * COLUMNS, FEW)
        b_v = warpgroup_mma_wait(0, deps=(b_v, coarse, fine))[0]

    if BS > 1:
        b_o = gl.convert_layout(gl.sum(b_v.reshape([BM, BS, V]), 1), OUT)
    else:
        b_o = gl.convert_layout(b_v, OUT)
    o_row = i_row + gl.arange(0, BM, gl.SliceLayout(1, OUT))
    o_v = gl.arange(0, V, gl.SliceLayout(0, OUT))
    at = o_row.to(gl.int64) * H + i_h
    gl.store(o + at[:, None] * V + o_v[None, :], b_o.to(DTYPE), (o_row < rows)[:, None])
