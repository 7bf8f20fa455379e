"""What segments of a sequence make of a state of zeros, in Gluon, for 16 bits on Hopper.

Forward, that is the state after each segment, and in reverse the gradient of the state before it:

    S  = Σ_t (k[t] 2^(log2 decays after t, to the segment's end))ᵀ v[t]
    dS = Σ_t (r[t] 2^(log2 decays before t, from the segment's start))ᵀ do[t]

Both are one kernel, in which x stands for k or r and y for v or do. It takes chunks of 32 tokens
from where nothing has decayed, the last one forward and the first one in reverse, and adds the
decays of the chunks before to the exponents. A sum of products is then never decayed itself, no
factor grows, and any decay is right. Once all keys of a block have decayed to less than a float32
holds, the other chunks would add zeros: they are not read.

Tiles of w and x are loaded transposed, keys × tokens: the sums of decays take w from registers, and
the state takes x from those in which it was decayed. Nothing computed goes through shared memory,
but float16's y in two pieces of bfloat16, and a chunk has one barrier. Each program waits for one
product after another; four share an SM, and together they read at nearly the rate of a copy.

Symbols in the code, where s_ is in shared memory and b_ in registers:

    w_left, x_left    w and x decayed as left factors: [key, token]
    b_sums, b_total   log decays between a token and the side that decays from it; of a chunk, [key]
    b_past            log2 of the decays of the chunks before, [key]
    b_s               S or dS: [key, value]
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from ....runtime.compile_triton import assembled
from ....sequences.gluon_tiles import raw_decay
from ....sequences.spans import sequence_bounds
from ..sizes import CHECKPOINT
from ..tiles import LOG2E, MIN_LOG_DECAY
from .factors import Rounded, Split, as_left, plus_product, product, split, store
from .tiles import TILE, C, at_least, barrier, in_float32, product_of

TOKENS = gl.constexpr(CHECKPOINT)  # of a chunk
FORGOTTEN = gl.constexpr(-160.0)  # log2 of what is 0 in float32
TILES = gl.constexpr(product_of(TOKENS.value))  # [keys, tokens]
KEYS = gl.constexpr(gl.SliceLayout(1, TILES.value))
STATE = gl.constexpr(product_of(64))  # [keys, values]
WEIGHTS = gl.constexpr(gl.NVMMASharedLayout(2 * TOKENS.value, 16, 2))
SUMS = gl.constexpr(product_of(8))
ROWS = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))  # [tokens, values]


@gluon.jit
def by_key(s_x):
    """A tile of tokens × keys as keys × tokens."""
    return s_x.permute((1, 0)).load(TILES)


@gluon.jit
def left_of_state(x):
    """Pieces of a tile of keys × tokens as a left factor of S."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    return Split(gl.convert_layout(x.high, LEFT), gl.convert_layout(x.low, LEFT))


@gluon.jit
def decays_by_key(s_w, whole, rest, token, RAW: gl.constexpr):
    """w as a left factor, 0 where no token is left."""
    h_w = by_key(s_w)
    if RAW | (s_w.dtype == gl.float16):
        b_w = raw_decay(h_w) if RAW else in_float32(h_w)
        b_w = gl.where(token < rest, b_w, 0.0)
        b_w = gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)
        if RAW:
            return as_left(split(b_w))
        else:
            return as_left(Rounded(b_w.to(gl.float16)))
    else:
        if not whole:
            h_w = gl.where(token < rest, h_w, 0.0).to(gl.bfloat16)
        return as_left(Rounded(at_least(h_w, MIN_LOG_DECAY)))


@gluon.jit
def values_of(s_y, s_low, whole, rest):
    """y as a right factor, 0 where no token is left; of float16 in two pieces, of which it stores
    the first where y was."""
    token = gl.arange(0, TOKENS, gl.SliceLayout(1, ROWS))[:, None]
    if s_y.dtype == gl.float16:
        b_y = gl.where(token < rest, in_float32(s_y.load(ROWS)), 0.0)
        y = Split(s_y._reinterpret(gl.bfloat16, [TOKENS, C], TILE), s_low.index(0))
        store(y, split(b_y))
        fence_async_shared()
        barrier()
        return y
    else:
        if not whole:
            s_y.store(gl.where(token < rest, s_y.load(ROWS), 0.0).to(gl.bfloat16))
            fence_async_shared()
            barrier()
        return Rounded(s_y)


@gluon.jit
def copy_chunk(inputs, staged, ready, stage, there, row, key_column, value_column):
    """Starts the copies of a chunk's tiles of w, x and y, if it is there."""
    mbarrier.expect(ready.index(stage), 3 * TOKENS * C * 2, pred=there)
    for n in gl.static_range(3):
        tma.async_copy_global_to_shared(
            inputs[n], [row, value_column if n == 2 else key_column],
            ready.index(stage), staged[n].index(stage), pred=there,
        )  # fmt: skip


@assembled
@gluon.jit(do_not_specialize=["T", "H", "segments", "span", "first_segment", "count", "scale"])
def wkv6_segment_states_kernel(
    w, x, y, cu_seqlens, states, decays,
    T, H, segments, span, first_segment, count, scale,
    K: gl.constexpr, V: gl.constexpr, REVERSE: gl.constexpr,
    RAW: gl.constexpr, SCALED: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """Of `count` segments of each sequence, from `first_segment` on, of `span` tokens each.

    w, x and y are descriptors of [tokens, H·K] or [tokens, H·V]. Of states, [S, count, H, K, V],
    and decays, the same without V, a program writes a block of 64 keys and 64 values; in reverse
    they are [S, H, segments, K, V] and are indexed by segment. Decays are log2; both are float32.
    """
    NV: gl.constexpr = V // 64
    BLOCKS: gl.constexpr = K // 64 * NV
    program = gl.program_id(0)
    i_block, i_h = program % BLOCKS, program // BLOCKS % H
    i_g = program // BLOCKS // H % count
    i_n = (program // BLOCKS // H // count).to(gl.int64)
    i_k, i_v = i_block // NV, i_block % NV
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    start += (i_g + first_segment).to(gl.int64) * span
    n = gl.minimum(end - start, span).to(gl.int32)
    first, chunks = start.to(gl.int32), gl.cdiv(n, TOKENS)

    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    SUMMED: gl.constexpr = gl.bfloat16 if RAW else DTYPE  # decays
    STAGES: gl.constexpr = 3 if HALF else 4  # chunks in shared memory: four programs share an SM
    s_w = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, C], TILE)
    s_x = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, C], TILE)
    s_y = gl.allocate_shared_memory(DTYPE, [STAGES, TOKENS, C], TILE)
    s_low = None
    if HALF:
        s_low = gl.allocate_shared_memory(gl.bfloat16, [1, TOKENS, C], TILE)
    s_weights = gl.allocate_shared_memory(SUMMED, [TOKENS, TOKENS], WEIGHTS)
    s_ones = gl.allocate_shared_memory(SUMMED, [8, TOKENS], WEIGHTS)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    token = gl.arange(0, TOKENS, gl.SliceLayout(1, ROWS))[:, None]  # that decays
    decayed = gl.arange(0, TOKENS, gl.SliceLayout(0, ROWS))[None, :]
    s_weights.store((token < decayed if REVERSE else token > decayed).to(SUMMED))
    s_ones.store(gl.full([8, TOKENS], 1.0, SUMMED, ROWS))
    fence_async_shared()
    barrier()  # the barriers are there, and the weights

    inputs, staged = (w, x, y), (s_w, s_x, s_y)
    for stage in gl.static_range(STAGES):
        c = stage if REVERSE else chunks - 1 - stage
        there = stage < chunks
        copy_chunk(
            inputs, staged, ready, stage, there, first + c * TOKENS, key_column, value_column
        )  # fmt: skip
    weights, ones = Rounded(s_weights), Rounded(s_ones.permute((1, 0)))
    col = gl.arange(0, TOKENS, gl.SliceLayout(0, TILES))[None, :]
    zeros = gl.full([C, TOKENS], 0.0, gl.float32, TILES)
    no_sums = gl.full([C, 8], 0.0, gl.float32, SUMS)
    b_s = gl.full([C, C], 0.0, gl.float32, STATE)
    b_past = gl.full([C], 0.0, gl.float32, KEYS)

    j, stop = 0, chunks
    while j < stop:
        i, phase = j % STAGES, j // STAGES % 2
        t = (j if REVERSE else chunks - 1 - j) * TOKENS
        rest = n - t
        whole = rest >= TOKENS
        mbarrier.wait(ready.index(i), phase)
        w_left = decays_by_key(s_w.index(i), whole, rest, col, RAW)
        b_x = in_float32(by_key(s_x.index(i)))
        if not whole:  # what follows are other tokens, or zeros
            b_x = gl.where(col < rest, b_x, 0.0)
        b_sums = product(w_left, weights, zeros)
        b_total = product(w_left, ones, no_sums)
        y_right = values_of(s_y.index(i), s_low, whole, rest)
        b_sums, b_total = warpgroup_mma_wait(0, deps=(b_sums, b_total) + w_left)[:2]
        b_x *= gl.exp2(b_sums * LOG2E + b_past[:, None])
        b_past += gl.convert_layout(gl.sum(b_total, 1), KEYS) * (LOG2E / 8)
        x_left = left_of_state(split(b_x))
        b_s = plus_product(b_s, x_left, y_right)
        b_s = warpgroup_mma_wait(0, deps=(b_s,) + x_left)[0]
        after = j + STAGES
        if j % 8 == 7:
            lasts = gl.max(gl.where(b_past < FORGOTTEN, 0, 1), 0)  # NaN does
            stop = gl.where(lasts == 0, gl.minimum(stop, after), stop)
        barrier()  # all warps have read the tiles
        copy_chunk(
            inputs, staged, ready, i, after < stop,
            first + (after if REVERSE else chunks - 1 - after) * TOKENS, key_column, value_column,
        )  # fmt: skip
        j += 1

    if SCALED:
        b_s *= scale
    if REVERSE:
        at = (i_n * H + i_h) * segments + i_g + first_segment
    else:
        at = (i_n * count + i_g) * H + i_h
    o_s = (i_k * C + gl.arange(0, C, gl.SliceLayout(1, STATE)))[:, None] * V
    o_s += i_v * C + gl.arange(0, C, gl.SliceLayout(0, STATE))[None, :]
    gl.store(states + at * (K * V) + o_s, b_s)
    o_k = i_k * C + gl.arange(0, C, KEYS)
    gl.store(decays + at * K + o_k, b_past, o_k >= 0 if NV == 1 else (o_k >= 0) & (i_v == 0))
    gdc_wait()  # for the launch before, which ran meanwhile: what follows this one needs both
