"""MLA for many query tokens: the scores never leave the chip, and W_V meets them early or late.

    expanded   the keys and values of each head are made first, by one matrix product, [B, H, N, K]
               and [B, H, N, V]; a pair of tokens then costs 2 (K + P + V) operations
    absorbed   the latent is the keys and the values of all heads; a pair costs 2 (2R + P)

Expanding costs 2 N R H (K + V) whatever the number of queries: see `stays_absorbed`. Query m of a
sequence stands at position lengths - M + m and sees the keys up to its own. forward.py has the
kernel of both forms, backward.py the gradients of the expanded one.
"""

import contextlib

import torch

from ...runtime.arguments import learns
from ...runtime.operators import call, refuse_second_gradients
from ...runtime.packages import TRITON
from ...runtime.precision import outside_autocast, product
from ..absorbed import absorb, absorbed
from ..arguments import (
    LARGEST_RANK,
    check_arguments,
    filled_slots,
    gather_cache,
)
from ..reference import reference

LARGEST_HEAD = 256  # that fits on the chip; absorbed, float32 of rank 512 would spill 6 to 20 KB
ROWS = 64  # query tokens of an absorbed tile
LARGEST_HEAD_WITH_GRADIENTS = 128  # K and V, with the gradients of a tile in registers


@outside_autocast
def expand(latent, w_k, w_v):
    """Keys and values of every head, `[B, H, N, K]` and `[B, H, N, V]`, by one matrix product."""
    (H, K, _), V = w_k.shape, w_v.shape[1]
    weight = torch.cat([w_k, w_v], 1) if learns(w_k, w_v) else key_value_weight(w_k, w_v)
    kv = product(latent.flatten(0, 1), weight.flatten(0, 1).T)  # [B·N, H·(K + V)]
    kv = kv.view(*latent.shape[:2], H, K + V)
    return kv.transpose(1, 2).split([K, V], -1)


def key_value_weight(w_k, w_v):
    """`[H, K + V, R]`: no copy where the two are parts of one weight, as models keep them."""
    (H, K, R), V = w_k.shape, w_v.shape[1]
    if (
        w_k.untyped_storage().data_ptr() == w_v.untyped_storage().data_ptr()
        and w_v.storage_offset() == w_k.storage_offset() + K * R
        and w_k.stride() == w_v.stride() == ((K + V) * R, R, 1)
    ):
        return w_k.as_strided((H, K + V, R), w_k.stride())
    return torch.cat([w_k, w_v], 1)


def forward(q, q_rope, latent, k_rope, w_k, w_v, scale, lengths, left_padding, absorbed):
    """Either form; on a CPU where Triton interprets."""
    from .forward import attend  # here Triton is imported

    which = (scale, lengths, left_padding)
    with on_device(q):
        if absorbed:
            return attend(absorb(q, w_k).to(q.dtype), q_rope, latent, k_rope, None, w_v, *which)
        k, v = expand(latent, w_k, w_v)
        return attend(q, q_rope, k, k_rope, v, None, *which)


def on_device(x):
    """Triton launches on the current device, whatever the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def shapes(q, q_rope, latent, k_rope, w_k, w_v, scale, lengths, left_padding, absorbed):
    o = q.new_empty(*q.shape[:3], w_v.shape[1])
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


NAME = "rwkv_lessons::mla_prefill"
torch.library.define(
    NAME,
    "(Tensor q, Tensor q_rope, Tensor latent, Tensor k_rope, Tensor? w_k, Tensor w_v, float scale, "
    "Tensor? lengths, Tensor? left_padding, bool absorbed) -> (Tensor, Tensor)",
)
torch.library.impl(NAME, "CUDA", forward)
torch.library.register_fake(NAME, shapes)


def attend_expanded(q, q_rope, k, k_rope, v, scale, lengths, left_padding):
    from .forward import attend

    with on_device(q):
        return attend(q, q_rope, k, k_rope, v, None, scale, lengths, left_padding)


def attended_shapes(q, q_rope, k, k_rope, v, scale, lengths, left_padding):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def gradients(q, q_rope, k, k_rope, v, o, lse, do, dlse, scale, lengths, left_padding):
    from .backward import backward

    with on_device(q):
        return backward(q, q_rope, k, k_rope, v, o, lse, do, dlse, scale, lengths, left_padding)


def gradient_shapes(q, q_rope, k, k_rope, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, q_rope, k, k_rope, v))


def keep_inputs(ctx, inputs, output):
    *tensors, ctx.scale, lengths, left_padding = inputs
    ctx.save_for_backward(*tensors, *output, lengths, left_padding)


def differentiate(ctx, do, dlse):
    *tensors, lengths, left_padding = ctx.saved_tensors
    arguments = (*tensors, do, dlse, ctx.scale, lengths, left_padding)
    return *call(torch.ops.rwkv_lessons.mla_attend_backward, *arguments), None, None, None


def attend_with_gradients(q, q_rope, latent, k_rope, w_k, w_v, scale, lengths, left_padding, empty):
    """The expanded form with gradients; `empty` says which slots of the cache hold no token."""
    # Their keys and values get no gradient; that of the weights would be 0 · NaN.
    latent, k_rope = (x.masked_fill(empty[..., None], 0) for x in (latent, k_rope))
    k, v = expand(latent, w_k, w_v)
    tensors = (q, q_rope, k, k_rope, v)
    return call(torch.ops.rwkv_lessons.mla_attend, *tensors, scale, lengths, left_padding)


ATTEND = "rwkv_lessons::mla_attend"
TENSORS_SCHEMA = "Tensor q, Tensor q_rope, Tensor k, Tensor k_rope, Tensor v, "
OPTIONS_SCHEMA = "float scale, Tensor? lengths, Tensor? left_padding"
torch.library.define(ATTEND, f"({TENSORS_SCHEMA} {OPTIONS_SCHEMA}) -> (Tensor, Tensor)")
torch.library.impl(ATTEND, "CUDA", attend_expanded)
torch.library.register_fake(ATTEND, attended_shapes)
torch.library.register_autograd(ATTEND, differentiate, setup_context=keep_inputs)
torch.library.define(
    f"{ATTEND}_backward",
    f"({TENSORS_SCHEMA} Tensor o, Tensor lse, Tensor do, Tensor dlse, {OPTIONS_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl(f"{ATTEND}_backward", "CUDA", gradients)
torch.library.register_fake(f"{ATTEND}_backward", gradient_shapes)
refuse_second_gradients(f"{ATTEND}_backward")


def stays_absorbed(sizes, dtype):
    """Whether the queries are so few that expanding the cache would cost more than it saves.

    Expanding a token costs 2R(K + V) flops a head, and saves 2(2R - K - V) for each query that
    sees it; above a rank of 256 two warpgroups share a sum and each computes all scores, R + P
    more. Queries come in whole tiles. On an H200, 4096 tokens and bfloat16, the absorbed form was
    1.2 times as fast with 64 query tokens, and expanding 1.5 times with 128.
    """
    M, N, K, R, V = min(sizes.M, sizes.N), sizes.N, sizes.K, sizes.R, sizes.V
    if dtype == torch.float32 and max(K, V) <= LARGEST_HEAD:
        return False  # its absorbed tiles do not fit into the registers
    saved = 2 * R - K - V + (R + sizes.P if R > 256 else 0)
    pairs = -(-M // ROWS) * ROWS * (N - (M - 1) / 2)  # a query sees that many tokens on average
    return pairs * saved <= N * R * (K + V)


def mla_prefill(
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
):
    """Same arguments and results as `mla`, for many query tokens: nothing of size M × N is stored.

    Expands keys and values where the queries are many, see `stays_absorbed`. A cache in pages is
    copied together first. Where a gradient is wanted it expands. On a CPU, in float64, and for the
    gradient of an absorbed query or of heads above 128, and in float32 of an absorbed query of rank
    above 256, it is `mla_absorbed` or `mla_reference` in torch, with B·M·H·N or M·H·N scores in
    memory. Without Triton it is always `mla_absorbed`.
    """
    tensors = (q, q_rope, latent, k_rope, w_k, w_v)
    which = {"lengths": lengths, "left_padding": left_padding, "block_table": block_table}
    return prefill(*tensors, check_arguments(*tensors, scale=scale, **which), scale, **which)


def prefill(q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, lengths, left_padding, block_table):
    """`mla_prefill` of arguments that were checked."""
    arguments = (q, q_rope, latent, k_rope, w_k, w_v, sizes, scale)
    if not TRITON:
        return absorbed(*arguments, lengths, left_padding, block_table)
    latent, k_rope = gather_cache(latent, k_rope, block_table)
    arguments = (q, q_rope, latent, k_rope, w_k, w_v)
    lengths, left_padding = (x if x is None else x.contiguous() for x in (lengths, left_padding))
    which = {"lengths": lengths, "left_padding": left_padding}
    training = learns(*arguments)
    stays = w_k is None or (not training and stays_absorbed(sizes, q.dtype))
    size, largest = max(sizes.K, sizes.V), LARGEST_HEAD
    if stays:
        size, largest = sizes.R, LARGEST_RANK.get(q.dtype, 0)
    if training:
        largest = 0 if stays else LARGEST_HEAD_WITH_GRADIENTS
    if not q.is_cuda or q.dtype == torch.float64 or size > largest:
        return (absorbed if stays else reference)(*arguments, sizes, scale, **which)
    if training:
        empty = ~filled_slots(sizes, device=q.device, **which)
        return attend_with_gradients(*arguments, float(scale), lengths, left_padding, empty)
    arguments = (*arguments, float(scale), lengths, left_padding, stays)
    return call(torch.ops.rwkv_lessons.mla_prefill, *arguments)
