"""The reverse sweep for heads of 128 keys and values: two blocks of values in one program.

sweep.py takes a block of 64 keys and 64 values a program; of larger heads, dr, dk and dw are then
sums of parts in float32 that go through memory. Here a program has two roles of four warps, which
are two such programs for the same keys: they exchange their parts in shared memory, and each adds
up half of a chunk's tokens. dv stays a sum of two parts, one for each block of keys.

It takes bfloat16. All symbols are those of sweep.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from ....runtime.compile_triton import assembled
from ....sequences.spans import first_span, sequence_bounds
from .factors import Rounded, Split, as_left
from .runs import (
    KEYS,
    PAIRS,
    STATE,
    T32,
    TILES,
    Places,
    Sums,
    Tokens,
    decays,
)
from .sweep import (
    PLAIN,
    ROWS,
    TOKENS,
    Scratch,
    chunk_gradients,
    clear_chunk_after,
    factors_of,
    last_ds,
    load_chunk,
    load_sums,
    results_of,
    store_gradients,
    store_result,
    tiles_of,
    wait_for_chunk,
)
from .tiles import TILE, C, barrier, rounded

N = gl.constexpr(128)
HALF = gl.constexpr(T32.value // 2)  # of a chunk's tokens
HALF_ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # [tokens, keys]
REGISTERS = gl.constexpr(248)  # a thread, of one program an SM with both roles


@gluon.jit
def barriers(number: gl.constexpr, count: gl.constexpr):
    some = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(number):
        mbarrier.init(some.index(i), count=count)
    return some


@gluon.jit
def add_parts(s_sum, s_first, s_second, row: gl.constexpr):
    """The sum of half of the rows of two tiles, in bfloat16."""
    b_sum = s_first.slice(row, HALF, 0).load(HALF_ROWS)
    b_sum += s_second.slice(row, HALF, 0).load(HALF_ROWS)
    s_sum.slice(row, HALF, 0).store(rounded(b_sum))


@gluon.jit
def store_keys(x, x_rows, s_x, whole, rest, row, column, H, first: gl.constexpr):
    """Half of a chunk's tokens of a gradient: starts its copy, if the chunk is whole."""
    if whole:
        tma.async_copy_shared_to_global(x, [row + first, column], s_x.slice(first, HALF, 0))
    else:
        o_t = first + gl.arange(0, HALF, gl.SliceLayout(1, HALF_ROWS))[:, None]
        o_k = gl.arange(0, C, gl.SliceLayout(0, HALF_ROWS))[None, :]
        at = (row.to(gl.int64) + o_t) * (H * N) + column + o_k
        gl.store(x_rows + at, s_x.slice(first, HALF, 0).load(HALF_ROWS), o_t + 0 * o_k < rest)


@gluon.jit
def sweep_values(arguments, RAW: gl.constexpr, SCALED: gl.constexpr, i_v: gl.constexpr):
    """All chunks of a sequence, for 64 keys and 64 of the values."""
    tensors, results, rows, tiles, factors, ready, exchange, weights, after, place, numbers = (
        arguments
    )
    r, k, v, w, u, checkpoints, do, du, ds0 = tensors
    ds1, local_ds, local_decay, i_segment, segment, segments, pieces = after
    dr, dk, dw, dv = results
    dr_rows, dk_rows, dw_rows, dv_rows = rows
    s_w, s_r, s_k, s_do_v, s_s = tiles
    s_ds, s_rp_kq, s_kq_low, s_km_rm, s_g_high, s_g_low, diagonals, selves = factors
    w_ready, r_ready, k_ready, do_ready, v_ready, s_ready = ready
    parts_stored, parts_read = exchange
    s_before, s_middle, s_later, s_masks = weights
    i_n, i_h, i_k, start, length, slot, chunks = place
    H, scale, tokens = numbers
    staged = Tokens(s_w, s_do_v, s_s, s_do_v, s_r, s_k)
    ready = Tokens(w_ready, do_ready, s_ready, v_ready, r_ready, k_ready)
    inputs = Tokens(w, do, checkpoints, v, r, k)
    sums = Sums(s_before, s_middle, (s_later,), s_masks)
    scratch = Scratch(
        s_ds, Rounded(s_rp_kq), (s_kq_low,), s_km_rm, Split(s_g_high, s_g_low),
        diagonals[i_v], selves[i_v],
    )  # fmt: skip
    key_column, value_column = i_h * N + i_k * C, i_h * N + i_v * C
    end = gl.minimum(i_segment * segment + segment, chunks)
    count = gl.maximum(end - i_segment * segment, 0)
    t = (end - 1) * T32  # of the chunk at hand
    load_chunk(
        inputs, staged, ready, 2 * i_v, count > 0, start + t, key_column, value_column,
        ((slot + end - 1) * H + i_h) * N + i_k * C, i_v * C, FIRST=True,
    )  # fmt: skip
    row, col = gl.arange(0, C, KEYS)[:, None], gl.arange(0, T32, TOKENS)[None, :]
    place = Places(row, col, col < T32 // 2)
    zeros = gl.full([C, T32], 0.0, gl.float32, TILES)
    o_u = key_column + gl.arange(0, C, gl.SliceLayout(0, ROWS))
    b_u = gl.load(u + key_column + gl.arange(0, C, KEYS)).to(gl.float32)
    b_du = gl.full([C], 0.0, gl.float32, KEYS)
    o_key = i_k * C + gl.arange(0, C, gl.SliceLayout(1, STATE))
    o_state = o_key[:, None] * N + i_v * C + gl.arange(0, C, gl.SliceLayout(0, STATE))[None, :]
    i_state = (i_n * H + i_h).to(gl.int64)
    b_ds = last_ds(
        ds1, local_ds, local_decay, i_state, i_segment, segment, segments, pieces, chunks, o_state,
        o_key, N * N, N,
    )  # fmt: skip

    j = 0
    while j < count:
        stage, phase = 2 * i_v + j % 2, j // 2 % 2
        same = i_v + j // 2**30  # which the compiler cannot know
        c, x = tiles_of(staged, stage), factors_of(scratch, staged, stage, same)
        other = factors_of(scratch, staged, 2 * (1 - i_v) + j % 2, 1 - i_v + j // 2**30)
        n, one = length - t, j // 2**30
        whole = n >= T32
        wait_for_chunk(ready, stage, phase)
        if not whole:
            clear_chunk_after(c, n, RAW)
        w_pieces = decays(c.w, RAW)
        w_left = as_left(w_pieces)
        fence_async_shared()
        barrier()  # all warps' tokens are cleared
        mbarrier.wait(parts_read.index(0), 1 - j % 2)  # of the chunk before
        load_chunk(
            inputs, staged, ready, 2 * i_v + 1 - j % 2, j + 1 < count, start + t - T32,
            key_column, value_column, ((slot + t // T32 - 1) * H + i_h) * N + i_k * C, i_v * C,
            FIRST=False,
        )  # fmt: skip
        b_ds, b_dr, b_dk, b_dv, b_dw = chunk_gradients(
            b_ds, None, w_left, None, c, x, u, o_u, sums, scratch, place, zeros, whole, one, scale,
            RAW, SCALED,
        )  # fmt: skip
        parts, others = results_of(c, x, True), results_of(c, other, True)
        store_result(parts.dw, b_dw)
        b_du = store_gradients(
            b_dr, b_dk, b_dv, b_du, b_u, c, x, scratch, parts, scale, SCALED
        )  # fmt: skip
        barrier()  # all warps' parts are stored
        mbarrier.arrive(parts_stored.index(0), count=1)
        mbarrier.wait(parts_stored.index(0), j % 2)
        first: gl.constexpr = HALF * i_v
        add_parts(c.r, parts.dr, others.dr, first)
        add_parts(c.k, parts.dk, others.dk, first)
        add_parts(c.w, parts.dw, others.dw, first)
        fence_async_shared()
        barrier()  # all warps' sums are stored
        mbarrier.arrive(parts_read.index(0), count=1)
        store_keys(dr, dr_rows, c.r, whole, n, start + t, key_column, H, first)
        store_keys(dk, dk_rows, c.k, whole, n, start + t, key_column, H, first)
        store_keys(dw, dw_rows, c.w, whole, n, start + t, key_column, H, first)
        to_values = i_k * tokens + start + t
        if whole:
            tma.async_copy_shared_to_global(dv, [to_values, value_column], parts.dv)
        else:
            row_t = gl.arange(0, T32, gl.SliceLayout(1, ROWS))[:, None]
            o_v = gl.arange(0, C, gl.SliceLayout(0, ROWS))[None, :]
            at = (to_values.to(gl.int64) + row_t) * (H * N) + value_column + o_v
            gl.store(dv_rows + at, parts.dv.load(ROWS), row_t < n)
            barrier()
        t -= T32
        j += 1

    i_du = 2 * gl.program_id(0).to(gl.int64) + i_v
    gl.store(du + i_du * C + gl.arange(0, C, KEYS), b_du)
    first_segment = (gl.full([C, C], 0, gl.int32, STATE) + i_segment) == 0
    gl.store(ds0 + i_state * (N * N) + o_state, b_ds, first_segment)
    tma.store_wait(0)


@assembled
@gluon.jit(do_not_specialize=["T", "H", "scale", "segment", "segments", "pieces", "tokens"])
def wkv6_wide_sweep_kernel(
    r, k, v, w, u, checkpoints, weights, do, ds1, local_ds, local_decay, cu_seqlens,
    dr, dk, dv, dw, dr_rows, dk_rows, dv_rows, dw_rows, du, ds0,
    T, H, scale, segment, segments, pieces, tokens,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """As in sweep.py, but dr, dk and dw have no parts; their copies are of half of a chunk."""
    i = gl.program_id(0)
    i_k, i_segment = i % 2, i // 2 % segments
    i_h, i_n = i // (2 * segments) % H, i // (2 * segments) // H
    start, after_last = sequence_bounds(cu_seqlens, i_n, T)
    length = (after_last - start).to(gl.int32)
    slot = first_span(cu_seqlens, start, i_n, T, T32).to(gl.int32)
    chunks, start = gl.cdiv(length, T32), start.to(gl.int32)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [4, T32, C], TILE)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [4, T32, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [4, T32, C], TILE)
    s_do_v = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_rp_kq = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_kq_low = gl.allocate_shared_memory(gl.bfloat16, [2, T32, C], TILE)
    s_km_rm = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_g_high = gl.allocate_shared_memory(gl.bfloat16, [2, C, T32], PAIRS)
    s_g_low = gl.allocate_shared_memory(gl.bfloat16, [2, C, T32], PAIRS)
    diagonal_0 = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    diagonal_1 = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    self_0 = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    self_1 = gl.allocate_shared_memory(gl.float32, [T32], PLAIN)
    ready = (
        barriers(4, 1), barriers(4, 1), barriers(4, 1), barriers(4, 1), barriers(4, 1),
        barriers(4, 1),
    )  # fmt: skip
    exchange = barriers(1, 2), barriers(1, 2)
    sums = load_sums(weights, False)
    fence_async_shared()
    barrier()  # the barriers are there, and the weights
    tiles = s_w, s_r, s_k, s_do_v, s_s
    factors = (
        s_ds, s_rp_kq, s_kq_low, s_km_rm, s_g_high, s_g_low, (diagonal_0, diagonal_1),
        (self_0, self_1),
    )  # fmt: skip
    tensors = r, k, v, w, u, checkpoints, do, du, ds0
    after = ds1, local_ds, local_decay, i_segment, segment, segments, pieces
    results, rows = (dr, dk, dw, dv), (dr_rows, dk_rows, dw_rows, dv_rows)
    weights = sums.before, sums.middle, sums.later[0], sums.masks
    place, numbers = (i_n, i_h, i_k, start, length, slot, chunks), (H, scale, tokens)
    arguments = (
        tensors,
        results,
        rows,
        tiles,
        factors,
        ready,
        exchange,
        weights,
        after,
        place,
        numbers,
    )
    gl.warp_specialize(
        [(sweep_values, (arguments, RAW, SCALED, 0)), (sweep_values, (arguments, RAW, SCALED, 1))],
        [4],
        [REGISTERS],
    )
