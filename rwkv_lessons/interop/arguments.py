"""What the adapters share: tensors as other projects pass them, checked and turned into ours."""

import re
from contextlib import contextmanager

import torch

from ..runtime.arguments import check_count, check_shape, check_tensor, sizes_of
from ..sequences.arguments import count_sequences

HEAD_SIZE = 64  # of all released RWKV-5 and RWKV-6 models; a flat [C] cannot say another


@contextmanager
def arguments_called(**names):
    """Within it, errors about an argument of ours have its name in the adapter: ours="theirs"."""
    try:
        yield
    except (TypeError, ValueError) as error:
        pattern = rf"\b({'|'.join(names)})\b"
        raise type(error)(re.sub(pattern, lambda m: names[m[1]], str(error))) from None


def check_overwritten(name, x):
    """Raises a ValueError where torch would not write to x: before anything else is written."""
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} must not require a gradient: it is overwritten")
    if any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
        raise ValueError(
            f"{name} must have memory for each element, because it is overwritten, got strides"
            f" {x.stride()}"
        )


def check_sequences(receptance, key, value, **more):
    """Returns B, T, C, or raises a TypeError or ValueError that names the argument."""
    tensors = {"receptance": receptance, "key": key, "value": value, **more}
    for name, x in tensors.items():
        check_tensor(name, x, receptance, whose="receptance")
    if receptance.ndim != 3 or 0 in receptance.shape:
        raise ValueError(
            f"receptance must be [B, T, C] with sizes of at least 1, got {list(receptance.shape)}"
        )
    check_shape("key", key, "B, T, C", receptance.shape)
    check_shape("value", value, "B, T, C", receptance.shape)
    return receptance.shape


def heads_of(size, **tensors):
    """Each `[B, T, C]` as `[B, T, H, size]`, or a TypeError or ValueError that names it."""
    check_count("HEAD_SIZE", size)
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got one of layout {x.layout}")
        if x.ndim != 3 or x.shape[2] % size:
            raise ValueError(
                f"{name} must be [B, T, C] with C a multiple of HEAD_SIZE = {size}, "
                f"got {list(x.shape)}"
            )
    return [x.unflatten(2, (-1, size)) for x in tensors.values()]


def head_shape(name, x, C):
    """H and N, from a parameter `[H, N]`, or `[C]` with heads of 64 channels."""
    if x.shape == (C,) and C % HEAD_SIZE == 0:
        return C // HEAD_SIZE, HEAD_SIZE
    if x.ndim == 2 and x.numel() == C:
        return x.shape
    raise ValueError(
        f"{name} must be [H, N] with H·N = C = {C}, or [C] where C is a multiple of {HEAD_SIZE}, "
        f"got {list(x.shape)}"
    )


def check_initial_state(initial_state, r, v, cu_seqlens):
    """What FLA calls so, and what says how many there are: before one of them is turned around."""
    sizes_of(r, v)
    if cu_seqlens is not None:
        count_sequences(cu_seqlens, r)
    if initial_state is None:
        return
    check_tensor("initial_state", initial_state, r)
    letter, n = ("B", r.shape[0]) if cu_seqlens is None else ("S", len(cu_seqlens) - 1)
    expected = (n, *r.shape[2:], v.shape[-1])
    check_shape("initial_state", initial_state, f"{letter}, H, K, V", expected)


def turned(state):
    """Values × keys where it was keys × values, and back; what is no such state as it is."""
    if isinstance(state, torch.Tensor) and state.ndim == 4 and state.layout is torch.strided:
        return state.mT.contiguous()
    return state


def raw_decay(raw, dtype=torch.float32):
    """raw for `wkv6(…, raw_decay=True)`, which takes the exponential: in float64 only if asked."""
    return raw.to(dtype) if torch.float64 in (dtype, raw.dtype) else raw
