"""WKV-6's forward pass for heads of 128 keys and values, in Gluon for bfloat16 on Hopper.

forward.py takes blocks of 64 keys and 64 values: r, k and w are read twice, and o is the sum of two
parts in float32, which are written to memory and read again. Here a program owns a whole head, and
all that is summed stays on chip. Its twelve warps have three roles:

    4 warps        make the factors of a chunk of 64 tokens     wide_factors.py
    4 warps each   apply them to the state of 64 of the values  wide_state.py

While one chunk is applied, the factors of the next are made. Two stages of tiles are in shared
memory, each of 64 tokens and 64 keys or values. Factors take the places of w, r and k:

    loaded      w        r         k         v         –
    then        k, low   r, high   k, high   v, then o r, low

A chunk is one run if its decays are mild, or else four runs of 16 tokens, as in forward.py and
strong.py, whose symbols have the same names here. The state is transposed, [values, keys]: it is a
left factor in registers and never goes through shared memory.

Barriers of a stage: `loaded` by TMA, one for each tile; `ready`, when its factors are made;
`applied`, by both others, after which the stage is loaded again. docs/designs_wkv6.md has the
designs that were weighed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from ....runtime.compile_triton import assembled
from ....sequences.spans import first_span, last_segment, program_place, sequence_bounds
from .strong import MINUS_ZERO, ONE, weights_of_runs
from .tiles import TILE, C, barrier, product_of
from .wide_factors import make_factors
from .wide_state import CHECKPOINT, apply_factors
from .wide_tiles import DECAYS, FLAT, N, load_keys, load_values

REGISTERS = gl.constexpr(168)  # a thread, of one program an SM with all its roles


@gluon.jit
def barriers(count: gl.constexpr):
    """One for each stage."""
    of_stages = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(of_stages.index(0), count=count)
    mbarrier.init(of_stages.index(1), count=count)
    return of_stages


@assembled
@gluon.jit(do_not_specialize=["has_s0", "T", "H", "skip", "segments", "span", "pieces", "scale"])
def wkv6_wide_kernel(
    r, k, v, w, u, s0, cu_seqlens, segment_states, segment_decays, o, o_rows, s1, checkpoints,
    has_s0, T, H, skip, segments, span, pieces, scale,
    RAW: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """r, k, v, w and o are descriptors of [tokens, H·128], checkpoints of [states·128, 128].

    o_rows is o again, for a last chunk that is not whole. The rest is as in ../forward.py.
    """
    TILES: gl.constexpr = product_of(64)
    gdc_launch_dependents()
    i_n, i_g, i_h, _ = program_place(gl.program_id(0), segments, H, N, N)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = skip + i_g.to(gl.int64) * span
    n = gl.minimum(end - start - skipped, span).to(gl.int32)
    first, column = (start + skipped).to(gl.int32), i_h * N
    s_w = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_r = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_low = gl.allocate_shared_memory(gl.bfloat16, [4, C, C], TILE)
    s_scores = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_weights = gl.allocate_shared_memory(gl.int16, [3, C, C], TILE)
    s_decay = gl.allocate_shared_memory(gl.float32, [2 * DECAYS * 2, C], FLAT)
    s_u = gl.allocate_shared_memory(gl.float32, [2, C], FLAT)
    KEEP: gl.constexpr = checkpoints is not None
    states = ()
    if KEEP:
        s_kept = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
        slot = first_span(cu_seqlens, start, i_n, T, CHECKPOINT) + skipped // CHECKPOINT
        states = checkpoints, s_kept, slot.to(gl.int32)
    keys_loaded = (
        (barriers(1), barriers(1), barriers(1)),
        (barriers(1), barriers(1), barriers(1)),
    )
    values_loaded = barriers(1), barriers(1)
    ready, applied = barriers(1), barriers(2)
    fence_async_shared()
    barrier()  # the barriers are there
    inputs = w, r, k
    tiles = s_w, s_r, s_k, s_v, s_low, s_scores, s_decay
    for g in gl.static_range(2):
        load_keys(inputs, tiles, keys_loaded[g], 0, first, column, g, 0 < n)
        load_keys(inputs, tiles, keys_loaded[g], 1, first + C, column, g, C < n)
        load_values(v, s_v, values_loaded[g], 0, first, column, g, 0 < n)

    row = gl.arange(0, C, gl.SliceLayout(1, TILES))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, TILES))[None, :]
    earlier = gl.where(col < row, ONE, gl.where(row == col, MINUS_ZERO, 0))
    s_weights.index(0).store(earlier.to(gl.int16))
    earlier, near = weights_of_runs(row, col)
    s_weights.index(1).store(earlier)
    s_weights.index(2).store(near)
    key = gl.arange(0, C, gl.SliceLayout(0, TILES))
    s_u.index(0).store(gl.load(u + column + key).to(gl.float32))
    s_u.index(1).store(gl.load(u + column + C + key).to(gl.float32))
    fence_async_shared()
    barrier()
    most = (segments - 1) * pieces
    before = s0, has_s0, segment_states, segment_decays, i_n, i_g * pieces, i_h, most, H
    is_last = i_g == last_segment(end - start - skip, span, segments)
    tensors, place = (inputs, v, o, o_rows, s1), (is_last, n, first, H)
    to_apply = tensors, tiles, keys_loaded, values_loaded, ready, applied, before, states, place
    to_make = tiles, s_weights, s_u, keys_loaded, ready, n, scale
    gl.warp_specialize(
        [
            (apply_factors, (to_apply, 0)),
            (apply_factors, (to_apply, 1)),
            (make_factors, (to_make, RAW, SCALED, KEEP)),
        ],
        [4, 4],
        [REGISTERS, REGISTERS],
    )
