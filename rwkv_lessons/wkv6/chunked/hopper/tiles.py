"""Tiles of 64 × 64 for kernels in Gluon, on Hopper: layouts, and conversions that ptxas does well.

These are inline PTX for a pair of bfloat16 at a time, for the reason in sequences/gluon_tiles.py.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ....runtime import devices
from ....sequences.gluon_tiles import rounded, widened
from ....sequences.hopper_tiles import C as C
from ....sequences.hopper_tiles import tiles as tiles

TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))  # in shared memory

# A block of a state in float16, [key, value], in the registers of four warps: 4 values side by side
# in each thread, 16 in four threads.
OF_8_BYTES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]],
        [[0, 8], [0, 4], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 64],
    )
)  # fmt: skip
# Warps × their keys: as the rows of a product, and one a thread.
AS_ROWS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 8]], [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [[1, 0], [2, 0]], [], [4, 16]
    )
)
ONE_A_THREAD = gl.constexpr(
    gl.DistributedLinearLayout(
        [], [[0, 1], [0, 2], [0, 4], [0, 8], [0, 0]], [[1, 0], [2, 0]], [], [4, 16]
    )
)
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name in Triton 3.7, and in 3.6


@gluon.constexpr_function
def product_of(columns):
    """The layout of a product of 64 rows and so many columns, in the registers of four warps."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def in_float32(x):
    """A tile of 16 bits in float32."""
    if x.dtype == gl.bfloat16:
        return widened(x)
    else:
        return x.to(gl.float32)


@gluon.jit
def at_least(x, least):
    """The larger of a tile of 16 bits and `least`, element by element; NaN stays."""
    of_bfloat16: gl.constexpr = "max.NaN.bf16x2 $0, $1, $2;"
    of_float16: gl.constexpr = "max.NaN.f16x2 $0, $1, $2;"
    larger: gl.constexpr = of_bfloat16 if x.dtype == gl.bfloat16 else of_float16
    least = gl.full(x.shape, least, x.dtype, x.type.layout)
    return gl.inline_asm_elementwise(larger, "=r,r,r", [x, least], x.dtype, is_pure=True, pack=2)


@gluon.jit
def to_float16(x):
    """A float32 tile in float16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.float16, is_pure=True, pack=2
    )


@gluon.jit
def in_two(x):
    """A float32 tile as two of bfloat16, which hold 16 of its 24 bits.

    In PTX, since Triton 3.6 makes x - high a fused multiply-add, and negates high before it.
    """
    pieces: gl.constexpr = """{
        .reg .b32 first, second;
        cvt.rn.bf16x2.f32 $0, $3, $2;
        shl.b32 first, $0, 16;
        and.b32 second, $0, 0xffff0000;
        sub.f32 first, $2, first;
        sub.f32 second, $3, second;
        cvt.rn.bf16x2.f32 $1, second, first;
    }"""
    return gl.inline_asm_elementwise(
        pieces, "=&r,=&r,r,r", [x], (gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
    )


@gluon.jit
def difference(x, y):
    """x - y of float32 tiles, in PTX for the reason in `in_two`."""
    both: gl.constexpr = "sub.f32 $0, $2, $4; sub.f32 $1, $3, $5;"
    return gl.inline_asm_elementwise(
        both, "=&f,=&f,f,f,f,f", [x, y], gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def in_two_of_float16(x):
    """A float32 tile as two of float16, which hold 22 bits of a number of at least 2^-2."""
    high = to_float16(x)
    return high, to_float16(difference(x, high.to(gl.float32)))


@gluon.jit
def left_over(x):
    """What rounding a float32 tile to bfloat16 takes from it."""
    return x - widened(rounded(x))


@gluon.jit
def cut(x):
    """The upper 16 bits of a float32 tile as they are, in bfloat16, and what is left of it."""
    high = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [x], gl.bfloat16, is_pure=True, pack=2
    )
    return high, x - widened(high)


@gluon.jit
def now(x):
    """x, computed where this stands, and not just before its use.

    LLVM would put it there: with all operands of a sum kept until then; or after the fence before a
    product that adds to x, and ptxas then waits after every single product.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $2; mov.b32 $1, $3;", "=f,=f,f,f", [x], gl.float32, is_pure=False, pack=2
    )


@gluon.jit
def as_left_operand(x):
    """A tile as the left factor of a product, for which a thread already has what it needs.

    Not for a tile from before a loop: ptxas 12.8 does not keep its registers for the next round.
    """
    return gl.convert_layout(x, gl.DotOperandLayout(0, x.type.layout, 2))


# Masks of int16 tiles, a pair at a time: prmt.b32 spreads bytes, or, with an 8 more, their signs.
LOWER, UPPER = gl.constexpr("0x2200"), gl.constexpr("0x3311")
SIGN_OF_LOWER, SIGN_OF_UPPER = gl.constexpr("0xaa88"), gl.constexpr("0xbb99")


@gluon.jit
def by_masks(x, on, masks, of_x: gl.constexpr, of_on: gl.constexpr):
    """A tile of 16 bits under one mask, or `on` under another."""
    either: gl.constexpr = (
        "{ .reg .b32 one, other;"
        "prmt.b32 one, $3, 0, " + of_x + ";"
        "prmt.b32 other, $3, 0, " + of_on + ";"
        "and.b32 one, one, $1;"
        "and.b32 other, other, $2;"
        "or.b32 $0, one, other; }"
    )
    x, on = gl.broadcast(x, on)
    return gl.inline_asm_elementwise(
        either, "=r,r,r,r", [x, on, masks], x.dtype, is_pure=True, pack=2
    )


@gluon.jit
def below_and_on_diagonal(x, on, mask):
    """A float32 tile in the 16 bits of `on`, with `on` on the diagonal and 0 above.

    mask: an int16 tile whose upper bytes are full below the diagonal, and whose lower ones on it.
    """
    x = to_float16(x) if on.dtype == gl.float16 else rounded(x)
    return by_masks(x, on, mask, UPPER, LOWER)


@gluon.jit
def where_one(x, on, weights):
    """A float32 tile in bfloat16 where a tile of int16 has 1.0, `on` where -0, and 0 elsewhere.

    weights: bits of bfloat16. In the lower byte 1.0 has the sign bit, and -0 in the upper.
    """
    return by_masks(rounded(x), on, weights, SIGN_OF_LOWER, SIGN_OF_UPPER)


@gluon.jit
def either_of(x, y):
    """The sum of two bfloat16 tiles, of which at least one is 0."""
    return gl.inline_asm_elementwise(
        "or.b32 $0, $1, $2;", "=r,r,r", [x, y], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def chosen(x, y, mask):
    """A bfloat16 tile that is x where an int16 mask is -1, and y where it is 0."""
    either: gl.constexpr = """{
        .reg .b32 kept, other;
        and.b32 kept, $1, $3;
        xor.b32 other, $3, 0xffffffff;
        and.b32 other, other, $2;
        or.b32 $0, kept, other;
    }"""
    x, mask = gl.broadcast(x, mask)
    return gl.inline_asm_elementwise(
        either, "=r,r,r,r", [x, y, mask], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def kept(x, mask):
    """A bfloat16 tile where an int16 mask is -1, and 0 where that is 0."""
    x, mask = gl.broadcast(x, mask)
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [x, mask], gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def under_in_two(x, masks, of_x: gl.constexpr):
    """`in_two` under a mask, and 0 elsewhere."""
    pieces: gl.constexpr = (
        "{ .reg .b32 high, low, first, second, there;"
        "cvt.rn.bf16x2.f32 high, $3, $2;"
        "shl.b32 first, high, 16;"
        "and.b32 second, high, 0xffff0000;"
        "sub.f32 first, $2, first;"
        "sub.f32 second, $3, second;"
        "cvt.rn.bf16x2.f32 low, second, first;"
        "prmt.b32 there, $4, 0, " + of_x + ";"
        "and.b32 $0, high, there;"
        "and.b32 $1, low, there; }"
    )
    return gl.inline_asm_elementwise(
        pieces, "=&r,=&r,r,r,r", [x, masks], (gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
    )


@gluon.jit
def above_in_two(x, mask):
    """`in_two` where the lower byte of an int16 mask has the sign bit, as above a diagonal."""
    return under_in_two(x, mask, SIGN_OF_LOWER)


@gluon.jit
def below_in_two(x, mask):
    """`in_two` where the upper byte of an int16 mask has the sign bit."""
    return under_in_two(x, mask, SIGN_OF_UPPER)


@gluon.jit
def below(x, mask):
    """A tile of 16 bits where the upper byte of an int16 mask has the sign bit, and 0 elsewhere."""
    kept_part: gl.constexpr = (
        "{ .reg .b32 there;prmt.b32 there, $2, 0, " + SIGN_OF_UPPER + ";and.b32 $0, there, $1; }"
    )
    return gl.inline_asm_elementwise(kept_part, "=r,r,r", [x, mask], x.dtype, is_pure=True, pack=2)


@gluon.jit
def exponent_of(x):
    """The e for which x / 2^e is between 2^14 and 2^15, for a float16 of as many digits as it has.

    x: at least 0; below 2^-100 as 2^-100.
    """
    bits = gl.maximum(x, 2.0**-100).to(gl.int32, bitcast=True)
    return (bits >> 23) - (127 + 14)


@gluon.jit
def power_of_two(exponent):
    """2 to the power of an int32 between -126 and 127."""
    return ((exponent + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def exponents_of_warps(b_s):
    """`exponent_of` the largest element of each warp's 16 keys, [4]."""
    most = gl.reshape(gl.abs(b_s), [4, 2, 8, 8, 4, 2])  # warp, and four of which a thread has two
    most = gl.max(gl.max(gl.max(most, 5), 3), 1)
    bits = gl.maximum(most, 2.0**-100).to(gl.int32, bitcast=True)  # ordered as the numbers are
    bits = gl.max(gl.reshape(bits, [4, 32]), 1)  # of integers: one instruction, redux
    return gl.convert_layout((bits >> 23) - (127 + 14), gl.SliceLayout(1, AS_ROWS))


@gluon.jit
def of_keys(of_warps, LAYOUT: gl.constexpr):
    """A number of each warp as one of each of its keys."""
    of_warps = gl.convert_layout(of_warps, gl.SliceLayout(1, LAYOUT))
    return gl.reshape(of_warps[:, None] + gl.full([4, 16], 0, gl.int32, LAYOUT), [C])


@gluon.jit
def in_units(b_s):
    """A block of a state in float16, as it is stored, in units of warps; these units' exponents."""
    exponents = exponents_of_warps(b_s)
    ROWS: gl.constexpr = gl.SliceLayout(1, b_s.type.layout)
    by_row = gl.convert_layout(of_keys(exponents, AS_ROWS), ROWS, assert_trivial=True)
    stored = to_float16(b_s * power_of_two(-by_row)[:, None])
    return gl.convert_layout(stored, OF_8_BYTES), exponents


@gluon.jit
def places_of_half(saved, i_state, K: gl.constexpr, V: gl.constexpr):
    """Where a block of a state in float16 begins, and where its keys' exponents do."""
    checkpoints, i_k, i_v, _, _ = saved
    state = checkpoints + i_state.to(gl.int64) * ((K + K // 64) * V)
    return state + (i_k * C * V + i_v * C), state + (K * V + i_v * K + i_k * C)


@gluon.jit
def save_half(
    b_s, saved, i_state, there, exponent_of_b_s, K: gl.constexpr, V: gl.constexpr,
    TURNED: gl.constexpr,
):  # fmt: skip
    """Stores a block of a state in float16, in units, and their exponents, one for each key.

    saved: the checkpoints; which block of keys and of values; and the places of b_s. Units are of
    warps or, TURNED, where b_s is on its side, of all keys. exponent_of_b_s: of its factor to the
    state.
    """
    if TURNED:
        block, exponents = places_of_half(saved, i_state, K, V)
        _, _, _, row, col = saved
        exponent = exponent_of(gl.max(gl.max(gl.abs(b_s), 1), 0))
        stored, at = b_s * power_of_two(-exponent), block + col * V + row
        key = gl.arange(0, C, gl.SliceLayout(0, b_s.type.layout))
        gl.store(at, to_float16(stored), (row >= 0) & there)
        of_key = exponent + key * 0 - exponent_of_b_s
    else:
        stored, of_warps = in_units(b_s)
        block, exponents = places_of_half(saved, i_state, K, V)
        row = gl.arange(0, C, gl.SliceLayout(1, OF_8_BYTES))[:, None]
        col = gl.arange(0, C, gl.SliceLayout(0, OF_8_BYTES))[None, :]
        gl.store(block + row * V + col, stored, (row >= 0) & there)
        of_key = of_keys(of_warps - exponent_of_b_s, ONE_A_THREAD)
        key = gl.arange(0, 4, gl.SliceLayout(1, ONE_A_THREAD))[:, None] * 16
        key = gl.reshape(key + gl.arange(0, 16, gl.SliceLayout(0, ONE_A_THREAD))[None, :], [C])
    gl.store(exponents + key, of_key.to(gl.float16), (key >= 0) & there)


@gluon.jit
def two_barriers():
    """Barriers in shared memory for a tile of each stage."""
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=1)
    return ready


# The tiles of a chunk, and their barriers, are tuples of two stages each, for w, r, k and v.


@gluon.jit
def wait_for_chunk(ready, stage, phase):
    """Until the tiles of a chunk are there."""
    for n in gl.static_range(4):
        mbarrier.wait(ready[n].index(stage), phase)


@gluon.jit
def expect_chunk(ready, stage, pred):
    """Has the barriers of a stage expect a tile each, where `pred`."""
    for n in gl.static_range(4):
        mbarrier.expect(ready[n].index(stage), C * C * 2, pred=pred)


@gluon.jit
def copy_chunk(inputs, row, key_column, value_column, ready, staged, stage, pred):
    """Starts the copies of a chunk, C tokens from `row` on, where `pred`."""
    for n in gl.static_range(4):
        tma.async_copy_global_to_shared(
            inputs[n], [row, value_column if n == 3 else key_column],
            ready[n].index(stage), staged[n].index(stage), pred=pred,
        )  # fmt: skip


def aligned(x):
    """x, or a copy of it at an address from which tiles can be moved."""
    return x.clone() if x.data_ptr() % 16 else x


def takes_tiles(tensors, V, are_aligned=True):
    """Whether Gluon's kernels take these tensors, the first of them [B, T, H, K].

    All are of the same 16 bits, at addresses from which this GPU can move tiles, unless not
    `are_aligned`: if copies could be. Heads are of whole tiles.
    """
    first = tensors[0]
    dtype, K = first.dtype, first.shape[3]
    if K % 64 or V % 64 or dtype not in (torch.bfloat16, torch.float16) or not first.numel():
        return False
    for x in tensors:
        if x.dtype != dtype or are_aligned and x.data_ptr() % 16:
            return False
    return devices.gpu_of(tensors[0].device).is_hopper
