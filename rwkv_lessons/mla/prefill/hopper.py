"""The expanded form of forward.py in Gluon, for Hopper: some warps load, and two groups attend.

A program has 128 query tokens of one head at a time, and takes one such tile after the other, as
many programs as there are SMs. 12 warps:

    4       load queries, and keys and values in tiles of 128 tokens (`cp.async`, zeros instead of
            tokens that nobody sees), one tile ahead
    4 + 4   attend, 64 query tokens each

While a group makes weights of the scores of one tile, its tensor cores add up the values of the
tile before, and the other group's do what they have to. While both write their results, the next
queries and keys are on their way.
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

from ...runtime.compile_triton import assembled
from ..decode.hopper import barrier, fetch

HEAD_SIZES = ((64, 64), (128, 128))  # of keys without rope, and of values
ROPE_SIZES = (16, 32, 64)
NUMBERS = ["scale", "q_b", "q_h", "r_b", "r_h", "k_b", "k_h", "kr_b", "v_b", "v_h"]
NUMBERS += ["items", "M", "N", "H", "BH", "GROUP"]
LN2 = tl.constexpr(0.6931471805599453)
MIN_SCORE = tl.constexpr(-1e30)
ROWS = tl.constexpr(64)  # query tokens of a group
TOKENS = tl.constexpr(128)  # of a tile of keys
WARPS = tl.constexpr(4)  # of each of the three roles
REGISTERS = tl.constexpr(208)  # of a group; 88 are left to load
STAGES = tl.constexpr(2)  # tiles of keys and of values in shared memory


@gluon.jit
def tile_of(program, lengths, left_padding, M, N, BH, H, GROUP):
    """Where a tile of queries is: its first token, its sequence and head, and its keys.

    One group of heads after the other; of each, the last queries, which have the most keys, first.
    """
    tiles = gl.cdiv(M, 2 * ROWS)
    group = program // (GROUP * tiles) * GROUP
    size = gl.minimum(GROUP, BH - group)
    program = program - group * tiles
    i_m = (tiles - 1 - program // size) * 2 * ROWS
    i_bh = group + program % size
    i_b = (i_bh // H).to(gl.int64)
    i_h = (i_bh % H).to(gl.int64)
    start = 0
    end = N
    if lengths is not None:
        end = gl.maximum(gl.minimum(gl.load(lengths + i_b), N), 0).to(gl.int32)
    if left_padding is not None:
        start = gl.minimum(gl.maximum(gl.load(left_padding + i_b), 0), N).to(gl.int32)
    stop = gl.minimum(end - M + i_m + 2 * ROWS, end)
    count = gl.maximum(gl.cdiv(stop - start, TOKENS), 1)
    return i_m, i_b, i_h, start, stop, end, count


@gluon.jit
def load_tiles(
    q, q_rope, k, k_rope, v, lengths, left_padding, s_q, s_qr, s_k, s_kr, s_v, q_full, q_empty,
    k_full, k_empty, v_full, v_empty, items, q_b, q_h, r_b, r_h, k_b, k_h, kr_b, v_b, v_h, M, N, H,
    BH, GROUP, q_m: gl.constexpr, r_m: gl.constexpr, k_n: gl.constexpr, kr_n: gl.constexpr,
    v_n: gl.constexpr,
):  # fmt: skip
    """The warps that load: keys, queries with the first of them, and values."""
    t = 0
    i_q = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        i_m, i_b, i_h, start, stop, end, count = tile_of(
            item, lengths, left_padding, M, N, BH, H, GROUP
        )
        for j in range(count):
            i = t % STAGES
            n = start + (count - 1 - j) * TOKENS  # the last keys first
            mbarrier.wait(k_empty.index(i), (t // STAGES + 1) % 2)
            fetch(s_k.index(i), k + i_b * k_b + i_h * k_h, n, stop, 0, k_n, 0, None, 0)
            fetch(s_kr.index(i), k_rope + i_b * kr_b, n, stop, 0, kr_n, 0, None, 0)
            async_copy.mbarrier_arrive(k_full.index(i), increment_count=False)
            if j == 0:
                mbarrier.wait(q_empty, (i_q + 1) % 2)
                for g in gl.static_range(2):
                    m = i_m + g * ROWS
                    fetch(s_q.index(g), q + i_b * q_b + i_h * q_h, m, M, 0, q_m, 0, None, 0)
                    fetch(s_qr.index(g), q_rope + i_b * r_b + i_h * r_h, m, M, 0, r_m, 0, None, 0)
                async_copy.mbarrier_arrive(q_full, increment_count=False)
            mbarrier.wait(v_empty.index(i), (t // STAGES + 1) % 2)
            fetch(s_v.index(i), v + i_b * v_b + i_h * v_h, n, stop, 0, v_n, 0, None, 0)
            async_copy.mbarrier_arrive(v_full.index(i), increment_count=False)
            t += 1
        i_q += 1
    async_copy.wait_group(0)


@gluon.jit
def start_scores(s_q, s_qr, s_k, s_kr, k_full, t, zeros):
    """Starts the products of queries and the keys of tile t, once they are there."""
    i = t % STAGES
    mbarrier.wait(k_full.index(i), t // STAGES % 2)
    fence_async_shared()
    b_s = warpgroup_mma(s_q, s_k.index(i).permute((1, 0)), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(s_qr, s_kr.index(i).permute((1, 0)), b_s, is_async=True)


@gluon.jit
def weigh(b_s, b_max, b_sum, n0, last, all_see, scale):
    """Weights, the new maximum, the new sum of weights, and what the sums before are times."""
    if n0 + TOKENS > all_see:
        n = n0 + gl.arange(0, TOKENS, gl.SliceLayout(0, b_s.type.layout))
        b_s = gl.where(n[None, :] <= last[:, None], b_s, float("-inf"))
    b_new = gl.maximum(b_max, gl.max(b_s, 1) * scale)
    b_p = gl.exp2(b_s * scale - b_new[:, None])
    rescale = gl.exp2(b_max - b_new)
    return b_p, b_new, b_sum * rescale + gl.sum(b_p, 1), rescale


@gluon.jit
def attend_tiles(
    o, lse, lengths, left_padding, s_q, s_qr, s_k, s_kr, s_v, s_sum, q_full, q_empty, k_full,
    k_empty, v_full, v_empty, items, M, N, H, BH, GROUP, scale, WHICH: gl.constexpr,
):  # fmt: skip
    """One of the two groups."""
    V: gl.constexpr = s_v.index(0).shape[1]
    DTYPE: gl.constexpr = s_v.index(0).dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    zeros = gl.full([ROWS, TOKENS], 0.0, gl.float32, SCORES)
    s_q, s_qr, s_sum = s_q.index(WHICH), s_qr.index(WHICH), s_sum.index(WHICH)
    t = 0
    i_q = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        i_m, i_b, i_h, start, stop, end, count = tile_of(
            item, lengths, left_padding, M, N, BH, H, GROUP
        )
        i_m += WHICH * ROWS
        last = gl.minimum(end - M + i_m + gl.arange(0, ROWS, ROW), stop - 1)
        all_see = gl.minimum(end - M + i_m + 1, stop)
        b_max = gl.full([ROWS], MIN_SCORE, gl.float32, ROW)
        b_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
        b_o = gl.full([ROWS, V], 0.0, gl.float32, SUM)
        mbarrier.wait(q_full, i_q % 2)
        b_s = start_scores(s_q, s_qr, s_k, s_kr, k_full, t, zeros)
        b_s = warpgroup_mma_wait(0, deps=(b_s,))
        barrier()
        mbarrier.arrive(k_empty.index(t % STAGES))
        n0 = start + (count - 1) * TOKENS
        b_p, b_max, b_sum, rescale = weigh(b_s, b_max, b_sum, n0, last, all_see, scale)
        b_w = gl.convert_layout(b_p.to(DTYPE), WEIGHTS)
        for _ in range(1, count):
            b_s = start_scores(s_q, s_qr, s_k, s_kr, k_full, t + 1, zeros)
            mbarrier.wait(v_full.index(t % STAGES), t // STAGES % 2)
            fence_async_shared()
            b_o = warpgroup_mma(b_w, s_v.index(t % STAGES), b_o, is_async=True)
            b_s = warpgroup_mma_wait(1, deps=(b_s,))
            barrier()
            mbarrier.arrive(k_empty.index((t + 1) % STAGES))
            n0 -= TOKENS
            b_p, b_max, b_sum, rescale = weigh(b_s, b_max, b_sum, n0, last, all_see, scale)
            b_next = gl.convert_layout(b_p.to(DTYPE), WEIGHTS)
            s_sum.store(b_sum)  # nobody reads it: ptxas would have the wait in front of the weights
            barrier()
            b_o, b_w, b_next = warpgroup_mma_wait(0, deps=(b_o, b_w, b_next))
            barrier()
            mbarrier.arrive(v_empty.index(t % STAGES))
            b_o = b_o * gl.convert_layout(rescale, gl.SliceLayout(1, SUM))[:, None]
            b_w = b_next
            t += 1
        mbarrier.arrive(q_empty)
        mbarrier.wait(v_full.index(t % STAGES), t // STAGES % 2)
        fence_async_shared()
        b_o = warpgroup_mma(b_w, s_v.index(t % STAGES), b_o, is_async=True)
        b_o = warpgroup_mma_wait(0, deps=(b_o, b_w))[0]
        barrier()
        mbarrier.arrive(v_empty.index(t % STAGES))
        t += 1
        i_q += 1

        o_m = i_m + gl.arange(0, ROWS, ROW)
        at = (i_b * M + o_m) * H + i_h
        b_max = gl.where(b_sum > 0, b_max, float("-inf"))  # a row that sees nothing: 0 and -inf
        b_sum = gl.where(b_sum > 0, b_sum, 1.0)
        gl.store(lse + at, (b_max + gl.log2(b_sum)) * LN2, o_m < M)
        b_o = b_o * gl.convert_layout(1.0 / b_sum, gl.SliceLayout(1, SUM))[:, None]
        o_m = i_m + gl.arange(0, ROWS, gl.SliceLayout(1, SUM))
        at = ((i_b * M + o_m) * H + i_h)[:, None] * V
        at = at + gl.arange(0, V, gl.SliceLayout(0, SUM))[None, :]
        gl.store(o + at, b_o.to(DTYPE), (o_m < M)[:, None])


@assembled
@gluon.jit(do_not_specialize=NUMBERS)
def attend_hopper_kernel(
    q, q_rope, k, k_rope, v, lengths, left_padding, o, lse, scale, q_b, q_h, r_b, r_h, k_b, k_h,
    kr_b, v_b, v_h, items, M, N, H, BH, GROUP, q_m: gl.constexpr, r_m: gl.constexpr,
    k_n: gl.constexpr, kr_n: gl.constexpr, v_n: gl.constexpr, K: gl.constexpr, P: gl.constexpr,
    V: gl.constexpr,
):  # fmt: skip
    """Strides q_b … v_h are in units of 16 elements, q_m … in elements, multiples of 16.

    items: tiles of 128 queries, of all sequences and heads.
    """
    q_b, q_h = q_b.to(gl.int64) * 16, q_h.to(gl.int64) * 16
    r_b, r_h = r_b.to(gl.int64) * 16, r_h.to(gl.int64) * 16
    k_b, k_h = k_b.to(gl.int64) * 16, k_h.to(gl.int64) * 16
    v_b, v_h, kr_b = v_b.to(gl.int64) * 16, v_h.to(gl.int64) * 16, kr_b.to(gl.int64) * 16
    DTYPE: gl.constexpr = q.dtype.element_ty
    L_K: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, K], DTYPE)
    L_P: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, P], DTYPE)
    L_V: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, V], DTYPE)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    s_q = gl.allocate_shared_memory(DTYPE, [2, ROWS, K], L_K)
    s_qr = gl.allocate_shared_memory(DTYPE, [2, ROWS, P], L_P)
    s_k = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, K], L_K)
    s_kr = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, P], L_P)
    s_v = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, V], L_V)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s_sum = gl.allocate_shared_memory(gl.float32, [2, ROWS], FLAT)
    q_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(q_full, count=WARPS * 32)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=WARPS * 32)
        mbarrier.init(v_full.index(i), count=WARPS * 32)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (load_tiles, (
                q, q_rope, k, k_rope, v, lengths, left_padding, s_q, s_qr, s_k, s_kr, s_v, q_full,
                q_empty, k_full, k_empty, v_full, v_empty, items, q_b, q_h, r_b, r_h, k_b, k_h,
                kr_b, v_b, v_h, M, N, H, BH, GROUP, q_m, r_m, k_n, kr_n, v_n,
            )),
            (attend_tiles, (
                o, lse, lengths, left_padding, s_q, s_qr, s_k, s_kr, s_v, s_sum, q_full, q_empty,
                k_full, k_empty, v_full, v_empty, items, M, N, H, BH, GROUP, scale, 0,
            )),
            (attend_tiles, (
                o, lse, lengths, left_padding, s_q, s_qr, s_k, s_kr, s_v, s_sum, q_full, q_empty,
                k_full, k_empty, v_full, v_empty, items, M, N, H, BH, GROUP, scale, 1,
            )),
        ],
        [WARPS, WARPS],
        [REGISTERS, REGISTERS],
    )  # fmt: skip
