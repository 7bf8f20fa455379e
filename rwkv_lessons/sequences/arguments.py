"""What a call of a recurrence may be given: packed sequences, states; and what it has to make."""

import os

import torch

from ..runtime.arguments import check_shape, check_tensor

CHECK = "RWKV_LESSONS_CHECK_CU_SEQLENS"


def is_on(variable):
    """Whether an environment variable is 1; raises a ValueError unless it is 1, 0 or not set."""
    value = os.environ.get(variable) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{variable} is {value!r}, needs 1 (on) or 0 (off)")
    return value == "1"


LOOKS_AT_CU_SEQLENS = is_on(CHECK)


def reads_values_of(x):
    """Whether a check may read the numbers of x: on a GPU the host would have to wait for them."""
    readable = x.device.type == "cpu" or (LOOKS_AT_CU_SEQLENS and x.device.type != "meta")
    return readable and not torch.compiler.is_compiling()


def count_sequences(cu_seqlens, r):
    """The number of sequences.

    What a GPU holds is not read, since the host would have to wait for it, unless
    `RWKV_LESSONS_CHECK_CU_SEQLENS=1`.
    """
    B, T = r.shape[:2]
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be one of int32, int64, got {cu_seqlens.dtype}")
    if cu_seqlens.device != r.device:
        raise ValueError(f"cu_seqlens must be on r's device {r.device}, got {cu_seqlens.device}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(f"cu_seqlens must be [S + 1] with S ≥ 1, got {list(cu_seqlens.shape)}")
    if B != 1:
        raise ValueError(f"r must have B = 1 if cu_seqlens is given, got B = {B}")
    if reads_values_of(cu_seqlens):
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != T or ends != sorted(ends):
            raise ValueError(f"cu_seqlens must increase from 0 to T = {T}, got {ends}")
    return len(cu_seqlens) - 1


def check_state(name, s, r, v, sequences, letter, dtypes):
    """Raises a TypeError or ValueError unless s is a state `[sequences, H, K, V]`.

    Args:
        r, v: `[B, T, H, K]` and `[B, T, H, V]`.
        letter: what the number of sequences is called.
    """
    check_tensor(name, s, r, dtypes)
    check_shape(name, s, f"{letter}, H, K, V", (sequences, *r.shape[2:], v.shape[-1]))


def sequences_in(r, cu_seqlens):
    """How many sequences, each with a state of its own."""
    return r.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def empty_results(r, v, cu_seqlens):
    """o and s1 without values."""
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    S = sequences_in(r, cu_seqlens)
    return o, r.new_empty(S, *r.shape[2:], v.shape[3], dtype=torch.float32)


def holds_float64(*tensors):
    for x in tensors:  # a generator costs the host three times as much
        if x is not None and x.dtype is torch.float64:
            return True
    return False


def wants_gradients(*tensors):
    for x in tensors:
        if x is not None and x.requires_grad:
            return True
    return False
