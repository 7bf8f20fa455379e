"""The calls whose kernels are compiled for every architecture, see bench/launches.py."""

from functools import partial

import torch

from .cache import fp8_cache_parts
from .decode import forward as decode
from .prefill import prefill

new = partial(torch.empty, device="meta")


def calls(gpu):
    """(name, function) of each call that is looked at, of those that reach kernels on this GPU."""
    for kind in ("float32", "float16", "bfloat16"):
        yield from calls_in(kind, getattr(torch, kind))
    for R, P, V in ((256, 32, 64), (512, 64, 128)):
        for page in (None, 64):
            which = partial(compact_step, 16, R, P, V, False, 2048, page)
            yield f"mla decode R={R} bfloat16, lists{', pages' * bool(page)}", which
    if gpu.capability == (9, 0):  # bytes are multiplied in torch elsewhere
        for listed, page in ((0, None), (0, 64), (2048, None), (2048, 64)):
            which = partial(compact_step, 16, 512, 64, 128, True, listed, page)
            yield f"mla decode FP8{', lists' * bool(listed)}{', pages' * bool(page)}", which


def calls_in(kind, dtype):
    for R, P, V in ((256, 32, 64), (512, 64, 128)):  # MiniCPM3's and DeepSeek's
        if R <= decode.LARGEST_RANK[dtype]:
            yield f"mla decode R={R} {kind}, 16 heads", lambda s=(R, P, V): step(16, *s, dtype)
            paged = f"mla decode R={R} {kind}, 40 heads, pages"
            yield paged, lambda s=(R, P, V): step(40, *s, dtype, page=64)
            if R == 512:  # a tile of tokens may be on several of these
                yield f"{paged} of 16", lambda s=(R, P, V): step(40, *s, dtype, page=16)
        if R > prefill.LARGEST_RANK[dtype]:
            continue
        for ragged in (False, True):
            call = f"mla prefill R={R} {kind} absorbed{', ragged' * ragged}"
            yield call, lambda s=(R, P, V), r=ragged: absorbed(*s, dtype, r)
    for K, P in ((64, 32), (128, 64), (192, 64), (256, 64)):
        training = K <= prefill.LARGEST_HEAD_WITH_GRADIENTS
        call = f"mla prefill {K} {kind}{' training' * training}"
        yield call, lambda s=(K, P), t=training: expanded(*s, dtype, t)


def step(H, R, P, V, dtype, page=None):
    B, N = 16, 4096
    cache = (B * N // page, page) if page else (B, N)
    table = new(B, N // page, dtype=torch.int32) if page else None
    q, q_rope = new(B, 1, H, R, dtype=dtype), new(B, 1, H, P, dtype=dtype)
    latent, k_rope = new(*cache, R, dtype=dtype), new(*cache, P, dtype=dtype)
    lengths, w_v = new(B, dtype=torch.int32), new(H, V, R, dtype=dtype)
    decode.forward(q, q_rope, latent, k_rope, w_v, 1.0, lengths, None, table)


def compact_step(H, R, P, V, fp8, listed, page):
    B, N, kind = 16, 4096, torch.bfloat16
    cache = (B * N // page, page) if page else (B, N)
    table = new(B, N // page, dtype=torch.int32) if page else None
    scales = None
    if fp8:  # the layout of FlashMLA
        rows = new(*cache, R + R // 32 + 2 * P, dtype=torch.uint8)
        latent, scales, k_rope = fp8_cache_parts(rows, P)
    else:
        latent, k_rope = new(*cache, R + P, dtype=kind).split([R, P], -1)
    tokens = new(B, 1, listed, dtype=torch.int32) if listed else None
    q, q_rope = new(B, 1, H, R, dtype=kind), new(B, 1, H, P, dtype=kind)
    lengths, w_v = new(B, dtype=torch.int32), new(H, V, R, dtype=kind)
    inputs = q, q_rope, latent, k_rope, w_v
    decode.forward_compact(*inputs, 1.0, lengths, None, table, scales, tokens)


def absorbed(R, P, V, dtype, ragged):
    B, M, N, H = 2, 64, 4096, 16
    lengths = new(B, dtype=torch.int32) if ragged else None
    q, q_rope = new(B, M, H, R, dtype=dtype), new(B, M, H, P, dtype=dtype)
    latent, k_rope = new(B, N, R, dtype=dtype), new(B, N, P, dtype=dtype)
    w_v = new(H, V, R, dtype=dtype)
    prefill.forward(q, q_rope, latent, k_rope, None, w_v, 1.0, lengths, None, True)


def expanded(K, P, dtype, training):
    B, M, H = 2, 4096, 16
    q, q_rope = new(B, M, H, K, dtype=dtype), new(B, M, H, P, dtype=dtype)
    k, v = new(B, H, M, K, dtype=dtype), new(B, H, M, K, dtype=dtype)
    inputs = q, q_rope, k, new(B, M, P, dtype=dtype), v
    which = 1.0, new(B, dtype=torch.int32), None
    o, lse = prefill.attend_expanded(*inputs, *which)
    if training:
        prefill.gradients(*inputs, o, lse, o, lse, *which)
