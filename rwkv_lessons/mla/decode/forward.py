"""Split decode: a few queries against a long latent cache, in two Triton kernels.

The heads of a sequence (times its query tokens) are the rows of one tile, so a tile of the cache
is loaded once for all of them, and serves as keys and as values. The cache of a sequence is cut
into splits, one program each. A program writes, for each row, its part of the sum in the latent
space, and the log-sum-exp that says what the part weighs:

    part[i] = Σ softmax(s) c  over its own tokens        o = w_v Σ softmax(lse)[i] part[i]

The second kernel takes a head and some rows, adds the parts up and multiplies by that head's w_v,
which is then read once and not once a split. Parts are float32; log-sum-exps are in base 2. On
Hopper both are in Gluon where sizes suit: hopper.py, for DeepSeek's turns.py, and combine.py; and
parts are float16 there (parts.py).

What bounds it: the cache is read once, B·N·(R + P) elements, up to about 100 rows; beyond, it is
the arithmetic, 2(2R + P) flops for each row and token, padded to a tile's rows.
"""

import math

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...runtime import devices
from ...runtime.arguments import learns
from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch
from ...runtime.operators import call
from ...runtime.plain import launches_directly
from ..absorbed import absorb, absorbed
from ..arguments import LARGEST_RANK, check_arguments
from ..cache import attend_plainly
from . import compact, turns
from .combine import ROWS, WARPS, combine_hopper_kernel, pieces_in_flight
from .hopper import RANKS, ROPE_SIZES, decode_hopper_kernel
from .programs import (
    NOT_SPECIALIZED,
    DecodeSizes,
    program_place,
    strides_of_cache,
    strides_of_query,
    tokens_of_split,
)
from .splits import (
    combine_columns,
    combine_tile,
    decode_tile,
    splits_for,
)

LOG2E = 1.4426950408889634
LN2 = tl.constexpr(0.6931471805599453)
MIN_SCORE = tl.constexpr(-1e30)  # below any score; -inf - -inf would be NaN


@assembled
@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def decode_kernel(
    q, q_rope, latent, k_rope, lengths, left_padding, table, parts, lse, scale, q_b, q_m, q_h, r_b,
    r_m, r_h, c_b, k_b, table_b, pages, M, N, S, SIZES: tl.constexpr,
):  # fmt: skip
    H: tl.constexpr = SIZES.H
    R: tl.constexpr = SIZES.R
    P: tl.constexpr = SIZES.P
    c_n: tl.constexpr = SIZES.c_n
    k_n: tl.constexpr = SIZES.k_n
    PAGE: tl.constexpr = SIZES.PAGE
    BM: tl.constexpr = SIZES.BM
    BN: tl.constexpr = SIZES.BN
    BR: tl.constexpr = SIZES.BR
    BP: tl.constexpr = SIZES.BP
    STAGES: tl.constexpr = SIZES.STAGES
    PRECISION: tl.constexpr = SIZES.PRECISION
    if SIZES.PDL:
        gdc_launch_dependents()
    q_b, q_m, q_h = strides_of_query(q_b, q_m, q_h, SIZES.UNIT)
    r_b, r_m, r_h = strides_of_query(r_b, r_m, r_h, SIZES.UNIT)
    c_b, k_b = strides_of_cache(c_b, k_b, SIZES.UNIT)
    i_row, i_s, i_b, rows = program_place(M, S, H, BM)
    o_row = i_row * BM + tl.arange(0, BM)
    i_m, i_h = o_row // H, o_row % H
    o_n, o_r, o_p = tl.arange(0, BN), tl.arange(0, BR), tl.arange(0, BP)
    m_row, m_r, m_p = (o_row < M * H)[:, None], (o_r < R)[None, :], (o_p < P)[None, :]

    at = i_b * q_b + i_m.to(tl.int64) * q_m + i_h * q_h
    b_q = tl.load(q + at[:, None] + o_r[None, :], m_row & m_r, 0.0)  # [BM, BR]
    at = i_b * r_b + i_m.to(tl.int64) * r_m + i_h * r_h
    b_qr = tl.load(q_rope + at[:, None] + o_p[None, :], m_row & m_p, 0.0)  # [BM, BP]

    start, stop, end = tokens_of_split(lengths, left_padding, i_b, i_s, N, S, BN)
    last = end - M + i_m  # the last token that a row sees

    if PAGE:
        table += i_b * table_b
        b_page = tl.load(table + (start + o_n) // PAGE, start + o_n < stop, 0)
    else:
        latent += i_b * c_b
        k_rope += i_b * k_b
    b_top = tl.full([BM], MIN_SCORE, tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    b_part = tl.zeros([BM, BR], tl.float32)
    for n0 in tl.range(start, stop, BN, num_stages=STAGES):
        n = n0 + o_n
        # Tokens past the end are zeros: NaN in an empty slot, times a weight of 0, would be NaN.
        m_n = (n < stop)[:, None]
        if PAGE:
            b_page = tl.where((b_page >= 0) & (b_page < pages), b_page, 0)  # reads nothing outside
            at_c = b_page.to(tl.int64) * c_b + n % PAGE * c_n
            at_k = b_page.to(tl.int64) * k_b + n % PAGE * k_n
            b_page = tl.load(table + (n + BN) // PAGE, n + BN < stop, 0)  # one tile ahead
        else:
            at_c, at_k = n.to(tl.int64) * c_n, n.to(tl.int64) * k_n
        b_c = tl.load(latent + at_c[:, None] + o_r[None, :], m_n & m_r, 0.0)  # [BN, BR]
        b_k = tl.load(k_rope + at_k[:, None] + o_p[None, :], m_n & m_p, 0.0)  # [BN, BP]

        b_s = tl.dot(b_q, tl.trans(b_c), input_precision=PRECISION)
        b_s = tl.dot(b_qr, tl.trans(b_k), b_s, input_precision=PRECISION)
        is_visible = (n[None, :] <= last[:, None]) & (n < stop)[None, :]
        b_s = tl.where(is_visible, b_s * scale, float("-inf"))  # [BM, BN]
        top = tl.maximum(b_top, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - top[:, None])
        rescale = tl.exp2(b_top - top)
        b_sum = b_sum * rescale + tl.sum(b_p, 1)
        b_part = b_part * rescale[:, None]
        b_part = tl.dot(b_p.to(b_c.dtype), b_c, b_part, input_precision=PRECISION)
        b_top = top

    at = (i_h.to(tl.int64) * rows + i_b * M + i_m) * S + i_s
    b_part = b_part / tl.where(b_sum > 0, b_sum, 1)[:, None]
    tl.store(parts + at[:, None] * R + o_r[None, :], b_part, m_row & m_r)
    tl.store(lse + at, b_top + tl.log2(b_sum), o_row < M * H)


@assembled
@triton.jit(do_not_specialize=["rows", "S"])
def combine_kernel(
    parts, units, part_lse, w_v, o, lse, rows, S, w_h: tl.constexpr, w_n: tl.constexpr,
    H: tl.constexpr, R: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BS: tl.constexpr,
    BR: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """BM rows of one head and all BS splits of each, BR columns of the latent at a time.

    Each part is multiplied by w_v before they are added up, w_v Σ part = Σ w_v part: the splits
    fill the rows that the tensor cores want.
    """
    i_h, i_row = tl.program_id(0) % H, tl.program_id(0) // H * BM
    o_x, o_v = tl.arange(0, BM * BS), tl.arange(0, BV)
    o_row, o_s = i_row + o_x // BS, o_x % BS
    at = (i_h.to(tl.int64) * rows + o_row) * S + o_s
    at_w = i_h.to(tl.int64) * w_h + o_v.to(tl.int64) * w_n
    if PDL:
        gdc_wait()

    m_x = (o_row < rows) & (o_s < S)
    b_lse = tl.load(part_lse + at, m_x, float("-inf"))
    top = tl.maximum(tl.max(tl.reshape(b_lse, [BM, BS]), 1), MIN_SCORE)
    tops = tl.reshape(tl.broadcast_to(top[:, None], [BM, BS]), [BM * BS])
    weight = tl.exp2(b_lse - tops)
    total = tl.sum(tl.reshape(weight, [BM, BS]), 1)
    if units is not None:
        weight *= tl.load(units + at, m_x, 0.0)

    b_v = tl.zeros([BM * BS, BV], tl.float32)
    for r0 in tl.range(0, R, BR, num_stages=STAGES):
        o_r = r0 + tl.arange(0, BR)
        m_r = (o_r < R)[None, :]
        b_part = tl.load(parts + at[:, None] * R + o_r[None, :], m_x[:, None] & m_r, 0.0)
        b_w = tl.load(w_v + at_w[:, None] + o_r[None, :], (o_v < V)[:, None] & m_r, 0.0)
        b_part = b_part.to(tl.float32) * weight[:, None]
        if w_v.dtype.element_ty == tl.float32:
            b_v = tl.dot(b_part, tl.trans(b_w), b_v, input_precision=PRECISION)
        else:  # the sum in two pieces of w_v's dtype, so that rounding it costs nothing
            coarse = b_part.to(b_w.dtype)
            fine = (b_part - coarse.to(tl.float32)).to(b_w.dtype)
            b_v = tl.dot(fine, tl.trans(b_w), tl.dot(coarse, tl.trans(b_w), b_v))
    b_o = tl.sum(tl.reshape(b_v, [BM, BS, BV]), 1) / tl.where(total > 0, total, 1)[:, None]

    o_row = i_row + tl.arange(0, BM)
    at = o_row.to(tl.int64) * H + i_h
    m_row = o_row < rows
    tl.store(o + at[:, None] * V + o_v[None, :], b_o, m_row[:, None] & (o_v < V)[None, :])
    tl.store(lse + at, (top + tl.log2(total)) * LN2, m_row)


def forward(q, q_rope, latent, k_rope, w_v, scale, lengths, left_padding, block_table):
    """o and lse for an absorbed q, sizes checked: see `mla_decode`."""
    if q.is_cuda and q.device.index != torch.cuda.current_device():
        with torch.cuda.device(q.device):
            return forward(
                q, q_rope, latent, k_rope, w_v, scale, lengths, left_padding, block_table
            )
    q, q_rope, latent, k_rope, w_v = map(_contiguous_rows, (q, q_rope, latent, k_rope, w_v))
    (B, M, H, R), P, V, N = q.shape, q_rope.shape[-1], w_v.shape[1], latent.shape[1]
    lengths, left_padding = (x if x is None else x.contiguous() for x in (lengths, left_padding))
    page_size = 0
    if block_table is not None:
        page_size, N = N, N * block_table.shape[1]
        block_table = _contiguous_rows(block_table)

    gpu = devices.gpu_of(q.device)
    tile = decode_tile(M * H, R, P, q.dtype, gpu)
    programs, tiles = B * -(-M * H // tile.rows), -(-N // tile.tokens)
    splits = splits_for(programs, tiles, gpu.sms, tile.side_by_side)
    strides = (*q.stride()[:3], *q_rope.stride()[:3], latent.stride(0), k_rope.stride(0))
    unit = 16 if math.gcd(*strides) % 16 == 0 else 1
    hopper = unit == 16 and gpu.capability == (9, 0) and for_hopper(tile, q, q_rope, latent, k_rope)
    dtype = torch.float16 if hopper else torch.float32
    parts = torch.empty((H, B * M, splits, R), dtype=dtype, device=q.device)
    part_lse = torch.empty((H, B * M, splits), dtype=torch.float32, device=q.device)
    units = torch.empty_like(part_lse) if hopper else None
    o = torch.empty((B, M, H, V), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, M, H), dtype=torch.float32, device=q.device)

    BR, BP = (max(16, triton.next_power_of_2(x)) for x in (R, P))
    precision = "tf32x3" if q.dtype == torch.float32 else None
    overlap = gpu.capability >= (9, 0)  # the second kernel is launched while the first runs
    sizes = (unit, H, R, P, latent.stride(1), k_rope.stride(1), page_size, *tile[:2], overlap)
    results = (parts, units, part_lse) if hopper else (parts, part_lse)
    tensors = (q, q_rope, latent, k_rope, lengths, left_padding, block_table, *results)
    if hopper and turns.takes(q, q_rope, latent, k_rope, page_size, left_padding):
        turns.attend(
            *tensors, scale * LOG2E, N, page_size, programs * splits,
        )  # fmt: skip
    else:
        kernel, warps = decode_hopper_kernel, tile.warps
        if not hopper:
            kernel, sizes = decode_kernel, (*sizes, BR, BP, tile.stages, precision)
        launch(
            kernel, programs * splits, warps, tensors,
            (scale * LOG2E, *[stride // unit for stride in strides],
             0 if block_table is None else block_table.stride(0), latent.shape[0], M, N, splits),
            (DecodeSizes(*sizes),),
        )  # fmt: skip
    combine(parts, units, part_lse, w_v, o, lse, gpu)
    return o, lse


def combine(parts, units, part_lse, w_v, o, lse, gpu):
    """The second kernel: adds up the parts `[H, rows, splits, R]` and multiplies by w_v.

    units: what the rows of parts are in, `[H, rows, splits]`; None: parts are as they are.
    """
    H, rows, splits, R = parts.shape
    V, overlap = w_v.shape[1], gpu.capability >= (9, 0)
    numbers, pointers = (rows, splits), (parts, units, part_lse, w_v, o, lse)
    stages = pieces_in_flight(R, V, gpu, parts.itemsize) if whole_rows(w_v) else 0
    if stages and w_v.dtype != torch.float32:
        splits_per_program = 1 << (splits - 1).bit_length()
        few = ROWS // splits_per_program
        constants = (*w_v.stride()[:2], H, R, V, few, splits_per_program, stages, overlap)
        kernel, warps = combine_hopper_kernel, WARPS
    else:
        few, splits_per_program = combine_tile(rows, H, R, splits)
        BR, BV = (max(16, triton.next_power_of_2(x)) for x in (R, V))
        columns = combine_columns(few * splits_per_program, BV, w_v.dtype, gpu)
        precision = "tf32x3" if w_v.dtype == torch.float32 else None
        constants = (*w_v.stride()[:2], H, R, V, few, splits_per_program, min(BR, columns), BV, 3)
        constants = (*constants, precision, overlap)
        kernel, warps = combine_kernel, 4
    launch(kernel, H * -(-rows // few), warps, pointers, numbers, constants, launch_pdl=overlap)


def for_hopper(tile, q, q_rope, latent, k_rope):
    """Whether the Gluon kernel can take these: its sizes, and rows that begin at 16 bytes."""
    fits = tile.rows == 64 and q.shape[-1] in RANKS and q_rope.shape[-1] in ROPE_SIZES
    rows = [x.data_ptr() for x in (q, q_rope, latent, k_rope)]
    return fits and math.gcd(*rows, 2 * latent.stride(1), 2 * k_rope.stride(1)) % 16 == 0


def whole_rows(w_v):
    """Whether rows of w_v begin at 16 bytes."""
    return math.gcd(w_v.data_ptr(), 2 * w_v.stride(0), 2 * w_v.stride(1)) % 16 == 0


def _contiguous_rows(x):
    return x if x.stride(-1) == 1 else x.contiguous()


def forward_shapes(q, q_rope, latent, k_rope, w_v, scale, lengths, left_padding, block_table):
    o = q.new_empty(*q.shape[:3], w_v.shape[1])
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


NAME = "rwkv_lessons::mla_decode"
torch.library.define(
    NAME,
    "(Tensor q, Tensor q_rope, Tensor latent, Tensor k_rope, Tensor w_v, float scale, "
    "Tensor? lengths, Tensor? left_padding, Tensor? block_table) -> (Tensor, Tensor)",
)
torch.library.impl(NAME, "CUDA", forward)
torch.library.register_fake(NAME, forward_shapes)


def forward_compact(
    q, q_rope, latent, k_rope, w_v, scale, lengths, left_padding, block_table, scales, tokens
):
    """`forward` with an FP8 cache, lists of tokens, or both: see compact.py."""
    which = lengths, left_padding, block_table, scales, tokens
    if q.is_cuda and q.device.index != torch.cuda.current_device():
        with torch.cuda.device(q.device):
            return forward_compact(q, q_rope, latent, k_rope, w_v, scale, *which)
    gpu = devices.gpu_of(q.device)
    parts, part_lse = compact.attend(q, q_rope, latent, k_rope, scale * LOG2E, *which, gpu)
    o = torch.empty((*q.shape[:3], w_v.shape[1]), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    combine(parts, None, part_lse, w_v.contiguous(), o, lse, gpu)
    return o, lse


def compact_shapes(q, q_rope, latent, k_rope, w_v, scale, *which):
    return forward_shapes(q, q_rope, latent, k_rope, w_v, scale, *which[:3])


COMPACT = "rwkv_lessons::mla_decode_compact"
torch.library.define(
    COMPACT,
    "(Tensor q, Tensor q_rope, Tensor latent, Tensor k_rope, Tensor w_v, float scale, "
    "Tensor? lengths, Tensor? left_padding, Tensor? block_table, Tensor? scales, Tensor? tokens)"
    " -> (Tensor, Tensor)",
)
torch.library.impl(COMPACT, "CUDA", forward_compact)
torch.library.register_fake(COMPACT, compact_shapes)


def mla_decode(
    q,
    q_rope,
    latent,
    k_rope,
    w_k,
    w_v,
    *,
    scale,
    lengths=None,
    left_padding=None,
    block_table=None,
    scales=None,
    tokens=None,
):
    """Same arguments and results as `mla`, in the latent space, without gradients.

    On a GPU two kernels, in q's dtype with sums in float32. CPU tensors, float64, and ranks above
    512, in float32 above 256, go to `mla_absorbed`. Made for up to some 100 rows M·H a sequence;
    any number works.

    Raises:
        ValueError: a gradient is wanted, on any device. Otherwise as `mla`.
    """
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    which = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    more = {"scales": scales, "tokens": tokens}
    sizes = check_arguments(*tensors, scale=scale, **which, **more)
    if learns(*tensors, scales):
        raise ValueError("mla_decode has no gradients: use mla, or call it under torch.no_grad()")
    if scales is None and tokens is None:
        return decode(*tensors, sizes, scale, **which)
    return _decode_compact(tensors, sizes, scale, which, **more)


def _decode_compact(tensors, sizes, scale, which, scales, tokens):
    """`mla_decode` with an FP8 cache or lists of tokens; arguments checked."""
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    paged = which["block_table"] is not None
    cache = q, latent, scales, k_rope, paged
    if not q.is_cuda or not compact.takes(*cache, devices.gpu_of(q.device)):
        return attend_plainly(absorbed, tensors, sizes, scale, which, scales, tokens)
    tensors = absorb(q, w_k), q_rope, latent, k_rope, w_v
    more = (*which.values(), scales, tokens)
    if launches_directly(*tensors, *more):
        return forward_compact(*tensors, scale, *more)
    return call(torch.ops.rwkv_lessons.mla_decode_compact, *tensors, scale, *more)


def decode(q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, lengths, left_padding, block_table):
    """`mla_decode` of arguments that were checked."""
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    if not q.is_cuda or sizes.R > LARGEST_RANK.get(q.dtype, 0):
        return absorbed(*tensors, sizes, scale, lengths, left_padding, block_table)
    q = absorb(q, w_k)
    tensors, integers = (q, q_rope, latent, k_rope, w_v), (lengths, left_padding, block_table)
    if launches_directly(*tensors, *integers):
        return forward(*tensors, scale, *integers)
    return call(torch.ops.rwkv_lessons.mla_decode, *tensors, scale, *integers)
