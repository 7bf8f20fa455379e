"""All gradients of WKV-6 in one reverse sweep, in Gluon, for bfloat16 and float16 on Hopper.

A program takes the chunks of a block of 64 keys and 64 values of one head, from the last to the
first, 32 tokens each, with the gradient dS of the state in registers; it gives dr, dk, dv, dw, du
and ds0, for any decays. What larger heads get is a sum over blocks of values, or in dv, of keys.
All tiles are transposed, 64 keys × 32 tokens: sums over tokens then take their left factor from the
registers in which it was computed, numbers of a key are two a thread, and half of a chunk is half
of a thread's columns. With m the sums of log decays from the middle of a run of tokens to just
before one, p those from the run's start, q those to its end, S the state before the chunk and dS
that after it:

    G = do vᵀ, S do, dS v                            what tokens ask of each other and of states
    k 2^(-m-w), r 2^m through G inside of a run      split at its middle
    k 2^q, r 2^p through G between two runs          factors of at most 1
    dS ← (the chunk's decay) dS + (r x)ᵀ do          x from the chunk's start

A chunk whose halves fit is one run. Any other is two of 16 tokens, in which a log decay of less
than LEAST counts as LEAST: 2^-11, and eight of them in a row fit float32. What should have passed
such a token is less than 2^-11 of what need not pass it, and dw of the token, of which all has
passed it, gets the factor that was left out. S and dS take no such decays, but the given ones.

What passes a token inside of a run is a difference of running sums of r dr and k dk, made of the
very same pieces, so that what does not pass cancels; in a strong chunk, what passes between states
and runs is a sum, in which nothing has to cancel.

It reads r, k, v, w, do and the states before chunks, as much as two of those, and writes four: 11
tensors of the size of r. The next chunk comes while one is computed. Two programs share an SM.

float16 (HALF) is not multiplied as such: factors reach 2^80, and states may exceed 65,504. v, do,
S, dS and r 2^p are two pieces of bfloat16 then, too, which hold all that is given, and S comes as
float32. LEAST is 2^-12.5. Masks and S come from global memory, and weights of one kind are missing,
so that two programs still share an SM.
"""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ....runtime.compile_triton import assembled
from ..checkpoints import CHECKPOINT, first_checkpoint, sequence_bounds
from ..tiles import FITS, LOG2E, MIN_LOG_DECAY
from .tiles import (
    TILE,
    C,
    above_in_two,
    as_left_operand,
    at_least,
    barrier,
    below_in_two,
    cut,
    in_float32,
    in_two,
    now,
    product_of,
    rounded,
    two_barriers,
    widened,
)

T32 = gl.constexpr(CHECKPOINT)  # tokens of a program
LEAST = gl.constexpr(-7.625)  # a log decay that bfloat16 holds, 2^-11
LEAST_OF_FLOAT16 = gl.constexpr(-8.6875)  # 2^-12.5, and eight of them 2^-100
OF_PARTS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
PAIRS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))  # rows of 32 numbers


@functools.cache
def weights_and_masks(device):
    """`make_weights_and_masks`, once for a device, in memory of no CUDA graph.

    What a thread takes while it prepares or captures a graph is the graph's, which writes to it at
    every replay: so another thread takes this.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make_weights_and_masks, device).result()


def make_weights_and_masks(device):
    """What sums and masks take: int16, for chunks that fit and then for those in two runs.

    Each has three times 32 · 32 and once 64 · 32 on end. In bfloat16, weights [i, t] of token i in
    sums for token t of its run: the tokens before t; from the run's middle to just before t; and
    from just after t to the middle. Then the mask of pairs between the runs, [t, s], and inside of
    them, [s, t] for G and [t, s] for the scores: in the lower byte the sign bit for G, in the upper
    for the scores. A chunk that fits is one run.
    """
    i, t = torch.arange(32)[:, None], torch.arange(32)[None, :]
    found = []
    for run in (32, 16):
        same, late = (i ^ t) < run, i % run >= run // 2
        from_middle = (same & late & (i < t)).int() - (same & ~late & (i >= t)).int()
        weights = [same & (i < t), from_middle, -from_middle - (i == t).int()]
        between = (~same & (t < i)).int() * -0x7F80
        inside = (same & (i < t)).int() * 0x80 + (same & (t < i)).int() * -0x8000
        found += [torch.stack(weights).bfloat16().view(torch.int16), between.short()]
        found.append(inside.short())
    return torch.cat([x.flatten() for x in found]).to(device)


@gluon.jit
def expect_rows(ready, rows: gl.constexpr, pred):
    """Has a barrier expect the bytes of so many rows of 64, where `pred`."""
    mbarrier.expect(ready, rows * C * 2, pred=pred)


@gluon.jit
def store_result(s_x, b_x):
    """A float32 tile of keys × tokens in the dtype of a tile of tokens × keys."""
    if s_x.dtype == gl.bfloat16:
        s_x.permute((1, 0)).store(rounded(b_x))
    else:
        s_x.permute((1, 0)).store(b_x.to(s_x.dtype))


@gluon.jit
def times(x_high, x_low, y_high, y_low, b_sum, X_LOW: gl.constexpr, Y_LOW: gl.constexpr):
    """Starts b_sum + x y in as many pieces as there are; without the product of low ones."""
    if X_LOW:
        b_sum = warpgroup_mma(x_low, y_high, b_sum, is_async=True)
    if Y_LOW:
        b_sum = warpgroup_mma(x_high, y_low, b_sum, is_async=True)
    return warpgroup_mma(x_high, y_high, b_sum, is_async=True)


@gluon.jit
def first_times(x_high, x_low, y_high, y_low, zeros, X_LOW: gl.constexpr, Y_LOW: gl.constexpr):
    """The same from 0."""
    b_sum = warpgroup_mma(x_high, y_high, zeros, use_acc=False, is_async=True)
    if X_LOW:
        b_sum = warpgroup_mma(x_low, y_high, b_sum, is_async=True)
    if Y_LOW:
        b_sum = warpgroup_mma(x_high, y_low, b_sum, is_async=True)
    return b_sum


@gluon.jit
def store_pieces(s_high, s_low, b_x, LOW: gl.constexpr):
    """A float32 tile as a factor, in two pieces, or rounded."""
    if LOW:
        high, low = in_two(b_x)
        s_high.store(high)
        s_low.store(low)
    else:
        s_high.store(rounded(b_x))


@gluon.jit
def in_common(b_ds, b_s, s_s, HALF: gl.constexpr):
    """Of each key the sum of dS times S: of b_s, or of S in shared memory."""
    if HALF:
        return gl.sum(b_ds * b_s, 1)
    else:
        return gl.sum(b_ds * widened(s_s.load(b_ds.type.layout)), 1)


@gluon.jit
def clear_after(s_x, n, value, LAYOUT: gl.constexpr):
    """Sets the rows from n on, which are other sequences' tokens."""
    row = gl.arange(0, T32, gl.SliceLayout(1, LAYOUT))[:, None]
    b_x = s_x.load(LAYOUT)
    s_x.store(gl.where(row < n, b_x, value).to(b_x.dtype))


@gluon.jit
def by_three(b_x):
    """A float32 tile as three of bfloat16, left factors that hold all of it."""
    high, b_rest = cut(b_x)
    middle, low = in_two(b_rest)
    return as_left_operand(high), as_left_operand(middle), as_left_operand(low)


@gluon.jit
def by_two(b_x):
    """A float32 tile as two of bfloat16, left factors."""
    high, low = in_two(b_x)
    return as_left_operand(high), as_left_operand(low)


@gluon.jit
def both_pieces(s_high, s_low, LAYOUT: gl.constexpr):
    """A tile's numbers, of tokens × keys in two pieces, as keys × tokens."""
    high, low = s_high.permute((1, 0)).load(LAYOUT), s_low.permute((1, 0)).load(LAYOUT)
    return widened(high) + widened(low)


@gluon.jit
def log_decays(s_w, RAW: gl.constexpr, LAYOUT: gl.constexpr):
    """The log decays of a chunk, in float32, at least MIN_LOG_DECAY."""
    b_w = in_float32(s_w.permute((1, 0)).load(LAYOUT))
    if RAW:
        b_w = -gl.exp2(b_w * LOG2E)
    return gl.maximum(b_w, MIN_LOG_DECAY, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def factors(
    b_er, b_ek, s_r, s_k, s_rm_high, s_rm_low, s_km_high, s_km_low, scale,
    SCALED: gl.constexpr, HALF: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """r 2^m and k 2^(-m-w), into shared memory in two pieces each; the factors, and both tiles."""
    b_er = now(gl.exp2(b_er * LOG2E))
    b_ek = now(gl.exp2(b_ek * LOG2E))
    b_r = in_float32(s_r.permute((1, 0)).load(TILES))
    if SCALED:
        b_r *= scale
    high, low = in_two(b_r * b_er)
    s_rm_high.permute((1, 0)).store(high)
    s_rm_low.permute((1, 0)).store(low)
    b_k = in_float32(s_k.permute((1, 0)).load(TILES))
    b_km = b_k * b_ek
    high, low = in_two(b_km)
    s_km_high.permute((1, 0)).store(high)
    s_km_low.permute((1, 0)).store(low)
    if HALF:
        b_km = widened(high) + widened(low)
    return b_er, b_ek, b_km, b_k


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale", "segment", "segments", "tokens"])
def sweep_hopper_kernel(
    r, k, v, w, u, checkpoints, weights, do, ds1, local_ds, local_decay, cu_seqlens,
    dr, dk, dv, dw, dr_rows, dk_rows, dv_rows, dw_rows, du, ds0,
    T, H, scale, segment, segments, tokens,
    K: gl.constexpr, V: gl.constexpr, RAW: gl.constexpr, SCALED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """r, k, v, w, do, dr, dk, dv, dw are descriptors of [tokens, H·K] or [tokens, H·V], and so are
    checkpoints, of [states·K, V], unless HALF. Of the results there are as many, one after another,
    as there are blocks of values, or for dv of keys: each gets its part, in float32 where there are
    several blocks.

    weights: `weights_and_masks`. ds1, local_ds, local_decay, cu_seqlens, segment, segments: as in
    ../states.py. dr_rows, … are the results again, for a chunk that is not whole. du: of each
    program, `[64]`. tokens: of all sequences together.
    """
    TILES: gl.constexpr = product_of(32)  # [keys, tokens]
    STATE: gl.constexpr = product_of(64)  # [keys, values]
    KEYS: gl.constexpr = gl.SliceLayout(1, TILES)
    TOKENS: gl.constexpr = gl.SliceLayout(0, TILES)
    ROWS: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])  # [tokens, keys]
    SMALL: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    NK: gl.constexpr = K // 64
    NV: gl.constexpr = V // 64
    PARTS: gl.constexpr = NK * NV > 1
    i = gl.program_id(0)
    i_v, i_k, i_segment = i % NV, i // NV % NK, i // (NV * NK) % segments
    i_h, i_n = i // (NV * NK * segments) % H, i // (NV * NK * segments) // H
    key_column, value_column = i_h * K + i_k * C, i_h * V + i_v * C
    start, after_last = sequence_bounds(cu_seqlens, i_n, T)
    length = (after_last - start).to(gl.int32)
    slot = first_checkpoint(cu_seqlens, start, i_n, T, T32).to(gl.int32)
    chunks = gl.cdiv(length, T32)
    end = gl.minimum(i_segment * segment + segment, chunks)
    count = gl.maximum(end - i_segment * segment, 0)
    start = start.to(gl.int32)
    to_keys, to_values = start + i_v * tokens, start + i_k * tokens

    DTYPE: gl.constexpr = gl.float16 if HALF else gl.bfloat16
    WEAK: gl.constexpr = LEAST_OF_FLOAT16 if HALF else LEAST
    WIDE: gl.constexpr = RAW | HALF  # log decays that take two pieces
    s_w = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_r = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_k = gl.allocate_shared_memory(DTYPE, [2, T32, C], TILE)
    s_do_v = gl.allocate_shared_memory(DTYPE, [2, C, C], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [1 if HALF else 2, C, C], TILE)
    w_ready, r_ready, k_ready = two_barriers(), two_barriers(), two_barriers()
    do_ready, v_ready = two_barriers(), two_barriers()
    # Its memory would be given to a tile where nobody waits for it, and a barrier stays a barrier.
    if not HALF:
        s_ready = two_barriers()
    fence_async_shared()
    barrier()
    t = (end - 1) * T32  # of the chunk at hand
    here = count > 0
    key_tile, value_tile = [start + t, key_column], [start + t, value_column]
    first_state = [((slot + end - 1) * H + i_h) * K + i_k * C, i_v * C]
    first_do, first_v = s_do_v.index(0).slice(0, T32, 0), s_do_v.index(0).slice(T32, T32, 0)
    expect_rows(w_ready.index(0), T32, here)
    expect_rows(do_ready.index(0), T32, here)
    if not HALF:
        expect_rows(s_ready.index(0), C, here)
    expect_rows(v_ready.index(0), T32, here)
    expect_rows(r_ready.index(0), T32, here)
    expect_rows(k_ready.index(0), T32, here)
    tma.async_copy_global_to_shared(w, key_tile, w_ready.index(0), s_w.index(0), pred=here)
    tma.async_copy_global_to_shared(do, value_tile, do_ready.index(0), first_do, pred=here)
    if not HALF:
        to_s = s_s.index(0)
        tma.async_copy_global_to_shared(checkpoints, first_state, s_ready.index(0), to_s, pred=here)
    tma.async_copy_global_to_shared(v, value_tile, v_ready.index(0), first_v, pred=here)
    tma.async_copy_global_to_shared(r, key_tile, r_ready.index(0), s_r.index(0), pred=here)
    tma.async_copy_global_to_shared(k, key_tile, k_ready.index(0), s_k.index(0), pred=here)

    # Weights and masks, of a chunk that is one run, and of one that is two.
    s_before = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
    s_middle = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
    if not HALF:
        s_later = gl.allocate_shared_memory(gl.int16, [2, T32, T32], PAIRS)
        s_mask = gl.allocate_shared_memory(gl.int16, [2, C, T32], PAIRS)
    o_i = gl.arange(0, T32, gl.SliceLayout(1, SMALL))[:, None]
    o_t = gl.arange(0, T32, gl.SliceLayout(0, SMALL))[None, :]
    o_mask = gl.arange(0, C, gl.SliceLayout(1, SMALL))[:, None]
    for two in gl.static_range(2):
        these = weights + two * 5 * T32 * T32
        s_before.index(two).store(gl.load(these + o_i * T32 + o_t))
        s_middle.index(two).store(gl.load(these + T32 * T32 + o_i * T32 + o_t))
        if not HALF:
            s_later.index(two).store(gl.load(these + 2 * T32 * T32 + o_i * T32 + o_t))
            s_mask.index(two).store(gl.load(these + 3 * T32 * T32 + o_mask * T32 + o_t))

    # r 2^p above k 2^q, and k 2^(-m-w) above r 2^m; all in two pieces, but r 2^p of bfloat16.
    if HALF:
        s_pq_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        s_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)  # of do above v
        s_s_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        s_ds_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    else:
        s_pq_high = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
        s_kq_low_of_bf16 = gl.allocate_shared_memory(gl.bfloat16, [1, T32, C], TILE)
    s_mm_high = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [1, C, C], TILE)
    s_g_high = gl.allocate_shared_memory(gl.bfloat16, [1, C, T32], PAIRS)
    s_g_low = gl.allocate_shared_memory(gl.bfloat16, [1, C, T32], PAIRS)
    s_diagonal = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    s_self = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    row = gl.arange(0, C, KEYS)[:, None]
    col = gl.arange(0, T32, TOKENS)[None, :]
    is_left = col < T32 // 2
    zeros = gl.full([C, T32], 0.0, gl.float32, TILES)
    masks = weights + 3 * T32 * T32
    o_u = key_column + gl.arange(0, C, gl.SliceLayout(0, ROWS))
    b_u = gl.load(u + key_column + gl.arange(0, C, KEYS)).to(gl.float32)
    b_du = gl.full([C], 0.0, gl.float32, KEYS)

    o_key = i_k * C + gl.arange(0, C, gl.SliceLayout(1, STATE))
    o_state = o_key[:, None] * V + i_v * C + gl.arange(0, C, gl.SliceLayout(0, STATE))[None, :]
    b_ds = gl.full([C, C], 0.0, gl.float32, STATE)
    i_state = (i_n * H + i_h).to(gl.int64)
    if ds1 is not None:
        b_ds += gl.load(ds1 + i_state * (K * V) + o_state).to(gl.float32)
    if local_ds is not None:  # what the later segments make of it, from the last one to the next
        i_later = gl.cdiv(chunks, segment) - 1
        while i_later > i_segment:
            part = i_state * segments + i_later
            b_ds *= gl.exp2(gl.load(local_decay + part * K + o_key))[:, None]
            b_ds += gl.load(local_ds + part * (K * V) + o_state)
            i_later -= 1

    j = 0
    while j < count:
        stage, phase = j % 2, j // 2 % 2
        same = j // 2**30  # 0, which the compiler cannot know: it would keep all tiles' addresses
        more = j + 1 < count
        other = 1 - stage
        next_keys, next_values = [start + t - T32, key_column], [start + t - T32, value_column]
        next_state = [((slot + t // T32 - 1) * H + i_h) * K + i_k * C, i_v * C]
        next_do, next_v = (
            s_do_v.index(other).slice(0, T32, 0),
            s_do_v.index(other).slice(T32, T32, 0),
        )
        expect_rows(w_ready.index(other), T32, more)
        expect_rows(do_ready.index(other), T32, more)
        if not HALF:
            expect_rows(s_ready.index(other), C, more)
        expect_rows(v_ready.index(other), T32, more)
        expect_rows(r_ready.index(other), T32, more)
        expect_rows(k_ready.index(other), T32, more)
        tma.store_wait(0)
        tma.async_copy_global_to_shared(
            w, next_keys, w_ready.index(other), s_w.index(other), pred=more
        )
        tma.async_copy_global_to_shared(do, next_values, do_ready.index(other), next_do, pred=more)
        if not HALF:
            next_s = s_s.index(other)
            tma.async_copy_global_to_shared(
                checkpoints, next_state, s_ready.index(other), next_s, pred=more
            )
        tma.async_copy_global_to_shared(v, next_values, v_ready.index(other), next_v, pred=more)
        tma.async_copy_global_to_shared(
            r, next_keys, r_ready.index(other), s_r.index(other), pred=more
        )
        tma.async_copy_global_to_shared(
            k, next_keys, k_ready.index(other), s_k.index(other), pred=more
        )
        c_w, c_r, c_k = s_w.index(stage), s_r.index(stage), s_k.index(stage)
        given_do_v = s_do_v.index(stage)
        given_do, given_v = given_do_v.slice(0, T32, 0), given_do_v.slice(T32, T32, 0)
        c_do_v, c_ds = given_do_v._reinterpret(gl.bfloat16, [C, C], TILE), s_ds.index(same)
        c_do, c_v = c_do_v.slice(0, T32, 0), c_do_v.slice(T32, T32, 0)
        if HALF:  # what of these is no longer needed makes room
            c_s, c_s_low, c_low, c_ds_low = (
                s_s.index(same), s_s_low.index(same), s_low.index(same), s_ds_low.index(same)
            )  # fmt: skip
            c_pq, c_pq_low = c_s_low, s_pq_low.index(same)
            s_rp_low, s_kq_low = c_pq_low.slice(0, T32, 0), c_pq_low.slice(T32, T32, 0)
        else:  # low pieces that are not there, and not used
            c_s, c_s_low, c_low, c_ds_low = s_s.index(stage), c_ds, c_do_v, c_ds
            c_pq, c_pq_low = s_pq_high.index(same), c_ds
            s_rp_low, s_kq_low = c_do, s_kq_low_of_bf16.index(same)
        do_low, v_low = c_low.slice(0, T32, 0), c_low.slice(T32, T32, 0)
        s_rp, s_kq_high = c_pq.slice(0, T32, 0), c_pq.slice(T32, T32, 0)
        c_mm_high = s_mm_high.index(same)
        s_km_high, s_km_low = c_mm_high.slice(0, T32, 0), c_s.slice(0, T32, 0)
        s_rm_high, s_rm_low = c_mm_high.slice(T32, T32, 0), c_s.slice(T32, T32, 0)
        c_g_high, c_g_low = s_g_high.index(same), s_g_low.index(same)
        if PARTS:  # where all that is multiplied has been, when results are there
            s_dr = c_s._reinterpret(gl.float32, [T32, C], OF_PARTS)
            s_dk = c_ds._reinterpret(gl.float32, [T32, C], OF_PARTS)
            s_dv = c_pq._reinterpret(gl.float32, [T32, C], OF_PARTS)
            s_dw = c_mm_high._reinterpret(gl.float32, [T32, C], OF_PARTS)
        else:
            s_dr, s_dk, s_dv, s_dw = c_r, c_k, given_v, c_w
        n = length - t
        whole = n >= T32

        mbarrier.wait(w_ready.index(stage), phase)
        mbarrier.wait(do_ready.index(stage), phase)
        if not HALF:
            mbarrier.wait(s_ready.index(stage), phase)
        mbarrier.wait(v_ready.index(stage), phase)
        mbarrier.wait(r_ready.index(stage), phase)
        mbarrier.wait(k_ready.index(stage), phase)
        if not whole:
            clear_after(c_w, n, float("-inf") if RAW else 0.0, ROWS)
            clear_after(given_do, n, 0.0, ROWS)
            clear_after(given_v, n, 0.0, ROWS)
            clear_after(c_r, n, 0.0, ROWS)
            clear_after(c_k, n, 0.0, ROWS)
        if WIDE:
            w_of_high, w_of_low = in_two(log_decays(c_w, RAW, TILES))
            w_high, w_low = as_left_operand(w_of_high), as_left_operand(w_of_low)
        else:
            w_high = as_left_operand(at_least(c_w.permute((1, 0)).load(TILES), MIN_LOG_DECAY))
            w_low = w_high
        if HALF:
            b_pieces = widened(w_of_high) + widened(w_of_low)
            i_s = (slot + t // T32).to(gl.int64) * H + i_h
            b_s = gl.load(checkpoints + i_s * (K * V) + o_state)
            b_do, b_v = given_do.load(ROWS).to(gl.float32), given_v.load(ROWS).to(gl.float32)
            s_diagonal.store(gl.sum(b_do * b_v, 1))
            store_pieces(c_do, do_low, b_do, True)
            store_pieces(c_v, v_low, b_v, True)
        else:
            b_s = b_ds  # not used
        fence_async_shared()
        barrier()
        do_by_v, do_by_v_low = c_do.permute((1, 0)), do_low.permute((1, 0))  # values × tokens
        middle = s_middle.index(same)._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
        b_er = first_times(w_high, w_low, middle, middle, zeros, WIDE, False)
        if not HALF:
            later = s_later.index(same)._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
            b_ek = first_times(w_high, w_low, later, later, zeros, WIDE, False)
        b_st = first_times(c_do_v, c_low, do_by_v, do_by_v_low, zeros, HALF, HALF)
        if HALF:
            store_pieces(c_s, c_s_low, b_s, True)
            fence_async_shared()
            barrier()
        b_dr = first_times(c_s, c_s_low, do_by_v, do_by_v_low, zeros, HALF, HALF)

        # Meanwhile do·v and the bonus of each token, a row in four threads.
        if not HALF:
            s_diagonal.store(gl.sum(widened(c_do.load(ROWS)) * widened(c_v.load(ROWS)), 1))
        u_of_rows = gl.load(u + o_u).to(gl.float32)
        b_rk = in_float32(c_r.load(ROWS)) * in_float32(c_k.load(ROWS))
        itself = gl.sum(b_rk * u_of_rows[None, :], 1)
        if SCALED:
            itself *= scale
        s_self.store(itself)
        if HALF:
            b_er, w_high, w_low = warpgroup_mma_wait(6, deps=(b_er, w_high, w_low))
            b_ek = -b_er - b_pieces
        elif RAW:
            b_er, b_ek, w_high, w_low = warpgroup_mma_wait(2, deps=(b_er, b_ek, w_high, w_low))
        else:
            b_er, b_ek, w_high = warpgroup_mma_wait(2, deps=(b_er, b_ek, w_high))
        # Of each key the decays of both halves, by what they do to the first and last token.
        b_early = gl.sum(gl.where(col == 0, b_er, 0.0), 1) * -LOG2E
        b_late = gl.sum(gl.where(col == T32 - 1, b_ek, 0.0), 1) * -LOG2E
        b_fits = (b_early >= -FITS) & (b_late >= -FITS)  # NaN does not
        fits = whole & (gl.max(gl.where(b_fits, 0, 1), 0) == 0)
        runs = same + gl.where(fits, 0, 1)

        b_early_decay, b_late_decay = gl.exp2(b_early)[:, None], gl.exp2(b_late)[:, None]
        early_of_state = gl.convert_layout(b_early, gl.SliceLayout(1, STATE))
        late_of_state = gl.convert_layout(b_late, gl.SliceLayout(1, STATE))
        b_st, b_dr = warpgroup_mma_wait(0, deps=(b_st, b_dr))
        of_ds, of_ds_low = c_ds.permute((1, 0)), c_ds_low.permute((1, 0))  # values × keys
        v_by_value, v_by_value_low = c_v.permute((1, 0)), v_low.permute((1, 0))
        b_pc = zeros
        if fits:
            if HALF:
                # A wait ends a warp's own products, not the others': without this barrier a warp
                # ahead would write over S, in c_s, while another warp's product reads it.
                barrier()
            # dS and S do are decayed to the middle, where all meet; b_ds then to the start.
            b_ds *= gl.exp2(late_of_state)[:, None]
            store_pieces(c_ds, c_ds_low, b_ds, HALF)
            b_across = gl.convert_layout(in_common(b_ds, b_s, c_s, HALF), KEYS) * gl.exp2(b_early)
            if HALF:
                mask = gl.load(masks + row * T32 + col)
            else:
                mask = s_mask.index(same).load(TILES)
            high, low = above_in_two(b_st, mask)
            c_g_high.store(high)
            c_g_low.store(low)
            b_er, b_ek, b_km, b_k = factors(
                b_er, b_ek, c_r, c_k, s_rm_high, s_rm_low, s_km_high, s_km_low, scale,
                SCALED, HALF, TILES,
            )  # fmt: skip
            b_ry = now(b_dr * b_early_decay)
            fence_async_shared()
            barrier()
            b_ky = first_times(c_ds, c_ds_low, v_by_value, v_by_value_low, zeros, HALF, HALF)
            rm_high, rm_low = s_rm_high.permute((1, 0)), s_rm_low.permute((1, 0))
            b_ds = times(rm_high, rm_low, c_do, do_low, now(b_ds), True, HALF)
            km_high, km_low = s_km_high.permute((1, 0)), s_km_low.permute((1, 0))
            b_dv = first_times(of_ds, of_ds_low, km_high, km_low, zeros, HALF, True)
            b_ky, b_ds, b_dv = warpgroup_mma_wait(0, deps=(b_ky, b_ds, b_dv))
            of_right = b_across + gl.sum(b_km * b_ky, 1)
            b_dw = zeros + of_right[:, None]
            b_ds *= gl.exp2(early_of_state)[:, None]
            b_dr, b_dk = zeros, zeros
        else:
            before = s_before.index(runs)._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
            after = before.permute((1, 0))
            middle = s_middle.index(runs)._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
            if WIDE:
                b_w = log_decays(c_w, RAW, TILES)
                w_high, w_low = by_two(b_w)
                b_weak = gl.maximum(b_w, WEAK, propagate_nan=tl.PropagateNan.ALL)
                w_of_high, w_of_low = in_two(b_weak)
                b_weak = widened(w_of_high) + widened(w_of_low)
                weak_high, weak_low = as_left_operand(w_of_high), as_left_operand(w_of_low)
            else:
                b_w = c_w.permute((1, 0)).load(TILES)
                w_high = as_left_operand(at_least(b_w, MIN_LOG_DECAY))
                weak_high = as_left_operand(at_least(b_w, WEAK))
                w_low, weak_low = w_high, weak_high
            store_pieces(c_ds, c_ds_low, b_ds, HALF)
            b_ds *= gl.exp2(early_of_state + late_of_state)[:, None]
            b_across = gl.convert_layout(in_common(b_ds, b_s, c_s, HALF), KEYS)
            fence_async_shared()
            barrier()
            b_er = first_times(weak_high, weak_low, middle, middle, zeros, WIDE, False)
            if not HALF:
                later = s_later.index(runs)._reinterpret(gl.bfloat16, [T32, T32], PAIRS)
                b_ek = first_times(weak_high, weak_low, later, later, zeros, WIDE, False)
            b_p = first_times(w_high, w_low, before, before, zeros, WIDE, False)
            b_q = first_times(w_high, w_low, after, after, zeros, WIDE, False)
            b_ts = first_times(c_do_v, c_low, v_by_value, v_by_value_low, zeros, HALF, HALF)
            b_dk = first_times(c_ds, c_ds_low, v_by_value, v_by_value_low, zeros, HALF, HALF)
            if HALF:
                b_er, b_p, b_q, w_high, w_low, weak_high, weak_low = warpgroup_mma_wait(
                    6, deps=(b_er, b_p, b_q, w_high, w_low, weak_high, weak_low)
                )
                b_ek = -b_er - b_weak
            elif RAW:
                b_er, b_ek, b_p, b_q, w_high, w_low, weak_high, weak_low = warpgroup_mma_wait(
                    2, deps=(b_er, b_ek, b_p, b_q, w_high, w_low, weak_high, weak_low)
                )
            else:
                b_er, b_ek, b_p, b_q, w_high, weak_high = warpgroup_mma_wait(
                    2, deps=(b_er, b_ek, b_p, b_q, w_high, weak_high)
                )
            b_er, b_ek, b_km, b_k = factors(
                b_er, b_ek, c_r, c_k, s_rm_high, s_rm_low, s_km_high, s_km_low, scale,
                SCALED, HALF, TILES,
            )  # fmt: skip
            b_x = now(gl.exp2(b_p * LOG2E))
            b_y = now(gl.exp2(b_q * LOG2E))
            b_r = in_float32(c_r.permute((1, 0)).load(TILES))
            if SCALED:
                b_r *= scale
            b_rp = b_r * b_x
            if HALF:
                high, low = in_two(b_rp)
                s_rp.permute((1, 0)).store(high)
                s_rp_low.permute((1, 0)).store(low)
                mask = gl.load(masks + 5 * T32 * T32 + row * T32 + col)
            else:
                s_rp.permute((1, 0)).store(rounded(b_rp))
                mask = s_mask.index(runs).load(TILES)
            # G between the runs, [t, s], and below it G inside of them, [s, t].
            b_ts, b_dk = warpgroup_mma_wait(0, deps=(b_ts, b_dk))
            high, low = above_in_two(gl.where(row < T32, b_ts, b_st), mask)
            c_g_high.store(high)
            c_g_low.store(low)
            b_kq = b_k * b_y
            high, low = in_two(b_kq)
            s_kq_high.permute((1, 0)).store(high)
            s_kq_low.permute((1, 0)).store(low)
            fence_async_shared()
            barrier()
            b_dr = now(gl.where(is_left, b_dr, b_dr * b_early_decay))
            b_dk = now(gl.where(is_left, b_dk * b_late_decay, b_dk))
            of_left = b_across + gl.sum(gl.where(is_left, 0.0, b_rp * b_dr), 1)
            of_right = b_across + gl.sum(gl.where(is_left, b_kq * b_dk, 0.0), 1)
            b_dw = now(gl.where(is_left, of_left[:, None], of_right[:, None]))
            g_high, g_low = c_g_high.slice(0, T32, 0), c_g_low.slice(0, T32, 0)
            kq_high, kq_low = s_kq_high.permute((1, 0)), s_kq_low.permute((1, 0))
            rp_high, rp_low = s_rp.permute((1, 0)), s_rp_low.permute((1, 0))
            x_high, x_low = by_two(gl.where(is_left, b_rp, b_rp * b_early_decay))
            b_ds = times(x_high, x_low, c_do, do_low, now(b_ds), True, HALF)
            gt_high, gt_low = g_high.permute((1, 0)), g_low.permute((1, 0))
            b_dr = times(kq_high, kq_low, gt_high, gt_low, b_dr, True, HALF)
            b_dk = times(rp_high, rp_low, g_high, g_low, b_dk, HALF, True)
            b_pc = first_times(c_pq, c_pq_low, kq_high, kq_low, zeros, HALF, True)
            high, low = in_two(gl.where(is_left, b_kq * b_late_decay, b_kq))
            b_ds, b_dr, b_dk, b_pc, x_high, x_low = warpgroup_mma_wait(
                0, deps=(b_ds, b_dr, b_dk, b_pc, x_high, x_low)
            )
            s_kq_high.permute((1, 0)).store(high)
            s_kq_low.permute((1, 0)).store(low)
            fence_async_shared()
            barrier()

            # What passes a token on its way between states and runs.
            b_dr = now(b_dr * b_x)
            b_r = in_float32(c_r.permute((1, 0)).load(TILES))
            if SCALED:
                b_r *= scale
            a_high, a_low = by_two(b_r * b_dr)
            b_dk = now(b_dk * b_y)
            b_k = in_float32(c_k.permute((1, 0)).load(TILES))
            b_high, b_low = by_two(b_k * b_dk)
            b_dw = warpgroup_mma(a_low, after, b_dw, is_async=True)
            b_dw = warpgroup_mma(a_high, after, b_dw, is_async=True)
            b_dw = warpgroup_mma(b_low, before, b_dw, is_async=True)
            b_dw = warpgroup_mma(b_high, before, b_dw, is_async=True)
            b_dv = first_times(of_ds, of_ds_low, kq_high, kq_low, zeros, HALF, True)
            b_dw, b_dv, a_high, a_low, b_high, b_low = warpgroup_mma_wait(
                0, deps=(b_dw, b_dv, a_high, a_low, b_high, b_low)
            )
            b_ry, b_ky = zeros, zeros
        b_ry, b_ky = now(b_ry), now(b_ky)

        # And inside of the runs.
        g_high, g_low = c_g_high.slice(T32, T32, 0), c_g_low.slice(T32, T32, 0)
        k_high, k_low = s_km_high.permute((1, 0)), s_km_low.permute((1, 0))
        r_high, r_low = s_rm_high.permute((1, 0)), s_rm_low.permute((1, 0))
        if HALF:  # with all four products, so that what does not pass cancels
            b_ry = warpgroup_mma(k_low, g_low, b_ry, is_async=True)
            b_ky = warpgroup_mma(r_low, g_low.permute((1, 0)), b_ky, is_async=True)
        b_ry = times(k_high, k_low, g_high, g_low, b_ry, True, HALF)
        g_high, g_low = g_high.permute((1, 0)), g_low.permute((1, 0))
        b_ky = times(r_high, r_low, g_high, g_low, b_ky, True, HALF)
        b_pd = first_times(c_mm_high, c_s, k_high, k_low, zeros, HALF, True)
        b_ry, b_ky, b_pd = warpgroup_mma_wait(0, deps=(b_ry, b_ky, b_pd))
        b_b = now(both_pieces(s_km_high, s_km_low, TILES) * b_ky)
        b_dk = now(b_dk + b_ek * b_ky)
        b_a = now(both_pieces(s_rm_high, s_rm_low, TILES) * b_ry)
        b_dr = now(b_dr + b_er * b_ry)
        d_high, d_middle, d_low = by_three(b_a - b_b)
        after = s_before.index(runs)._reinterpret(gl.bfloat16, [T32, T32], PAIRS).permute((1, 0))
        b_passed = warpgroup_mma(d_low, after, zeros, use_acc=False, is_async=True)
        b_passed = warpgroup_mma(d_middle, after, b_passed, is_async=True)
        b_passed = warpgroup_mma(d_high, after, b_passed, is_async=True)

        # Scores between the runs, [t, s], and below them those inside of them.
        if HALF:
            mask = gl.load(masks + runs * (5 * T32 * T32) + row * T32 + col)
        else:
            mask = s_mask.index(runs).load(TILES)
        high, low = below_in_two(gl.where(row < T32, b_pc, b_pd), mask)
        c_g_high.store(high)
        c_g_low.store(low)
        fence_async_shared()
        barrier()
        first, second = c_g_high.slice(0, T32, 0), c_g_high.slice(T32, T32, 0)
        first_low, second_low = c_g_low.slice(0, T32, 0), c_g_low.slice(T32, T32, 0)
        b_dv = times(do_by_v, do_by_v_low, first, first_low, b_dv, HALF, True)
        b_dv = times(do_by_v, do_by_v_low, second, second_low, b_dv, HALF, True)
        b_passed, d_high, d_middle, d_low = warpgroup_mma_wait(
            6 if HALF else 4, deps=(b_passed, d_high, d_middle, d_low)
        )
        b_passed -= b_b
        if not fits:
            b_passed *= gl.exp2(gl.minimum((log_decays(c_w, RAW, TILES) - WEAK) * LOG2E, 0.0))
        b_dw += b_passed
        if RAW:
            b_dw *= log_decays(c_w, RAW, TILES)
        store_result(s_dw, b_dw)

        b_diagonal = s_diagonal.load(TOKENS)[None, :]
        b_r = in_float32(c_r.permute((1, 0)).load(TILES))
        b_k = in_float32(c_k.permute((1, 0)).load(TILES))
        if SCALED:
            b_r *= scale
        b_du += gl.sum(b_r * b_k * b_diagonal, 1)
        b_bonus = b_u[:, None] * b_diagonal
        b_dr += b_bonus * b_k
        if SCALED:
            b_dr *= scale
        store_result(s_dr, b_dr)
        b_dk += b_bonus * b_r
        store_result(s_dk, b_dk)
        b_dv = warpgroup_mma_wait(0, deps=(b_dv,))
        if HALF:
            b_do = both_pieces(c_do, do_low, TILES)
        else:
            b_do = widened(do_by_v.load(TILES))
        b_dv += b_do * s_self.load(TOKENS)[None, :]
        store_result(s_dv, b_dv)
        fence_async_shared()
        barrier()
        if whole:
            tma.async_copy_shared_to_global(dr, [to_keys + t, key_column], s_dr)
            tma.async_copy_shared_to_global(dk, [to_keys + t, key_column], s_dk)
            tma.async_copy_shared_to_global(dw, [to_keys + t, key_column], s_dw)
            tma.async_copy_shared_to_global(dv, [to_values + t, value_column], s_dv)
        else:
            row_t = gl.arange(0, T32, gl.SliceLayout(1, ROWS))[:, None]
            o_c = gl.arange(0, C, gl.SliceLayout(0, ROWS))[None, :]
            o_keys = ((to_keys + t).to(gl.int64) + row_t) * (H * K) + key_column + o_c
            o_values = ((to_values + t).to(gl.int64) + row_t) * (H * V) + value_column + o_c
            gl.store(dr_rows + o_keys, s_dr.load(ROWS), row_t < n)
            gl.store(dk_rows + o_keys, s_dk.load(ROWS), row_t < n)
            gl.store(dw_rows + o_keys, s_dw.load(ROWS), row_t < n)
            gl.store(dv_rows + o_values, s_dv.load(ROWS), row_t < n)
            barrier()  # the copies of the chunk after the next one overwrite these tiles
        t -= T32
        j += 1

    gl.store(du + gl.program_id(0).to(gl.int64) * C + gl.arange(0, C, KEYS), b_du)
    first_segment = (gl.full([C, C], 0, gl.int32, STATE) + i_segment) == 0
    gl.store(ds0 + i_state * (K * V) + o_state, b_ds, first_segment)
    tma.store_wait(0)
