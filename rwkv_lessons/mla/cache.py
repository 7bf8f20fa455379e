"""A latent cache in FP8, and calls that name the tokens they see, as ordinary calls in torch."""

import torch

from ..runtime.precision import sum_dtype

GROUP = 128  # columns of the latent that share a scale, in the caches of FlashMLA and vLLM
LARGEST = 448.0  # of e4m3


def fp8_cache(latent, k_rope):
    """A cache in the layout that FlashMLA and vLLM (`fp8_ds_mla`) read, 656 bytes a token.

    A row holds R e4m3 values of the latent, one float32 scale for each 128 of them, and the P
    values of k_rope in bfloat16: for R = 512 and P = 64, bytes 0-511, 512-527 and 528-655. A value
    is e4m3 · scale. The scale is the group's largest magnitude / 448. A group with an infinite
    value or a NaN becomes NaN.

    Args:
        latent: `[…, R]`, a float dtype; R is a multiple of 128. k_rope: `[…, P]`.

    Returns:
        `[…, R + R/32 + 2·P]`, uint8.
    """
    _check_pair(latent, k_rope)
    groups = latent.float().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    values = (groups / scales[..., None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    parts = values.flatten(-2), scales, k_rope.to(torch.bfloat16).contiguous()
    return torch.cat([x.view(torch.uint8) for x in parts], -1)


def fp8_cache_parts(cache, P=64):
    """What `mla_decode` takes of a cache in that layout: views of the latent, scales and k_rope.

    Args:
        cache: `[…, 656]`, uint8, as vLLM keeps it: `[pages, page size, 656]`. The last stride is
            1; the other strides and the offset in its storage are multiples of 4.
        P: the values of k_rope.

    Returns:
        latent `[…, R]` float8_e4m3fn, scales `[…, R/128]` float32, k_rope `[…, P]` bfloat16.
    """
    if not isinstance(cache, torch.Tensor) or cache.dtype != torch.uint8:
        kind = getattr(cache, "dtype", type(cache).__name__)
        same = getattr(kind, "itemsize", None) == 1
        what = "use .view(torch.uint8)" if same else "pass what fp8_cache returned or vLLM keeps"
        raise TypeError(f"cache must be a uint8 tensor, got {kind}: {what}")
    R = (cache.shape[-1] - 2 * P) * 32 // 33 if cache.ndim else 0
    if R <= 0 or R % GROUP or R + R // 32 + 2 * P != cache.shape[-1]:
        raise ValueError(
            f"rows of cache must have R + R/32 + 2·P bytes, R a multiple of {GROUP} "
            f"(656 for R = 512, P = 64), got {list(cache.shape)} for P = {P}"
        )
    *steps, last = cache.stride()
    if last != 1 or any(n % 4 for n in (*steps, cache.storage_offset())):
        raise ValueError(
            "cache must have last stride 1, and other strides and a storage offset that are "
            f"multiples of 4, got strides {cache.stride()} and offset {cache.storage_offset()}: "
            "copy it with .clone(memory_format=torch.contiguous_format)"
        )
    latent, scales, k_rope = cache.split([R, R // 32, 2 * P], -1)
    return latent.view(torch.float8_e4m3fn), scales.view(torch.float32), k_rope.view(torch.bfloat16)


def _check_pair(latent, k_rope):
    for name, x in (("latent", latent), ("k_rope", k_rope)):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"{name} must be a tensor of floats, got {kind}")
    if latent.shape[:-1] != k_rope.shape[:-1] or not latent.ndim:
        shapes = f"got {list(latent.shape)} and {list(k_rope.shape)}"
        raise ValueError(
            f"latent [..., R] and k_rope [..., P] must be of the same tokens, {shapes}"
        )
    if latent.shape[-1] % GROUP or not latent.shape[-1]:
        size = latent.shape[-1]
        raise ValueError(f"latent must have R a multiple of {GROUP}, got {size}: pad it with zeros")


def in_full(latent, scales, dtype):
    """An FP8 latent in `dtype`, each value times its group's scale; another latent as it is."""
    if scales is None:
        return latent
    groups = latent.to(dtype).unflatten(-1, (scales.shape[-1], -1))
    return (groups * scales.to(dtype)[..., None]).flatten(-2)


def attend_plainly(method, tensors, sizes, scale, which, scales, tokens):
    """`method` (`absorbed` or `reference`) of a call with an FP8 cache, lists of tokens, or both.

    A list makes each query a sequence of its own, whose cache are the tokens listed.
    """
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    real = sum_dtype(q.dtype)
    if tokens is None:
        latent = in_full(latent, scales, real)
        return method(q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, **which)
    B, M, K = sizes.B, sizes.M, tokens.shape[-1]
    tokens = tokens.view(B, M, K).long()
    end = which["lengths"]
    end = torch.full((B,), sizes.N, device=q.device) if end is None else end.clamp(0, sizes.N)
    counts = (tokens >= 0) & (tokens < end[:, None, None])
    order = torch.sort((~counts).byte(), dim=-1, stable=True).indices  # those that count first
    tokens = tokens.masked_fill(~counts, 0).gather(-1, order).flatten(1)  # [B, M·K]
    cache = latent if scales is None else latent.view(torch.uint8), k_rope
    rows = torch.arange(B, device=q.device)[:, None]
    if which["block_table"] is not None:
        pages = which["block_table"].long().gather(1, tokens // sizes.page_size)
        rows = pages.where((pages >= 0) & (pages < len(latent)), 0)
        tokens = tokens % sizes.page_size
    latent, k_rope = (x[rows, tokens].view(B * M, K, -1) for x in cache)
    if scales is not None:
        scales = scales[rows, tokens].view(B * M, K, -1)
        latent = in_full(latent.view(torch.float8_e4m3fn), scales, real)
    q, q_rope = (x.reshape(B * M, 1, *x.shape[2:]) for x in (q, q_rope))
    sizes = sizes._replace(B=B * M, M=1, N=K, page_size=None)
    o, lse = method(
        q, q_rope, latent, k_rope, w_k, w_v, sizes, scale, counts.sum(-1).flatten(), None, None
    )
    return o.view(B, M, *o.shape[2:]), lse.view(B, M, -1)
