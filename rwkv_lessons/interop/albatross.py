"""The RWKV-7 operators of Albatross, computed by `wkv7_serving`: a compatible API.

    wkv_seq, wkv_seq_w0, wkv_one, wkv_one_w0    torch.ops.rwkv7_wkv_fp16_v2, faster3a
    forward                                     torch.ops.rwkv7_wkv_fp32_v2, float32 states
    wkv_seq_varlen, wkv_seq_w0_varlen,          the same with slots of a pool, in vLLM-RWKV
    forward_varlen
    RWKV7_OP, RWKV7_BATCH_OP                    reference/rwkv7.py, and RWKV-LM's demos

Each writes into y and overwrites the states, which are keys × values as Albatross has them since
July 2026 (its layout "kv_v2"). `RWKV7_OP` alone returns y, and has states of values × keys.
"""

import torch
from torch import Tensor

from ..runtime.arguments import check_count, check_shape, check_tensor
from ..wkv7 import wkv7
from ..wkv7.serving import wkv7_serving
from .arguments import HEAD_SIZE, arguments_called, check_overwritten, turned
from .rwkv_sglang import slots_or_padding

__all__ = ["RWKV7_BATCH_OP", "RWKV7_OP", "forward", "forward_varlen", "wkv_one", "wkv_one_w0"]
__all__ += ["wkv_seq", "wkv_seq_varlen", "wkv_seq_w0", "wkv_seq_w0_varlen"]


def wkv_seq_w0(B, T, C, H, state, r, w, w0, k, v, a, b, y, elapsed_t):
    """T tokens of each of B sequences, one after the other.

    Args:
        B, T, C, H: sizes; C = H · N.
        state: `[B, H, N, N]` (keys × values), float16 or float32, overwritten.
        r, k, v, a, b: `[B, T, C]`, float16, or float32 or bfloat16; a is -κ, b is κ · rate.
        w: without w0 the logit of the decay exp(-exp(-0.5) · sigmoid(w + w0)), `[B, T, C]`.
        w0: `[C]`.
        y: `[B, T, C]`, overwritten.
        elapsed_t: how many tokens each sequence has had, `[B]`, int32: it seeds the rounding of a
            float16 state.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/BlinkDL/Albatross (`faster3a_2607/cuda/rwkv7_wkv_fp16_v2.cpp`).
    """
    _sequences(B, T, C, H, state, r, w, w0, k, v, a, b, y, elapsed_t)


def wkv_seq(B, T, C, H, state, r, w, k, v, a, b, y, elapsed_t):
    """`wkv_seq_w0` with w0 in w already."""
    _sequences(B, T, C, H, state, r, w, None, k, v, a, b, y, elapsed_t)


def wkv_one_w0(B, C, H, state, r, w, w0, k, v, a, b, y, elapsed_t):
    """`wkv_seq_w0` of one token for each sequence: tokens and y are `[B, C]`, or `[B, 1, C]`."""
    tokens = [_one(name, x, B, C) for name, x in zip("rwkvaby", (r, w, k, v, a, b, y), strict=True)]
    _sequences(B, 1, C, H, state, *tokens[:2], w0, *tokens[2:], elapsed_t)


def wkv_one(B, C, H, state, r, w, k, v, a, b, y, elapsed_t):
    """`wkv_one_w0` with w0 in w already."""
    wkv_one_w0(B, C, H, state, r, w, None, k, v, a, b, y, elapsed_t)


def forward(B, T, C, H, state, r, w, k, v, a, b, y):
    """`wkv_seq` of float32 states, which need no seed."""
    _sequences(B, T, C, H, state, r, w, None, k, v, a, b, y, None)


def wkv_seq_w0_varlen(
    B, total_tokens, max_t, C, H, query_start_loc, slot_indices, state, r, w, w0, k, v, a, b, y,
    elapsed_t,
):  # fmt: skip
    """Prompts and single tokens of B sequences in one call, on states of a pool.

    Args:
        total_tokens: of all sequences; max_t: of the longest, or more.
        query_start_loc: where sequences start and end, `[B + 1]`, int32.
        slot_indices: the slot of each sequence, `[B]`, int32; -1, or from `slots` on: padding.
        state: `[slots, H, N, N]` (keys × values): vLLM-RWKV's own are values × keys.
        r, w, k, v, a, b, y: `[total_tokens, C]`.
        elapsed_t: as of `wkv_seq_w0`, of each slot, `[slots]`.
        C, H, w0: as of `wkv_seq_w0`.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/rwkv-rs/vllm-rwkv (`csrc/libtorch_stable/rwkv7`).
    """
    names = dict(zip("rwkvaby", (r, w, k, v, a, b, y), strict=True))
    N = _sizes(C, H, state)
    for name, x in names.items():
        check_tensor(name, x, r)
        check_shape(name, x, "total_tokens, C", (total_tokens, C))
    check_tensor("slot_indices", slot_indices, r, (torch.int32, torch.int64))
    check_shape("slot_indices", slot_indices, "B", (B,))
    check_tensor("query_start_loc", query_start_loc, r, (torch.int32, torch.int64))
    check_shape("query_start_loc", query_start_loc, "B + 1", (B + 1,))
    slots, seeds = slots_or_padding(slot_indices, state), None
    if elapsed_t is not None and state.dtype == torch.float16:
        check_tensor("elapsed_t", elapsed_t, r, (torch.int32, torch.int64))
        check_shape("elapsed_t", elapsed_t, "slots", state.shape[:1])
        seeds = elapsed_t[slots.clamp(0)]
    tokens = [x.reshape(1, total_tokens, H, N) for x in (r, w, k, v, a, b)]
    _serve(tokens, y, _heads(w0, C, H), state, slots, query_start_loc, seeds, max_t)


def wkv_seq_varlen(
    B, total_tokens, max_t, C, H, query_start_loc, slot_indices, state, r, w, k, v, a, b, y,
    elapsed_t,
):  # fmt: skip
    """`wkv_seq_w0_varlen` with w0 in w already."""
    places = (B, total_tokens, max_t, C, H, query_start_loc, slot_indices, state)
    wkv_seq_w0_varlen(*places, r, w, None, k, v, a, b, y, elapsed_t)


def forward_varlen(
    B, total_tokens, max_t, C, H, query_start_loc, slot_indices, state, r, w, k, v, a, b, y
):
    """`wkv_seq_varlen` of float32 states, which need no seed."""
    places = (B, total_tokens, max_t, C, H, query_start_loc, slot_indices, state)
    wkv_seq_w0_varlen(*places, r, w, None, k, v, a, b, y, None)


@torch.jit.ignore
def RWKV7_OP(
    state: Tensor, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    """y of tokens `[T, C]` or `[B, T, C]` from states that are overwritten.

    Args:
        state: `[H, N, N]` or `[B, H, N, N]` (values × keys), float32; heads of 64 channels. What is
            written there has no gradients.
        r, w, k, v, a, b: w is raw, the decay exp(-exp(w)).

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: https://github.com/BlinkDL/Albatross (`reference/rwkv7.py`).
    """
    names = dict(zip("rwkvab", (r, w, k, v, a, b), strict=True))
    for name, x in names.items():
        check_tensor(name, x, r)
        if x.ndim not in (2, 3) or x.shape[-1] % HEAD_SIZE:
            raise ValueError(
                f"{name} must be [T, C] or [B, T, C] with C a multiple of {HEAD_SIZE}, got"
                f" {list(x.shape)}"
            )
    single = r.ndim == 2
    heads = [x.unflatten(-1, (-1, HEAD_SIZE)) for x in names.values()]
    if single:
        heads = [x[None] for x in heads]
    check_tensor("state", state, r, (torch.float32,))
    B, _, H, N = heads[0].shape
    check_shape(
        "state", state, *(("H, N, N", (H, N, N)) if single else ("B, H, N, N", (B, H, N, N)))
    )
    check_overwritten("state", state)
    y, after = wkv7(*heads, turned(state[None] if single else state), decay="raw")
    after = after.detach().mT
    state.copy_(after[0] if single else after)
    return y.reshape(r.shape)


RWKV7_BATCH_OP = RWKV7_OP


def _sequences(B, T, C, H, state, r, w, w0, k, v, a, b, y, elapsed_t):
    """T tokens of each of B sequences, all checked; y and the states are overwritten."""
    for name, size in {"B": B, "T": T}.items():
        check_count(name, size)
    N, names = _sizes(C, H, state), dict(zip("rwkvaby", (r, w, k, v, a, b, y), strict=True))
    check_shape("state", state, "B, H, N, N", (B, H, N, N))
    for name, x in names.items():
        check_tensor(name, x, r)
        check_shape(name, x, "B, T, C", (B, T, C))
    seeds = elapsed_t if state.dtype == torch.float16 else None
    if seeds is not None:
        check_tensor("elapsed_t", seeds, r, (torch.int32, torch.int64))
        check_shape("elapsed_t", seeds, "B", (B,))
    tokens = [x.reshape(1, B * T, H, N) for x in (r, w, k, v, a, b)]
    slots = torch.arange(B, dtype=torch.int32, device=r.device)
    ends = torch.arange(B + 1, dtype=torch.int32, device=r.device) * T
    _serve(tokens, y, _heads(w0, C, H), state, slots, ends, seeds, T)


def _serve(tokens, y, w0, state, slots, ends, seeds, longest):
    """Mixes tokens r, w, k, v, a and b; y is overwritten."""
    check_overwritten("y", y)
    options = {"decay": "clamp", "w0": w0, "seeds": seeds, "longest": longest}
    names = {"state_pool": "state", "state_indices": "slot_indices", "longest": "max_t"}
    names["seeds"] = "elapsed_t"
    with arguments_called(**names, cu_seqlens="query_start_loc"):
        o = wkv7_serving(*tokens, state, slots, ends, **options)
    y.copy_(o.view(y.shape))


def _sizes(C, H, state):
    """N of a state `[…, H, N, N]`, if C = H · N."""
    check_count("C", C)
    check_count("H", H)
    if not isinstance(state, torch.Tensor):
        raise TypeError(f"state must be a tensor, got {type(state).__name__}")
    N = C // H
    if C % H or state.ndim != 4 or state.shape[1:] != (H, N, N):
        raise ValueError(
            f"state must be [slots, H, N, N] with H = {H} and H·N = C = {C}, got"
            f" {list(state.shape)}"
        )
    return N


def _heads(w0, C, H):
    """w0 `[C]` as `[H, N]`, or None."""
    if w0 is None:
        return None
    check_tensor("w0", w0, w0)
    check_shape("w0", w0.flatten(), "C", (C,))
    return w0.reshape(H, -1)


def _one(name, x, B, C):
    """A view `[B, 1, C]` of `[B, C]`, or an error that names the argument."""
    check_tensor(name, x, x)
    if x.shape not in ((B, C), (B, 1, C)):
        raise ValueError(f"{name} must be [B, C] = [{B}, {C}], got {list(x.shape)}")
    return x.view(B, 1, C)
