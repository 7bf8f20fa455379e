"""The gradients of the chunked WKV-6 kernel.

On Hopper, hopper/sweep.py sweeps the chunks of each block of 64 keys and 64 values of a head in
reverse and gives all gradients: for N = 64 and 16 bits it reads 7 tensors of the size of r (r, k,
v, w, do, and the forward pass's states, as much as 2) and writes 4. hopper/wide_sweep.py does so
for heads of 128 in bfloat16, unless sequences are cut into segments.

All else takes two passes over memory. states.py sweeps in reverse and writes the gradient of the
state between chunks; pairs.py then takes all chunks at once. The sweep reads 5 (r, w, do, states)
and writes 2; keys read 9 and write 3; values read 6 and write 1. Registers bound the two kernels of
the second pass: 255 and 168 leave room for two and three programs an SM, too few to hide all of the
latency of their barriers. The designs that were tried before: docs/designs_wkv6.md.

Sums over programs are taken in a fixed order: the same inputs give the same bits.
"""

import torch
import triton

from ...runtime import devices
from ...runtime.bounded import remembered
from ...runtime.compile_triton import Launches
from ...runtime.launch_tiles import launch_tiles
from ...runtime.launch_triton import launch
from ...runtime.replay import looks, remember, replay
from ...sequences.arguments import sequences_in
from ...sequences.spans import count_spans
from ..autograd import define_backward
from .hopper.segments import wkv6_segment_states_kernel
from .hopper.sweep import sweep_hopper_kernel, weights_and_masks
from .hopper.tiles import aligned, takes_tiles, tiles
from .hopper.wide_sweep import REGISTERS, wkv6_wide_sweep_kernel
from .hopper.wide_tiles import takes_whole_heads
from .pairs import CHUNKS_PER_SEARCH, PairSizes, keys_gradients, values_gradients
from .parts import sum_parts
from .sizes import CHECKPOINT, ChunkSizes
from .states import ALL, EACH, OTHERS, state_gradients

TARGET_PROGRAMS = 512  # that fill an H200; a sweep of fewer is cut into segments
MIN_CHUNKS_PER_SEGMENT = 16  # so that cutting costs less than it gains
PIECES = 2  # of a segment, to get what it adds to dS
# hopper/sweep.py, of which two programs share an SM: its second round would leave SMs without work
# where heads fill little more than one (B = 8, H = 40). What cutting costs: measured on an H200.
MOST_CUTS, COST_OF_CUTTING = 4, 0.2
# Unless told, ptxas 12.8 gives kernels of float32, of large heads in float16, and those in levels,
# 32 and spills 10 to 18 KB.
MAX_REGISTERS = 255
CHUNKS_PER_PROGRAM = 8  # of keys or values, in turn: the next one is loaded meanwhile


def blocks(K, V, is_float32):
    """(BK, BV) of the sweep; BK, all V of the keys' kernel; all K, BV of the values' kernel."""
    all_k, all_v = (max(16, triton.next_power_of_2(n)) for n in (K, V))
    # shared memory holds a block of the state, of 4 bytes a number where inputs are float32
    few_k = min(all_k, 64 if all_v <= 64 else (16 if is_float32 else 32))
    few_v = min(all_v, 64 if all_k <= 64 else (16 if is_float32 else 32))
    return (min(all_k, 64), min(all_v, 64)), (few_k, all_v), (all_k, few_v)


def stages_of(block, is_float32, gpu, whole_states=False):
    """Chunks in flight in a kernel of keys, or values; a third does not fit into 99 KB.

    Nor does it leave room for two programs on an SM where keys read states of float32.
    """
    if is_float32 or sum(block) > 128:
        return 1
    return 3 if gpu.like_hopper and not whole_states else 2


def segments_for_rounds(sweeps, most, gpu):
    """Into how many segments sequences are cut so that full rounds of programs are done soonest."""

    def time(segments):  # in that of a round of whole sequences
        rounds = -(-sweeps * segments // (2 * gpu.sms))
        return rounds / segments * (1 + COST_OF_CUTTING * (segments > 1))

    return min(range(1, max(1, min(most, MOST_CUTS)) + 1), key=time)


@remembered
def plan(B, T, H, K, V, sequences, packed, is_float32, raw_decay, on_hopper, gpu):
    """Checkpoints, segments, chunks of one, programs, and the kernels' sizes.

    Programs: of the sweep; then chunks of one, those of keys and of values, without levels and in
    levels. Sizes: of the sweep; of keys and of values, both without levels and in levels; and how
    many blocks of values the sweep has.
    """
    sweep, keys, values = blocks(K, V, is_float32)
    slots = count_spans(B, T, sequences if packed else None, CHECKPOINT)
    chunks = triton.cdiv(T, CHECKPOINT)
    NK, NV = triton.cdiv(K, sweep[0]), triton.cdiv(V, sweep[1])
    sweeps = sequences * H * NK * NV
    most = chunks // MIN_CHUNKS_PER_SEGMENT
    segments = TARGET_PROGRAMS * gpu.sms // devices.H200.sms // sweeps
    if on_hopper and segments >= 8:  # then one round of longer ones is faster than two
        segments //= 2
    segments = max(1, min(segments, most))
    if on_hopper and segments == 1:
        segments = segments_for_rounds(sweeps, most, gpu)
    programs = [sweeps * segments]
    for per_program in (CHUNKS_PER_PROGRAM, CHUNKS_PER_SEARCH.value):
        heads = triton.cdiv(slots, per_program) * H
        of_keys, of_values = heads * triton.cdiv(K, keys[0]), heads * triton.cdiv(V, values[1])
        programs.append((per_program, of_keys, of_values))
    of_pairs = [
        [PairSizes(K, V, *block, CHECKPOINT, raw_decay, levels) for levels in (False, True)]
        for block in (keys, values)
    ]
    sizes = (ChunkSizes(K, V, *sweep, CHECKPOINT), *of_pairs, NV)
    return slots, segments, triton.cdiv(chunks, segments), programs, sizes


def gradients(
    r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, scale=1.0, raw_decay=False, between=None,
    ahead=False,
):  # fmt: skip
    """The gradients of r, k, v, w, u and s0 (as if zeros were given, where it is None).

    Args:
        r, k, v, w, u, s0, cu_seqlens, scale, raw_decay: as `wkv6_chunked` takes them.
        checkpoints: states that the forward pass saved, `[count_spans(…), H, K, V]`.
        do, ds1: gradients of o and s1; None counts as zeros.
        between: called with what each segment adds to the gradient of the state,
            `[S, H, segments, K, V]`, and log2 of its decay, before ds1 is read: it may write to it.
        ahead: launches nothing, and returns what such a call launches, so that it can be compiled.

    Returns:
        Tensors of the shapes of r, k, v, w, u and s0, in their dtypes; ds0 in float32.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = (r, k, v, w, u, s0, cu_seqlens, checkpoints, do, ds1, scale, raw_decay)
            return gradients(*arguments, between, ahead)
    signature, arguments = None, (r, k, v, w, u, checkpoints, do, ds1)
    if do is not None and cu_seqlens is between is None and not ahead:
        signature = looks(arguments, "wkv6 backward", scale, raw_decay)
        if again := replay(signature):
            return with_du(u, *again(arguments))
    (B, T, H, K), device = r.shape, r.device
    V, packed, is_float32 = v.shape[-1], cu_seqlens is not None, r.dtype == torch.float32
    sequences = sequences_in(r, cu_seqlens)
    gpu = devices.gpu_of(device)
    do = torch.zeros_like(v) if do is None else do.to(v.dtype)
    r, k, v, w, u, do, checkpoints = [x.contiguous() for x in (r, k, v, w, u, do, checkpoints)]
    if checkpoints.dtype == torch.float16:
        r, k, v, w, do = [aligned(x) for x in (r, k, v, w, do)]
    ds1 = None if ds1 is None else ds1.contiguous()
    cu_seqlens = cu_seqlens.contiguous() if packed else None
    on_hopper = takes_tiles((r, k, v, w, do), V)
    slots, segments, segment, programs, all_sizes = plan(
        B, T, H, K, V, sequences, packed, is_float32, raw_decay, on_hopper, gpu
    )
    sizes, key_sizes, value_sizes, value_blocks = all_sizes
    twice = segments > 1 or between is not None
    pieces = PIECES if segments > 1 and between is None else 1
    if on_hopper:
        segment = triton.cdiv(segment, pieces) * pieces
    kind = ("backward", device, r.dtype, w.dtype, u.dtype, checkpoints.dtype, K, V, raw_decay)
    which = packed, ds1 is None, twice, between is None, on_hopper, scale != 1
    run = Launches((*kind, *which), ahead)

    new, constants = {"dtype": torch.float32, "device": device}, []
    dr, dk, dv, dw = [torch.empty_like(x) for x in (r, k, v, w)]
    ds0 = torch.empty((sequences, H, K, V), **new)
    if on_hopper:
        inputs, results = (r, k, v, w, u, checkpoints, do), (dr, dk, dv, dw, ds0)
        cut = segments, segment, pieces
        du = sweep_on_hopper(run, inputs, results, ds1, cu_seqlens, cut, scale, raw_decay, between)
        constants.append(weights_and_masks(device))
    else:
        local = totals = chunk_bounds = None
        if twice:
            local = run.empty((sequences, H, segments, K, V), device)
            totals = run.empty((sequences, H, segments, K), device)
        d_checkpoints = run.empty(checkpoints.shape, device, checkpoints.dtype)
        dw_across_chunk = run.empty((slots, H, value_blocks, K), device)
        decays = run.empty((slots, H, 2, K), device)
        if packed:
            chunk_bounds = torch.zeros(slots, 2, dtype=torch.int64, device=device)
        for which in [OTHERS if between is None else EACH] * twice + [ALL]:
            run(
                launch, state_gradients, programs[0], 4,
                (r, w, checkpoints, do, ds1, local, totals, cu_seqlens, d_checkpoints,
                 dw_across_chunk, decays, chunk_bounds, ds0),
                (T, H, scale, segment, segments),
                (sizes, raw_decay, which.value),
                maxnreg=None if is_float32 else 128,
            )  # fmt: skip
            if which == EACH:
                run.then(between, local, totals)
        du = torch.zeros(slots, H, K, **new) if packed else torch.empty((slots, H, K), **new)
        warps = 4 if max(K, V) <= 64 else 8
        of_keys = stages_of(key_sizes[0][2:4], is_float32, gpu, checkpoints.dtype == torch.float32)
        of_values = stages_of(value_sizes[0][2:4], is_float32, gpu)
        min_log_decay = run.empty((slots, H), device)
        run.then(torch.amin, decays, (2, 3), out=min_log_decay)
        for levels, (per_program, keys, values) in zip((False, True), programs[1:], strict=True):
            unbounded = gpu.like_hopper and r.dtype == torch.bfloat16 and not levels
            limit = None if unbounded else MAX_REGISTERS
            run(
                launch, keys_gradients, keys, warps,
                (r, k, v, w, u, checkpoints, d_checkpoints, dw_across_chunk, decays, min_log_decay,
                 chunk_bounds, do, dr, dk, dw, du),
                (T, H, scale, slots, per_program),
                (key_sizes[levels], value_blocks, of_keys),
                maxnreg=limit,
            )  # fmt: skip
            run(
                launch, values_gradients, values, warps,
                (r, k, w, u, d_checkpoints, decays, min_log_decay, chunk_bounds, do, dv),
                (T, H, scale, slots, per_program),
                (value_sizes[levels], of_values), maxnreg=limit,
            )  # fmt: skip
    if ahead:
        return run.kernels
    run.finish()
    results = dr, dk, dv, dw, du, ds0
    remember(signature, run, arguments, results, constants)
    return with_du(u, *results)


def sweep_on_hopper(run, inputs, results, ds1, cu_seqlens, cut, scale, raw_decay, between):
    """Launches what gives all gradients on Hopper; run: `Launches`.

    Returns:
        du of each sequence, head, segment and block.
    """
    r, k, v, w, u, checkpoints, do = inputs
    *gradients, ds0 = results
    (B, T, H, K), V, device, half = r.shape, v.shape[-1], r.device, r.dtype == torch.float16
    S, NK, NV, scaled = len(ds0), K // 64, V // 64, scale != 1
    segments, segment, pieces = cut
    twice = segments > 1 or between is not None
    whole = takes_whole_heads(r, V) and not twice  # a program takes all values
    rows = list(gradients)  # what the sweep writes: of large heads parts, of each block one
    for n, blocks in enumerate((NV, NV, NK, NV)):
        if NK * NV > 1 and not (whole and n != 2):
            rows[n] = run.empty((blocks, *gradients[n].shape), device)
    du = torch.empty((S, H, segments, NK, NV, 64), dtype=torch.float32, device=device)
    *keys, of_v, of_o = [tiles(x, H * x.shape[-1], CHECKPOINT) for x in (r, k, w, v, do)]
    read = *keys[:2], of_v, keys[2], u, tiles(checkpoints, V)
    tables = weights_and_masks(device), of_o

    local = totals = None
    if twice:
        local = run.empty((S, H, segments * pieces, K, V), device)
        totals = run.empty((S, H, segments * pieces, K), device)
        first = pieces * (between is None)  # what the first segment adds is then not needed
        count = segments * pieces - first
        run(
            launch_tiles, wkv6_segment_states_kernel, (S * H * NK * NV * count, 1, 1), 4,
            (keys[2], keys[0], of_o, cu_seqlens, local, totals),
            (T, H, segments * pieces, segment // pieces * CHECKPOINT, first, count, scale),
            (K, V, True, raw_decay, scaled, half),
        )  # fmt: skip
        if between is not None:
            run.then(between, local, totals)
    if not whole:
        described = [tiles(x, H * x.shape[-1], CHECKPOINT) for x in rows]
        run(
            launch_tiles, sweep_hopper_kernel, (S * H * segments * NK * NV, 1, 1), 4,
            (*read, checkpoints if half else None, *tables, ds1, local, totals, cu_seqlens,
             *described, *rows, du, ds0),
            (T, H, scale, segment, segments, pieces, B * T), (K, V, raw_decay, scaled, half),
        )  # fmt: skip
    else:
        half_chunks = [tiles(x, H * K, CHECKPOINT // 2) for x in rows]
        described = *half_chunks[:2], tiles(rows[2], H * V, CHECKPOINT), half_chunks[3]
        run(
            launch_tiles, wkv6_wide_sweep_kernel, (S * H * NK, 1, 1), 4,
            (*read, *tables, ds1, None, None, cu_seqlens, *described, *rows, du, ds0),
            (T, H, scale, segment, segments, pieces, B * T), (raw_decay, scaled),
            maxnreg=REGISTERS.value,
        )  # fmt: skip
    for x, of_x in zip(gradients, rows, strict=True):
        if of_x.ndim > x.ndim:
            sum_parts(run, of_x, x)
    return du


def with_du(u, dr, dk, dv, dw, du, ds0):
    """The gradients, with the sum of du over chunks, or sequences, segments and blocks."""
    du = du.sum(0) if du.ndim == 3 else du.sum((0, 2, 4)).view(u.shape)
    return dr, dk, dv, dw, du.to(u.dtype), ds0


backward = define_backward("chunked", gradients)
