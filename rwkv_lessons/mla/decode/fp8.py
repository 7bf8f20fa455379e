"""The first kernel of a decode step for few heads and an FP8 cache, of DeepSeek's sizes, on Hopper.

A token's latent is four groups of 128 bytes (e4m3), each with a float32 scale. A byte becomes a
float16 without rounding, and scales never touch the tile: scores of a group are multiplied by the
token's scale in float32, and so are the weights before they are rounded for the second product.
Queries are float16 relative to the largest of a row, which has more bits than bfloat16.

Tokens are the rows of the scores, so that 16 heads need no padding to 64:

    scores [64 tokens, 16 heads] = tile [64, 512 + 64] · queriesᵀ        wgmma
    sum [16 heads, 512]         += weights [16, 64] · tile [64, 512]     mma.sync

Bytes wait in registers while the tile before is multiplied. The fence that wgmma needs waits for
all loads, so none may be on its way then: there is one fence a tile, just before the next loads.
The second product needs none. Two programs of four warps share an SM.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from ...runtime.compile_triton import assembled
from .parts import barrier
from .programs import tokens_of_split

R, P = 512, 64
GROUPS = gl.constexpr(4)  # of columns with a scale of their own
TOKENS = gl.constexpr(64)
MIN_SCORE = gl.constexpr(-1e30)
MIN_SCALE = gl.constexpr(2.0**-60)  # smaller ones count as this in the choice of a maximum
WARPS = 4
SIDE_BY_SIDE = 2  # programs on an SM
ROWS = gl.constexpr(16)  # of queries in a tile: heads, times query tokens
# 16 bytes of a thread. Eight threads write two rows at a time, in different banks.
WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
TILE_OF_WORDS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))

NUMBERS = [
    "scale", "first_b", "tokens_b", "table_b", "pages", "room", "M", "lists", "N", "S",
]  # fmt: skip


class Fp8Sizes(NamedTuple):
    """The constants of a launch."""

    H: int
    c_n: int  # the stride of a token of the latent, in words of 4 bytes
    s_n: int  # of its scales, in float32
    k_n: int  # of its keys with rope, in words
    s_g: int  # from the scale of a group to that of the next: 1, or 0 if there is only one
    PAGE: int  # tokens of a page; 0: no pages
    LISTED: bool  # whether `tokens` says which tokens are visible
    PDL: bool


@gluon.jit
def rows_of(n, stop, end, tokens, table, first, pages, PAGE: gl.constexpr, LISTED: gl.constexpr):
    """The rows of the cache with a split's tokens n; -1 for those that do not count."""
    counts = n < stop
    if LISTED:
        n = gl.load(tokens + n, counts, -1)
        counts = (n >= 0) & (n < end)
    if PAGE:
        page = gl.load(table + n // PAGE, counts, 0)
        page = gl.where((page >= 0) & (page < pages), page, 0)  # nothing outside is read
        row = page * PAGE + n % PAGE
    else:
        row = first + n
    return gl.where(counts, row, -1).to(gl.int32)


@gluon.jit
def words_of(x, row, stride: gl.constexpr, first: gl.constexpr):
    """32 words of each row, from the word `first` on; zeros for a row -1."""
    o_w = gl.arange(0, 32, gl.SliceLayout(0, WORDS))
    at = row.to(gl.int64)[:, None] * stride + o_w[None, :] + first
    return gl.load(x + at, (row >= 0)[:, None], 0)


@gluon.jit
def in_float16(x):
    """Words of four e4m3 as words of two float16, twice as many; no value is rounded."""
    convert: gl.constexpr = """{
        .reg .b16 low, high;
        .reg .b32 word;
        cvt.u16.u32 low, $2;
        shr.b32 word, $2, 16;
        cvt.u16.u32 high, word;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
    }"""
    low, high = gl.inline_asm_elementwise(
        convert, "=r,=r,r", [x], (gl.int32, gl.int32), is_pure=True, pack=1
    )
    return gl.join(low, high).reshape([x.shape[0], 2 * x.shape[1]])


@gluon.jit
def power_below(x):
    """The power of 2 in a float32 that is not negative: 2**n of 2**n · 1.…; 1 of 0."""
    bits = x.to(gl.int32, bitcast=True) & 0x7F800000
    return gl.where(bits > 0, bits.to(gl.float32, bitcast=True), 1.0)


@gluon.jit
def scales_of(scales, row, stride: gl.constexpr, g):
    return gl.load(scales + row.to(gl.int64) * stride + g, row >= 0, 0.0)


@assembled
@gluon.jit(do_not_specialize=NUMBERS)
def decode_fp8_kernel(
    q, q_rope, latent, scales, k_rope, lengths, left_padding, table, tokens, parts, lse, scale,
    first_b, tokens_b, table_b, pages, room, M, lists, N, S, SIZES: gl.constexpr,
):  # fmt: skip
    """Parts and log-sum-exps as those of `decode_kernel`.

    Args:
        q, q_rope: `[…, M, H, R]` and `[…, M, H, P]`, in one piece: with lists, M is 1.
        latent, k_rope: as words of 4 bytes.
        scales: float32, of a token 1 or GROUPS.
        first_b: from a sequence to the next, in rows of the cache. tokens_b: from a list to the
            next. lists: of a sequence.
        room: the tokens that a sequence can have. N: the same, or the entries of a list.
    """
    H: gl.constexpr = SIZES.H
    c_n: gl.constexpr = SIZES.c_n
    s_n: gl.constexpr = SIZES.s_n
    k_n: gl.constexpr = SIZES.k_n
    s_g: gl.constexpr = SIZES.s_g
    PAGE: gl.constexpr = SIZES.PAGE
    LISTED: gl.constexpr = SIZES.LISTED
    F16: gl.constexpr = gl.float16
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 4], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUM, 2)
    QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    ROPE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, ROWS], F16)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if SIZES.PDL:
        gdc_launch_dependents()
    s_q = gl.allocate_shared_memory(F16, [GROUPS, ROWS, 128], TILE)
    s_qr = gl.allocate_shared_memory(gl.bfloat16, [ROWS, 64], TILE)
    # One by one: the compiler puts a barrier between two stores to parts of one.
    s_0 = gl.allocate_shared_memory(gl.int32, [TOKENS, 64], TILE_OF_WORDS)
    s_1 = gl.allocate_shared_memory(gl.int32, [TOKENS, 64], TILE_OF_WORDS)
    s_2 = gl.allocate_shared_memory(gl.int32, [TOKENS, 64], TILE_OF_WORDS)
    s_3 = gl.allocate_shared_memory(gl.int32, [TOKENS, 64], TILE_OF_WORDS)
    s_k = gl.allocate_shared_memory(gl.int32, [TOKENS, 32], TILE_OF_WORDS)
    p_0 = gl.allocate_shared_memory(F16, [TOKENS, ROWS], WEIGHTS)
    p_1 = gl.allocate_shared_memory(F16, [TOKENS, ROWS], WEIGHTS)
    p_2 = gl.allocate_shared_memory(F16, [TOKENS, ROWS], WEIGHTS)
    p_3 = gl.allocate_shared_memory(F16, [TOKENS, ROWS], WEIGHTS)
    s_rescale = gl.allocate_shared_memory(gl.float32, [ROWS], FLAT)

    tiles = gl.cdiv(M * H, ROWS)
    i_row, i_s = gl.program_id(0) % tiles * ROWS, gl.program_id(0) // tiles % S
    i_q = (gl.program_id(0) // tiles // S).to(gl.int64)  # a sequence, or a list
    i_b = i_q
    if LISTED:
        i_b = i_q // lists
        tokens += i_q * tokens_b
        start, stop, _ = tokens_of_split(None, None, i_q, i_s, N, S, TOKENS)
        _, _, end = tokens_of_split(lengths, None, i_b, 0, room, 1, TOKENS)
    else:
        start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, TOKENS)
    if PAGE:
        table += i_b * table_b
    first = i_b * first_b

    o_w = gl.arange(0, TOKENS, gl.SliceLayout(1, WORDS))
    o_n = gl.arange(0, TOKENS, gl.SliceLayout(1, SCORES))
    row = rows_of(start + o_w, stop, end, tokens, table, first, pages, PAGE, LISTED)
    w_0, w_1 = words_of(latent, row, c_n, 0), words_of(latent, row, c_n, 32)
    w_2, w_3 = words_of(latent, row, c_n, 64), words_of(latent, row, c_n, 96)
    w_k = words_of(k_rope, row, k_n, 0)
    row = rows_of(start + o_n, stop, end, tokens, table, first, pages, PAGE, LISTED)
    f_0, f_1 = scales_of(scales, row, s_n, 0), scales_of(scales, row, s_n, s_g)
    f_2, f_3 = scales_of(scales, row, s_n, 2 * s_g), scales_of(scales, row, s_n, 3 * s_g)
    next_w = rows_of(start + TOKENS + o_w, stop, end, tokens, table, first, pages, PAGE, LISTED)
    next_n = rows_of(start + TOKENS + o_n, stop, end, tokens, table, first, pages, PAGE, LISTED)

    o_row = i_row + gl.arange(0, ROWS, gl.SliceLayout(1, QUERY))
    inside = (o_row < M * H)[:, None]
    at = (i_q * M * H + o_row)[:, None] * 512 + gl.arange(0, 128, gl.SliceLayout(0, QUERY))[None, :]
    largest = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, QUERY))
    for g in gl.static_range(GROUPS):
        b_q = gl.load(q + at + g * 128, inside, 0.0).to(gl.float32)
        largest = gl.maximum(largest, gl.max(gl.maximum(b_q, -b_q), 1))
    unit = power_below(largest)
    for g in gl.static_range(GROUPS):
        b_q = gl.load(q + at + g * 128, inside, 0.0).to(gl.float32)
        s_q.index(g).store((b_q / unit[:, None]).to(F16))
    unit = gl.convert_layout(unit, gl.SliceLayout(0, SCORES))
    o_row = i_row + gl.arange(0, ROWS, gl.SliceLayout(1, ROPE))
    at = (i_q * M * H + o_row)[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, ROPE))[None, :]
    s_qr.store(gl.load(q_rope + at, (o_row < M * H)[:, None], 0.0))

    o_row = i_row + gl.arange(0, ROWS, gl.SliceLayout(0, SCORES))
    last = end - M + o_row // H  # the last token that a row of queries sees
    zeros = gl.full([TOKENS, ROWS], 0.0, gl.float32, SCORES)
    b_sums = zeros  # each thread adds up its own weights; heads are summed up at the end
    b_top = gl.full([ROWS], MIN_SCORE, gl.float32, gl.SliceLayout(0, SCORES))
    b_0 = gl.full([ROWS, 128], 0.0, gl.float32, SUM)
    b_1, b_2, b_3 = b_0, b_0, b_0
    for n0 in range(start, stop, TOKENS):
        barrier()  # no warp reads the tile before any more
        s_0.store(in_float16(w_0))
        s_1.store(in_float16(w_1))
        s_2.store(in_float16(w_2))
        s_3.store(in_float16(w_3))
        s_k.store(w_k)
        fence_async_shared()
        barrier()
        c_0 = s_0._reinterpret(F16, [TOKENS, 128], TILE)
        c_1 = s_1._reinterpret(F16, [TOKENS, 128], TILE)
        c_2 = s_2._reinterpret(F16, [TOKENS, 128], TILE)
        c_3 = s_3._reinterpret(F16, [TOKENS, 128], TILE)
        b_k = s_k._reinterpret(gl.bfloat16, [TOKENS, 64], TILE)
        q_0, q_1 = s_q.index(0).permute((1, 0)), s_q.index(1).permute((1, 0))
        q_2, q_3 = s_q.index(2).permute((1, 0)), s_q.index(3).permute((1, 0))
        x_0 = warpgroup_mma(c_0, q_0, zeros, use_acc=False, is_async=True)
        x_1 = warpgroup_mma(c_1, q_1, zeros, use_acc=False, is_async=True)
        x_2 = warpgroup_mma(c_2, q_2, zeros, use_acc=False, is_async=True)
        x_3 = warpgroup_mma(c_3, q_3, zeros, use_acc=False, is_async=True)
        x_k = warpgroup_mma(b_k, s_qr.permute((1, 0)), zeros, use_acc=False, is_async=True)

        w_0, w_1 = words_of(latent, next_w, c_n, 0), words_of(latent, next_w, c_n, 32)
        w_2, w_3 = words_of(latent, next_w, c_n, 64), words_of(latent, next_w, c_n, 96)
        w_k = words_of(k_rope, next_w, k_n, 0)
        n = n0 + 2 * TOKENS
        next_w = rows_of(n + o_w, stop, end, tokens, table, first, pages, PAGE, LISTED)
        visible = (row >= 0)[:, None]
        if not LISTED:
            visible = visible & ((n0 + o_n)[:, None] <= last[None, :])
        row = next_n
        next_n = rows_of(n + o_n, stop, end, tokens, table, first, pages, PAGE, LISTED)

        x_0, x_1, x_2, x_3, x_k = warpgroup_mma_wait(0, deps=(x_0, x_1, x_2, x_3, x_k))
        b_s = x_0 * f_0[:, None] + x_1 * f_1[:, None] + x_2 * f_2[:, None] + x_3 * f_3[:, None]
        b_s = gl.where(visible, (b_s * unit[None, :] + x_k) * scale, float("-inf"))
        # Relative to a maximum of weight times scale, no weight is too large for float16.
        most = gl.maximum(gl.maximum(f_0, f_1), gl.maximum(f_2, f_3))
        least = gl.minimum(gl.minimum(f_0, f_1), gl.minimum(f_2, f_3))
        more = gl.log2(gl.maximum(gl.maximum(most, -least), MIN_SCALE))[:, None]
        top = gl.maximum(b_top, gl.max(b_s + more, 0))
        b_p, rescale = gl.exp2(b_s - top[None, :]), gl.exp2(b_top - top)
        b_top = top
        b_sums = b_sums * rescale[None, :] + b_p
        p_0.store((b_p * f_0[:, None]).to(F16))
        p_1.store((b_p * f_1[:, None]).to(F16))
        p_2.store((b_p * f_2[:, None]).to(F16))
        p_3.store((b_p * f_3[:, None]).to(F16))
        s_rescale.store(rescale)
        f_0, f_1 = scales_of(scales, row, s_n, 0), scales_of(scales, row, s_n, s_g)
        f_2, f_3 = scales_of(scales, row, s_n, 2 * s_g), scales_of(scales, row, s_n, 3 * s_g)
        barrier()
        rescale = s_rescale.load(gl.SliceLayout(1, SUM))[:, None]
        b_0 = mma_v2(p_0.permute((1, 0)).load(LEFT), c_0.load(RIGHT), b_0 * rescale)
        b_1 = mma_v2(p_1.permute((1, 0)).load(LEFT), c_1.load(RIGHT), b_1 * rescale)
        b_2 = mma_v2(p_2.permute((1, 0)).load(LEFT), c_2.load(RIGHT), b_2 * rescale)
        b_3 = mma_v2(p_3.permute((1, 0)).load(LEFT), c_3.load(RIGHT), b_3 * rescale)

    b_sum = gl.sum(b_sums, 0)
    all_rows = gl.num_programs(0) // tiles // S * M
    at = ((o_row % H).to(gl.int64) * all_rows + i_q * M + o_row // H) * S + i_s
    gl.store(lse + at, b_top + gl.log2(b_sum), o_row < M * H)
    b_sum = gl.convert_layout(gl.where(b_sum > 0, b_sum, 1.0), gl.SliceLayout(1, SUM))[:, None]
    o_row = i_row + gl.arange(0, ROWS, gl.SliceLayout(1, SUM))
    at = ((o_row % H).to(gl.int64) * all_rows + i_q * M + o_row // H) * S + i_s
    at = at[:, None] * 512 + gl.arange(0, 128, gl.SliceLayout(0, SUM))[None, :]
    inside = (o_row < M * H)[:, None]
    gl.store(parts + at, b_0 / b_sum, inside)
    gl.store(parts + at + 128, b_1 / b_sum, inside)
    gl.store(parts + at + 256, b_2 / b_sum, inside)
    gl.store(parts + at + 384, b_3 / b_sum, inside)
