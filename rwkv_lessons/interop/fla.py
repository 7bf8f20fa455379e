"""The RWKV-6 and RWKV-7 functions of flash-linear-attention 0.6.0: a compatible API.

`wkv6` answers the ones that are here, `wkv7` those of fla_rwkv7.py, and of fla_kda.py: Kimi's delta
attention and gated delta nets, which `patch_fla` leaves with FLA.

In code written for FLA, change only the import, to `rwkv_lessons.interop.fla`. Its layers and
models need one line:

    patch_fla()

Then the final state has a gradient in `fused_recurrent_rwkv6` too (FLA ignores a loss on it), any
w ≤ 0 is exact, nothing is autotuned, a CPU works too, and an unknown argument is an error. Both
functions do the same here: `wkv6` picks the method by the shape.

Only `patch_fla` imports FLA.
"""

import importlib

import torch

from ..runtime.arguments import check_tensor
from ..runtime.packages import needed_by
from ..wkv6 import wkv6
from . import fla_rwkv7
from .arguments import check_initial_state
from .fla_kda import (
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from .fla_rwkv7 import chunk_rwkv7, fused_mul_recurrent_rwkv7, fused_recurrent_rwkv7
from .patch import Patch, modules_of

__all__ = ["chunk_rwkv6", "chunk_rwkv7", "fused_mul_recurrent_rwkv7", "fused_recurrent_rwkv6"]
__all__ += ["fused_recurrent_rwkv7", "patch_fla"]
__all__ += ["chunk_gated_delta_rule", "chunk_kda"]
__all__ += ["fused_recurrent_gated_delta_rule", "fused_recurrent_kda"]


def fused_recurrent_rwkv6(
    r,
    k,
    v,
    w,
    u,
    scale=None,
    initial_state=None,
    output_final_state=False,
    reverse=False,
    cu_seqlens=None,
):
    """Mixes time as RWKV-6 does, as `fla.ops.rwkv6.fused_recurrent_rwkv6` is called.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64. Where r, k
            and v differ in dtype, they are computed in the one that holds all.
        v: value, `[B, T, H, V]`.
        w: log decay, `[B, T, H, K]`, at most 0 and as low as -inf.
        u: bonus of the current token, `[H, K]`.
        scale: r is multiplied by it; K ** -0.5 if None (RWKV itself has none: 1.0).
        initial_state: before the first token, `[B, H, K, V]` (keys × values), `[S, H, K, V]` with
            cu_seqlens; zeros if None. It is not written to.
        output_final_state: whether to return the state.
        reverse: from the last token of each sequence to its first.
        cu_seqlens: where packed sequences start and end along T, `[S + 1]`; B must be 1.

    Returns:
        o `[B, T, H, V]` in v's dtype, and the final state in float32 (float64 where r is), or None.
        All tensors have gradients, through both.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/fla-org/flash-linear-attention (`fla/ops/rwkv6`).
    """
    for name, x in {"r": r, "k": k, "v": v, "w": w}.items():
        check_tensor(name, x, r)
    check_initial_state(initial_state, r, v, cu_seqlens)
    s0 = initial_state
    if reverse:  # packed sequences turn around as a whole, each of them with it
        r, k, v, w = (x.flip(1) for x in (r, k, v, w))
        if cu_seqlens is not None:
            cu_seqlens = cu_seqlens[-1] - cu_seqlens.flip(0)
            s0 = None if s0 is None else s0.flip(0)
    dtype = torch.promote_types(torch.promote_types(r.dtype, k.dtype), v.dtype)
    o, s1 = wkv6(
        r.to(dtype),
        k.to(dtype),
        v.to(dtype),
        w,
        u,
        s0,
        cu_seqlens=cu_seqlens,
        scale=r.shape[-1] ** -0.5 if scale is None else scale,
    )
    if reverse:
        o, s1 = o.flip(1), s1 if cu_seqlens is None else s1.flip(0)
    return o.to(v.dtype), s1 if output_final_state else None


def chunk_rwkv6(
    r,
    k,
    v,
    w,
    u,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    **kwargs,
):
    """Mixes time as RWKV-6 does, as `fla.ops.rwkv6.chunk_rwkv6` is called.

    Args:
        r, k, v, w, u, scale, initial_state, output_final_state, cu_seqlens: see
            `fused_recurrent_rwkv6`.
        cu_seqlens_cpu: accepted and not used: nothing here waits for the device.
        chunk_size: accepted and not used, a power of two.

    Returns:
        o and the final state, or None, as `fused_recurrent_rwkv6`.

    Raises:
        DeprecationWarning: head_first is given, as in FLA.
        TypeError, ValueError: an argument is not known, or has the wrong dtype, shape or device.
    """
    if "head_first" in kwargs:
        raise DeprecationWarning("head_first has been removed: inputs must be [B, T, H, …]")
    size = kwargs.pop("chunk_size", None)
    if kwargs:
        raise TypeError(f"chunk_rwkv6 has no argument {', '.join(map(repr, kwargs))}")
    if size is not None and (not isinstance(size, int) or size < 1 or size & (size - 1)):
        raise ValueError(f"chunk_size must be a power of 2, got {size!r}")
    return fused_recurrent_rwkv6(
        r, k, v, w, u, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens
    )


FUNCTIONS = {"chunk_rwkv6": chunk_rwkv6, "fused_recurrent_rwkv6": fused_recurrent_rwkv6}
FILES = ("fla.ops.rwkv6.chunk", "fla.ops.rwkv6.fused_recurrent")


def patch_fla():
    """Makes FLA's RWKV-6 and RWKV-7 layers and models call these functions; `undo()` ends it.

    The functions are replaced in every module of FLA that has one of them by name: where they are
    defined, in `fla.ops`, and in `fla.layers.rwkv6` and `rwkv7`, which hold them under their own
    names. Existing layers, and layers made later, then run on `wkv6` and `wkv7`.

    Returns:
        A `Patch`: `patch.undo()` restores what was replaced, as does the end of a
        `with patch_fla():` block. What other modules took from FLA meanwhile, by whatever name,
        then calls FLA again. Of several patches each has to be undone.

    Raises:
        ModuleNotFoundError: flash-linear-attention is not installed.
    """
    with needed_by("patch_fla"):
        importlib.import_module("fla.layers.rwkv6")
    defined_in = [importlib.import_module(name) for name in FILES]
    defined_in += [x for x in map(_if_there, fla_rwkv7.MODULES) if x]
    replacements = [
        (module, name, own)
        for module in (*defined_in, *modules_of("fla"))
        for name, own in (FUNCTIONS | fla_rwkv7.FUNCTIONS).items()
        if callable(vars(module).get(name))
    ]
    return Patch(replacements)


def _if_there(name):
    """A module of FLA, or None in a version that has none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
