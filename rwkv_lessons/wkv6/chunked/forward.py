"""WKV-6 in chunks, as Triton kernels: matrix products on tensor cores, the state in registers.

A program owns some values (columns of the state) of one head and loops over chunks of tokens. With
r, k and S decayed to the end of the chunk (tiles.py), a chunk is

    o = r S + tril(r kᵀ, bonus on the diagonal) v          S ← S + kᵀ v

r, k, v, w and o move once. hopper/forward.py does the same on Hopper, in 16 bits and for heads of
any multiples of 64, in half of the time, and hopper/wide.py for those of 128 in bfloat16; this
kernel is for all else. Registers bound it: 255 leave room for two programs an SM, too few to hide
what its barriers cost (docs/designs_wkv6.md). r
decayed to the end grows; where decays are too strong for that S is still right, and o is recomputed
(strong.py). On Hopper a program takes such chunks another way (hopper/strong.py). Where there are
few heads, several programs share one sequence (segments.py). Gradients: backward.py.
"""

import torch
import triton
import triton.language as tl

from ...runtime import devices
from ...runtime.assembler import distrusted
from ...runtime.bounded import remembered
from ...runtime.compile_triton import Launches, assembled
from ...runtime.launch_tiles import launch_tiles
from ...runtime.launch_triton import launch
from ...runtime.operators import call
from ...runtime.plain import launches_directly
from ...runtime.replay import looks, remember, replay
from ...sequences.arguments import empty_results, holds_float64, sequences_in, wants_gradients
from ...sequences.spans import count_spans, first_span, program_place, sequence_bounds
from ..autograd import define_forward, keep_inputs
from ..doubling import wkv6_doubling
from ..options import check_call
from .backward import backward, gradients
from .hopper.forward import wkv6_hopper_kernel
from .hopper.segments import wkv6_segment_states_kernel
from .hopper.tiles import aligned, takes_tiles, tiles
from .hopper.wide import REGISTERS, wkv6_wide_kernel
from .hopper.wide_tiles import takes_whole_heads
from .parts import sum_parts
from .segments import (
    cut_on_hopper,
    segments_for,
    state_before_segment,
    wkv6_segments_kernel,
)
from .sizes import CHECKPOINT, ChunkSizes, largest, rows_of_state
from .strong import GROUP, GROUPS_PER_PROGRAM, wkv6_strong_kernel
from .tiles import FITS_TO_END, LOG2E, log2_decays, log_decay, of_halves, product

TOKENS_A_STATE = tl.constexpr(CHECKPOINT)
TILE = {2: 64 * 64, 4: 16 * 64}  # elements of r that registers hold, by the bytes of one
# GPUs other than Hopper: as many of r, and of the state. They were chosen by spills and not timed.
SMALL_TILE, SMALL_STATE = {2: 32 * 64, 4: 16 * 64}, 64 * 64


@assembled
@triton.jit(do_not_specialize=["has_s0", "T", "H", "segments", "span", "groups", "scale"])
def wkv6_chunked_fwd_kernel(
    r, k, v, w, u, s0, cu_seqlens, segment_states, segment_decays, o, s1, checkpoints,
    group_states, strong,
    has_s0, T, H, segments, span, groups, scale,
    SIZES: tl.constexpr, GROUP: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """checkpoints: gets the states before tokens 0, CHECKPOINT, …, or is None.

    group_states: the state before each GROUP of tokens; None where checkpoints has it.
    strong: int8 flags, [programs, groups, BK]: the keys for which o of a group is recomputed.
    """
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BK: tl.constexpr = SIZES.BK
    BV: tl.constexpr = SIZES.BV
    C: tl.constexpr = SIZES.C
    DTYPE: tl.constexpr = v.dtype.element_ty
    IS_FLOAT32: tl.constexpr = DTYPE == tl.float32
    i_n, i_g, i_h, i_v = program_place(tl.program_id(0), segments, H, V, BV)
    start, end = sequence_bounds(cu_seqlens, i_n, T)
    skipped = i_g.to(tl.int64) * span
    n = tl.minimum(end - start - skipped, span).to(tl.int32)
    i_checkpoint = first_span(cu_seqlens, start, i_n, T, TOKENS_A_STATE) + skipped // TOKENS_A_STATE

    o_t, o_k, o_v = tl.arange(0, C), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    row, col = o_t[:, None], o_t[None, :]
    m_k, m_v = (o_k < K)[None, :], (o_v < V)[None, :]
    o_tk, o_tv = row * (H * K) + o_k[None, :], row * (H * V) + o_v[None, :]
    o_s, m_s = o_k[:, None] * V + o_v[None, :], (o_k < K)[:, None] & m_v
    o_before = o_k[:, None] * BV + tl.arange(0, BV)[None, :]
    i_s = (i_n * H + i_h) * K * V
    b_u = tl.load(u + i_h * K + o_k, o_k < K, 0.0).to(tl.float32)
    b_s = tl.load(s0 + i_s + o_s, m_s & (has_s0 != 0), 0.0).to(tl.float32)
    if segment_states is not None:
        b_s = state_before_segment(
            b_s, segment_states, segment_decays, i_n, i_g, i_h, segments, H, o_k, o_s, m_s, K, V
        )
    halves, b_fits = of_halves(row, C), tl.full([BK], 1, tl.int32)

    for t in tl.range(0, n, C, num_stages=1):  # more leave room for fewer programs
        at, m_t = (start + skipped + t) * H + i_h, row < n - t
        b_w = log_decay(w + at * K + o_tk, m_t & m_k, RAW)
        b_r = tl.load(r + at * K + o_tk, m_t & m_k, 0.0).to(tl.float32) * scale
        b_k = tl.load(k + at * K + o_tk, m_t & m_k, 0.0).to(tl.float32)
        b_v = tl.load(v + at * V + o_tv, m_t & m_v, 0.0)
        b_halves = log2_decays(halves, b_w, IS_FLOAT32, BY_KEY=True)  # eight columns for each half
        b_total = tl.sum(b_halves, 1) / 8  # [BK]
        b_bonus = tl.sum(b_r * b_k * b_u[None, :], 1)[:, None]  # [C, 1]
        slot = i_checkpoint + t // TOKENS_A_STATE
        if checkpoints is not None:
            if C >= TOKENS_A_STATE or t % TOKENS_A_STATE == 0:
                save_state(checkpoints, slot, H, i_h, o_s, m_s, b_s, K, V)
        i_group = tl.program_id(0).to(tl.int64) * groups + t // GROUP
        if group_states is not None:
            if t % GROUP == 0:
                b_before = b_s.to(group_states.dtype.element_ty)
                tl.store(group_states + i_group * BK * BV + o_before, b_before)
        b_fits &= (b_total >= -FITS_TO_END).to(tl.int32)  # NaN does not
        if (t + C) % GROUP == 0 or t + C >= n:
            tl.store(strong + i_group * BK + o_k, 1 - b_fits)
            b_fits = tl.full([BK], 1, tl.int32)

        b_later = log2_decays(col > row, b_w, IS_FLOAT32)
        b_k *= tl.exp2(b_later)
        b_r *= tl.exp2(tl.minimum(-b_later - b_w.to(tl.float32) * LOG2E, FITS_TO_END))
        b_s *= tl.exp2(b_total)[:, None]
        b_a = product(b_r, tl.trans(b_k), tl.zeros([C, C], tl.float32), DTYPE)
        b_a = tl.where(row > col, b_a, tl.where(row == col, b_bonus, 0.0))
        b_read = b_s.to(DTYPE) if DTYPE == tl.bfloat16 else b_s
        b_o = product(b_r, b_read, tl.zeros([C, BV], tl.float32), DTYPE)
        b_o = product(b_a, b_v, b_o, DTYPE)
        if checkpoints is not None and C > TOKENS_A_STATE:  # one more, in the middle of the chunk
            b_second = tl.sum(tl.where(tl.arange(0, 16)[None, :] < 8, 0.0, b_halves), 1) / 8
            b_before = tl.where(row < C // 2, b_k, 0.0)
            b_middle = product(tl.trans(b_before), b_v, b_s, DTYPE) * tl.exp2(-b_second)[:, None]
            if t + C // 2 < n:
                save_state(checkpoints, slot + 1, H, i_h, o_s, m_s, b_middle, K, V)
        b_s = product(tl.trans(b_k), b_v, b_s, DTYPE)
        tl.store(o + at * V + o_tv, b_o.to(DTYPE), m_t & m_v)

    is_last = i_g == tl.maximum(tl.cdiv(end - start, span) - 1, 0)
    tl.store(s1 + i_s + o_s, b_s, m_s & is_last)


@triton.jit
def save_state(checkpoints, slot, H, i_h, o_s, m_s, b_s, K: tl.constexpr, V: tl.constexpr):
    at = (slot * H + i_h) * K * V
    tl.store(checkpoints + at + o_s, b_s.to(checkpoints.dtype.element_ty), m_s)


def forward(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, keep):
    """o, s1 and, where `keep`, the checkpoints that the backward kernels start from."""
    shape, dtype = describe_checkpoints(r, k, v, w, cu_seqlens, keep)
    new = (
        torch.empty if cu_seqlens is None else torch.zeros
    )  # indices between packed sequences stay unused
    checkpoints = new(shape, dtype=dtype, device=r.device)
    o, s1 = run_forward(
        r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, checkpoints if keep else None
    )
    return o, s1, checkpoints


def describe_checkpoints(r, k, v, w, cu_seqlens, keep):
    """[count, H, rows of a state, V], without reading cu_seqlens; nothing if not `keep`. And a
    dtype.

    It is that of r, but in float16, not on Hopper, float32, as a state may exceed 65,504. On Hopper
    it then has more rows, with exponents.
    """
    sequences = None if cu_seqlens is None else sequences_in(r, cu_seqlens)
    count = count_spans(*r.shape[:2], sequences, CHECKPOINT) if keep else 0
    (_, _, H, K), V = r.shape, v.shape[3]
    half = r.dtype == torch.float16 and takes_tiles((r, k, v, w), V, False)
    return (count, H, rows_of_state(K, half), V), torch.float16 if half else states_dtype(r)


def states_dtype(r):
    return torch.bfloat16 if r.dtype == torch.bfloat16 else torch.float32


def run_forward(
    r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, checkpoints=None, segment_maps=None
):
    """Allocates o and s1 and launches the kernels.

    segment_maps: states and decays of all segments, if they are known; sequences are not packed.
    """
    if r.is_cuda and r.get_device() != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            arguments = (r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
            return run_forward(*arguments, checkpoints, segment_maps)
    signature, arguments = None, (r, k, v, w, u, s0, checkpoints)
    if cu_seqlens is None and segment_maps is None:
        signature = looks(arguments, "wkv6 forward", scale, raw_decay)
        if again := replay(signature):
            return tuple(again(arguments))
    r, k, v, w, u = r.contiguous(), k.contiguous(), v.contiguous(), w.contiguous(), u.contiguous()
    if checkpoints is not None and checkpoints.dtype == torch.float16:
        r, k, v, w = [aligned(x) for x in (r, k, v, w)]
    (B, T, H, K), V, device = r.shape, v.shape[3], r.device
    S, packed = sequences_in(r, cu_seqlens), cu_seqlens is not None
    cu_seqlens = cu_seqlens.contiguous() if packed else None

    gpu = devices.gpu_of(device)
    programs, segments, span, warps, sizes = tile_for(S * H, T, K, V, r.dtype, gpu)
    _, _, BK, BV, _ = sizes
    # Unless told, ptxas gives the longest kernels of older architectures 40 registers, and spills.
    options = {"maxnreg": None if gpu.like_hopper else 255}
    NK, half = K // 64, r.dtype == torch.float16  # on Hopper
    on_hopper = takes_tiles((r, k, v, w), V)
    whole = on_hopper and takes_whole_heads(r, V)
    in_parts = on_hopper and NK > 1 and not whole  # of o, one for each block of keys
    skip, pieces = 0, 1
    if on_hopper and segment_maps is None:
        blocks = programs if whole else programs * NK
        measured = K == V == 64 and not half and not packed
        skip, segments, span, pieces = cut_on_hopper(blocks, T, gpu.sms, measured)
    all_programs, groups = programs * segments, -(-span // GROUP)
    keep, scaled = checkpoints is not None, scale != 1
    kind = ("forward", device, r.dtype, w.dtype, u.dtype, sizes, segments > 1, raw_decay)
    run = Launches((*kind, on_hopper, scaled, packed, keep, skip > 0))

    segment_states = segment_decays = None
    if segments > 1 and segment_maps is not None:
        segment_states, segment_decays = (x[:, :-1].contiguous() for x in segment_maps)
    elif segments > 1:
        segment_states = run.empty((S, (segments - 1) * pieces, H, K, V), device)
        segment_decays = run.empty((S, (segments - 1) * pieces, H, K), device)
    new = {"dtype": torch.float32, "device": device}
    o = torch.empty_like(v)
    s1 = torch.empty((S, H, K, V), **new)
    start, has_s0 = (s1, 0) if s0 is None else (s0.contiguous(), 1)
    if on_hopper:
        inputs = [tiles(x, H * x.shape[3]) for x in (r, k, v, w)]
        written = None if in_parts else tiles(o, H * V)
        rows = run.empty((NK, *v.shape), device) if in_parts else o
        states = tiles(checkpoints, V) if keep and not half else checkpoints

        def sweep(start, has_s0, end, skip, segments, span, *states_before):
            tensors = (*inputs, u, start, cu_seqlens, *states_before, written, rows, end, states)
            numbers = has_s0, T, H, skip, segments, span, pieces, scale
            if whole:  # of which a program fills an SM, and takes all of its values
                run(
                    launch_tiles, wkv6_wide_kernel, (S * H * segments, 1, 1), 4, tensors, numbers,
                    (raw_decay, scaled), maxnreg=REGISTERS.value,
                )  # fmt: skip
            else:
                run(
                    launch_tiles, wkv6_hopper_kernel, (programs * segments * NK, 1, 1), 4, tensors,
                    (*numbers, B * T), (K, V, CHECKPOINT, raw_decay, scaled, half),
                )  # fmt: skip

        if skip:  # while the next launch runs
            after = run.empty((S, H, K, V), device)
            sweep(start, has_s0, after, 0, 1, skip, None, None)
            start, has_s0 = after, 1
        if segments > 1 and segment_maps is None:
            count, piece = (segments - 1) * pieces, span // pieces
            run(
                launch_tiles, wkv6_segment_states_kernel, (programs * NK * count, 1, 1), 4,
                (*(tiles(x, H * x.shape[3], CHECKPOINT) for x in (w, k, v)), cu_seqlens,
                 segment_states, segment_decays),
                (T, H, count + 1, piece, skip // piece, count, 1.0),
                (K, V, False, raw_decay, False, half), launch_pdl=skip > 0,
            )  # fmt: skip
        sweep(start, has_s0, s1, skip, segments, span, segment_states, segment_decays)
        if in_parts:
            sum_parts(run, rows, o)
    else:
        if segments > 1 and segment_maps is None:
            run(
                launch, wkv6_segments_kernel, programs * (segments - 1), warps,
                (k, v, w, cu_seqlens, segment_states, segment_decays), (T, H, segments, span),
                (*sizes, raw_decay), **options,
            )  # fmt: skip
        inputs, numbers = (r, k, v, w), (has_s0, T, H, segments, span)
        more_inputs = u, start, cu_seqlens, segment_states, segment_decays
        group_states = None
        if not keep:
            group_states = run.empty((all_programs, groups, BK, BV), device, states_dtype(r))
        strong = run.empty((all_programs, groups, BK), device, torch.int8)
        run(
            launch, wkv6_chunked_fwd_kernel, all_programs, warps,
            (*inputs, *more_inputs, o, s1, checkpoints, group_states, strong),
            (*numbers, groups, scale), (sizes, GROUP, raw_decay), **options,
        )  # fmt: skip
        run(
            launch, wkv6_strong_kernel, all_programs * -(-groups // GROUPS_PER_PROGRAM), warps,
            (*inputs, u, cu_seqlens, group_states, strong, o, checkpoints),
            (T, H, segments, span, groups, scale),
            (sizes, CHECKPOINT, GROUP, GROUPS_PER_PROGRAM, raw_decay), **options,
        )  # fmt: skip
    run.finish(lambda: keep and gradients(
        r, k, v, w, u, s0, cu_seqlens, checkpoints, o, None, scale, raw_decay, ahead=True,
    ) or [])  # fmt: skip
    remember(signature, run, arguments, (o, s1))
    return o, s1


@remembered
def tile_for(heads, T, K, V, dtype, gpu):
    """Programs of a segment, segments, tokens of one, warps, and the kernels' sizes."""
    least = 64 if dtype.itemsize == 2 else 16  # of 16 bits, all sizes take the same machine code
    BK, BV = (max(least, triton.next_power_of_2(x)) for x in (K, V))
    BV, tile = min(BV, 64), TILE
    if not gpu.like_hopper:
        BV, tile = max(16, min(BV, SMALL_STATE // BK)), SMALL_TILE
    C = max(16, min(2 * CHECKPOINT, tile[dtype.itemsize] // BK))
    if gpu.capability[0] == 10:  # Triton 3.7 cannot compile strong.py's products between runs of 16
        C = 16
    programs = heads * triton.cdiv(V, BV)
    sizes = ChunkSizes(K, V, BK, BV, C)
    return programs, *segments_for(programs, T, gpu.sms), 4 if BK <= 64 else 8, sizes


def forward_shapes(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay, keep):
    """What `forward` returns, without values."""
    shape, dtype = describe_checkpoints(r, k, v, w, cu_seqlens, keep)
    checkpoints = r.new_empty(shape, dtype=dtype)
    return *empty_results(r, v, cu_seqlens), checkpoints


define_forward("chunked", forward, forward_shapes, backward)


def has_kernel(r, k, v, w, u, s0):
    """Whether these kernels compute what is on this device and of these types and sizes."""
    if not r.is_cuda or holds_float64(r, w, u, s0):
        return False
    gpu = devices.gpu_of(r.device)
    if r.dtype == torch.float32 and distrusted(gpu.capability):
        return False
    return r.shape[3] <= largest(r.dtype, gpu)


def wkv6_chunked(r, k, v, w, u, s0=None, *, cu_seqlens=None, scale=1.0, raw_decay=False):
    """Same arguments and results as `wkv6`, for many tokens on a GPU; `wkv6_doubling` elsewhere.

    Errors, relative to float64, of o and of gradients: 2.4e-3 for bfloat16 inputs (2.5e-3 in a
    sequence of one chunk) and 3.5e-4 for float16, most of it their rounding; 1e-5 for float32. s1
    is right to 1e-5 in all. With more than 256 keys it is `wkv6_doubling`, too, on GPUs other than
    Hopper with more than 128, or 64 in float32; and in float32 where only an assembler is there
    that makes it wrong (`rwkv_lessons.runtime.assembler`).
    """
    check_call(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    if not has_kernel(r, k, v, w, u, s0):
        return wkv6_doubling.checked(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    return chunked(r, k, v, w, u, s0, cu_seqlens, float(scale), raw_decay)


def chunked(r, k, v, w, u, s0, cu_seqlens, scale, raw_decay):
    """`wkv6_chunked` of arguments that were checked, on a GPU."""
    arguments = (r, k, v, w, u, s0, cu_seqlens, scale, raw_decay)
    keep = torch.is_grad_enabled() and wants_gradients(r, k, v, w, u, s0)
    if not launches_directly(*arguments[:7]):
        return call(torch.ops.rwkv_lessons.wkv6_chunked_forward, *arguments, keep)[:2]
    if not keep:
        return run_forward(*arguments)
    results = forward(*arguments, True)  # the GPU is at work before autograd is told
    return ChunkedFunction.apply(*arguments, results)


class ChunkedFunction(torch.autograd.Function):
    """The operator without torch's dispatcher: half the host's time of a training step."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, results = arguments
        keep_inputs(ctx, (*inputs, True), results)
        return results[:2]

    @staticmethod
    def backward(ctx, do, ds1):  # with create_graph the operator's, which refuses a second one
        return backward(ctx, do, ds1, None)
