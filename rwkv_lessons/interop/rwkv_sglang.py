"""The RWKV-7 calls of rwkv-sglang, computed by `wkv7_serving`: a compatible API.

`wkv_recurrent` is the one that its backend calls, with a pool of states or without; `wkv_decode` is
its hand-written kernel for single tokens. The pull request to SGLang has the first one, too.
"""

import torch

from ..runtime.arguments import check_shape, check_tensor
from ..wkv7.serving import wkv7_serving
from .arguments import arguments_called
from .fla_rwkv7 import fused_mul_recurrent_rwkv7

__all__ = ["wkv_decode", "wkv_recurrent"]


def wkv_decode(r, w, k, v, kk, a, pool, ci, scale):
    """One token for each sequence, as `torch.ops.rwkv7_wkv.wkv_decode` is called.

    Args:
        r, w, k, v, kk, a: `[B, 1, H, K]` and `[B, 1, H, V]`; the others as of `wkv_recurrent`.
        pool, ci, scale: `state_pool`, `cache_indices` and `scale` of `wkv_recurrent`.

    Returns:
        o `[B, 1, H, V]`.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    check_tensor("r", r, r)
    if r.ndim != 4 or r.shape[1] != 1:
        raise ValueError(
            f"r must be [B, 1, H, K], one token a sequence, got {list(r.shape)};"
            " for more see wkv_recurrent"
        )
    with arguments_called(state_pool="pool", cache_indices="ci"):
        return wkv_recurrent(r, w, k, v, kk, a, scale, state_pool=pool, cache_indices=ci)[0]


def wkv_recurrent(
    r,
    w,
    k,
    v,
    kk,
    a,
    scale=1.0,
    initial_state=None,
    output_final_state=False,
    reverse=False,
    cu_seqlens=None,
    state_pool=None,
    cache_indices=None,
):
    """Mixes time from states of a pool, or from given ones, as rwkv-sglang's `wkv_recurrent` does.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16 or bfloat16.
        w: log decay, `[B, T, H, K]`, at most 0.
        v: value, `[B, T, H, V]`.
        kk: κ, a unit vector for each head, `[B, T, H, K]`; what reads the state is -kk.
        a: how much of what was read is taken out, 0 to 1; it is added at kk · a.
        scale: r is multiplied by it; K ** -0.5 if None.
        initial_state, output_final_state: as of `fused_mul_recurrent_rwkv7`, without a pool.
        reverse: not supported, as there.
        cu_seqlens: where packed sequences start and end along T, `[S + 1]`; B must be 1.
        state_pool: `[slots, H, K, V]` (keys × values), float32 or float16, overwritten in place.
        cache_indices: the slot of each sequence, integers. Below 0, or from `slots` on, is padding.

    Returns:
        o `[B, T, H, V]`, and None with a pool; else the final state in float32, or None.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
        NotImplementedError: reverse.

    Source: https://github.com/Hakureirm/rwkv-sglang (`rwkv7_kernels/wkv_recurrent.py`).
    """
    if reverse:
        raise NotImplementedError("reverse is not supported: use fused_mul_recurrent_rwkv7")
    if (state_pool is None) != (cache_indices is None):
        missing = "state_pool" if state_pool is None else "cache_indices"
        raise ValueError(f"{missing} must be given: a pool and its indices go together")
    if state_pool is None:
        options = {"initial_state": initial_state, "output_final_state": output_final_state}
        return fused_mul_recurrent_rwkv7(r, w, k, v, kk, a, scale, cu_seqlens=cu_seqlens, **options)
    tensors = {"r": r, "w": w, "k": k, "v": v, "kk": kk, "a": a}
    for name, x in tensors.items():
        check_tensor(name, x, r)
        if name in ("kk", "a"):
            check_shape(name, x, "B, T, H, K", r.shape)
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions, [B, T, H, …], got {list(x.shape)}")
    check_tensor("cache_indices", cache_indices, r, (torch.int32, torch.int64))
    B, T, longest = *r.shape[:2], None
    if cu_seqlens is None:
        cu_seqlens, longest = torch.arange(B + 1, dtype=torch.int32, device=r.device) * T, T
    elif B != 1:
        raise ValueError(f"r must be [1, T, H, K] with cu_seqlens, got {list(r.shape)}")
    r, w, k, v, kk, a = (x.reshape(1, -1, *x.shape[2:]) for x in tensors.values())
    scale = r.shape[3] ** -0.5 if scale is None else scale
    places = (state_pool, slots_or_padding(cache_indices, state_pool), cu_seqlens)
    with arguments_called(state_indices="cache_indices"):
        o = wkv7_serving(
            r, w, k, v, -kk, kk * a, *places, decay="log", scale=scale, longest=longest
        )
    return o.view(B, T, *o.shape[2:]), None


def slots_or_padding(indices, state_pool):
    """int32, and -1 for any number that is no slot of the pool; the host reads none of them."""
    slots = len(state_pool) if isinstance(state_pool, torch.Tensor) and state_pool.ndim else 0
    return torch.where((indices >= 0) & (indices < slots), indices, -1).int()
