"""The RWKV-7 functions of flash-linear-attention 0.6.0, answered by `wkv7`: see fla.py.

What changes with them: `fused_recurrent_rwkv7` and `fused_mul_recurrent_rwkv7` have gradients, of
the final state too, any log decay w ≤ 0 is exact, nothing is autotuned, a CPU will do, and float32
inputs give float32 answers.
"""

import torch

from ..runtime.arguments import check_shape, check_tensor
from ..wkv7 import wkv7
from .arguments import check_initial_state


def chunk_rwkv7(
    r,
    w,
    k,
    v,
    a,
    b,
    scale=1.0,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    safe_gate=False,
    chunk_size=None,
    disable_recompute=False,
    cp_context=None,
    lower_bound=None,
):
    """Mixes time as RWKV-7 does, as `fla.ops.rwkv7.chunk_rwkv7` is called.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        w: log decay, `[B, T, H, K]`, at most 0 and as low as -inf.
        v: value, `[B, T, H, V]`.
        a, b: what reads the state before its decay, and where that is added, `[B, T, H, K]`.
        scale: r is multiplied by it; K ** -0.5 if None.
        initial_state: before the first token, `[B, H, K, V]` (keys × values), `[S, H, K, V]` with
            cu_seqlens; zeros if None. It is not written to.
        output_final_state: whether to return the state.
        cu_seqlens: where packed sequences start and end along T, `[S + 1]`; B must be 1.
        cu_seqlens_cpu, safe_gate, chunk_size, disable_recompute, lower_bound: accepted and not
            used: no decay needs a bound here.
        cp_context: not supported.

    Returns:
        o `[B, T, H, V]` in v's dtype, and the final state in float32 (float64 where r is), or None.
        All tensors have gradients, through both.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
        NotImplementedError: cp_context is given.

    Source: https://github.com/fla-org/flash-linear-attention (`fla/ops/rwkv7`).
    """
    if cp_context is not None:
        raise NotImplementedError("cp_context: one sequence over several GPUs is not supported")
    tensors = {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b}
    for name, x in tensors.items():
        check_tensor(name, x, r)
    check_initial_state(initial_state, r, v, cu_seqlens)
    dtype = r.dtype
    for x in (k, v, a, b):
        dtype = torch.promote_types(dtype, x.dtype)
    o, s1 = wkv7(
        r.to(dtype),
        w,
        *(x.to(dtype) for x in (k, v, a, b)),
        initial_state,
        cu_seqlens=cu_seqlens,
        scale=r.shape[-1] ** -0.5 if scale is None else scale,
    )
    return o.to(v.dtype), s1 if output_final_state else None


def fused_recurrent_rwkv7(
    r,
    w,
    k,
    v,
    a,
    b,
    scale=None,
    initial_state=None,
    output_final_state=True,
    cu_seqlens=None,
):
    """The same as `fla.ops.rwkv7.fused_recurrent_rwkv7` is called: note its defaults.

    Args:
        As of `chunk_rwkv7`; scale is K ** -0.5 unless given, and the final state is returned unless
        output_final_state is False.

    Returns:
        As `chunk_rwkv7`.
    """
    return chunk_rwkv7(r, w, k, v, a, b, scale, initial_state, output_final_state, cu_seqlens)


def fused_mul_recurrent_rwkv7(
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
):
    """The same for κ and its rate, as `fla.ops.rwkv7.fused_mul_recurrent_rwkv7` is called.

    Args:
        kk: κ, a unit vector for each head, `[B, T, H, K]`; what reads the state is -kk.
        a: how much of what was read is taken out, 0 to 1, `[B, T, H, K]`; it is added at kk · a.
        reverse: from the last token of each sequence to its first.
        The others: as of `chunk_rwkv7`.

    Returns:
        As `chunk_rwkv7`.
    """
    inputs = {"r": r, "w": w, "k": k, "v": v, "kk": kk, "a": a}
    for name, x in inputs.items():
        check_tensor(name, x, r)
        if name in ("kk", "a"):
            check_shape(name, x, "B, T, H, K", r.shape)
    check_initial_state(initial_state, r, v, cu_seqlens)
    tensors = [r, w, k, v, -kk, kk * a]
    if not reverse:
        return chunk_rwkv7(*tensors, scale, initial_state, output_final_state, cu_seqlens)
    packed = cu_seqlens is not None  # sequences turn around as a whole, each of them with it
    if packed:
        cu_seqlens = cu_seqlens[-1] - cu_seqlens.flip(0)
        initial_state = None if initial_state is None else initial_state.flip(0)
    tensors = [x.flip(1) for x in tensors]
    o, s1 = chunk_rwkv7(*tensors, scale, initial_state, output_final_state, cu_seqlens)
    return o.flip(1), s1.flip(0) if packed and s1 is not None else s1


FUNCTIONS = {
    "chunk_rwkv7": chunk_rwkv7,
    "fused_recurrent_rwkv7": fused_recurrent_rwkv7,
    "fused_mul_recurrent_rwkv7": fused_mul_recurrent_rwkv7,
}
MODULES = ("fla.ops.rwkv7.chunk", "fla.ops.rwkv7.fused_recurrent", "fla.layers.rwkv7")
