"""The functions of flash-rwkv 0.3.0, computed by `wkv5` and `wkv6`: a compatible API.

In code written for flash-rwkv, change only the import, to `rwkv_lessons.interop.flash_rwkv`. Then
batches above 1 are right (in flash-rwkv all of a batch shares one state), every argument has a
gradient through the output and the state (there, rwkv6 has none and rwkv5 assumes a zero state), a
CPU works too, and importing compiles nothing.
"""

from functools import partial

from ..runtime.arguments import check_shape
from ..runtime.precision import sum_dtype
from ..sequences.decays import log_decay
from ..wkv5 import wkv5
from ..wkv6 import wkv6
from .arguments import check_sequences, head_shape, raw_decay

__all__ = [
    "Rwkv5LinearAttention",
    "rwkv5_cuda_linear_attention",
    "Rwkv6LinearAttention",
    "rwkv6_cuda_linear_attention",
]


def rwkv5_cuda_linear_attention(receptance, key, value, time_decay, time_first, state):
    """Mixes time as RWKV-5 does, as `flash_rwkv.rwkv5_cuda_linear_attention` is called.

    For each head, with a state S of V × K, and d = exp(-exp(time_decay)):

        out[t] = (S + value[t] (time_first · key[t])ᵀ) receptance[t]
        S      = S diag(d) + value[t] key[t]ᵀ

    Args:
        receptance, key, value: `[B, T, C]`, all float32, float16 or bfloat16 (or float64), C = H·N.
        time_decay: `[C]` with heads of 64 channels, or `[H, N]`; any number: at -inf the state is
            kept, from 7 upwards it is forgotten at once. Computed in float32.
        time_first: bonus of the current token, of time_decay's shape.
        state: before the first token, `[B, H, V, K]` (values × keys), float32; zeros if None.
            It is not written to.

    Returns:
        out `[B, T, C]` in receptance's dtype and the state after the last token `[B, H, V, K]`, in
        float32 (both float64 where receptance is). All arguments have gradients through both.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: flash-rwkv, https://github.com/BBuf/flash-rwkv (`flash_rwkv/rwkv5/wkv5_op.py`).
    """
    *_, C = _check(receptance, key, value, time_decay, time_first, state)
    H, N = head_shape("time_first", time_first, C)
    if head_shape("time_decay", time_decay, C) != (H, N):
        raise ValueError(
            f"time_decay must have the heads of time_first, [H, N] = [{H}, {N}] or [C], "
            f"got {list(time_decay.shape)}"
        )
    w = log_decay(time_decay, sum_dtype(receptance.dtype)).reshape(H, N)
    out, state = _values_first(wkv5, receptance, key, value, w, time_first.reshape(H, N), state)
    return out.flatten(2), state


def rwkv6_cuda_linear_attention(receptance, key, value, time_decay, time_first, state):
    """Mixes time as RWKV-6 does, as `flash_rwkv.rwkv6_cuda_linear_attention` is called.

    For each head, with a state S of V × K, and d[t] = exp(-exp(time_decay[t])):

        out[t] = (S + value[t] (time_first · key[t])ᵀ) receptance[t]
        S      = S diag(d[t]) + value[t] key[t]ᵀ

    Args:
        receptance, key, value: `[B, T, C]`, all float32, float16 or bfloat16 (or float64), C = H·N.
        time_decay: `[B, T, C]`, any of these dtypes; any number: at -inf the state is kept, from 7
            upwards it is forgotten at once. Computed in float32.
        time_first: bonus of the current token, `[H, N]`, or `[C]` with heads of 64 channels.
        state: before the first token, `[B, H, V, K]` (values × keys), float32; zeros if None.
            It is not written to.

    Returns:
        out `[B, T, H, N]` (not `[B, T, C]` as for RWKV-5) in receptance's dtype and the state after
        the last token `[B, H, V, K]`, in float32 (both float64 where receptance is). All arguments
        have gradients through both.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Source: flash-rwkv, https://github.com/BBuf/flash-rwkv (`flash_rwkv/rwkv6/wkv6_op.py`).
    """
    B, T, C = _check(receptance, key, value, time_decay, time_first, state)
    H, N = head_shape("time_first", time_first, C)
    check_shape("time_decay", time_decay, "B, T, C", (B, T, C))
    w = raw_decay(time_decay, sum_dtype(receptance.dtype)).reshape(B, T, H, N)
    u = time_first.reshape(H, N)
    return _values_first(partial(wkv6, raw_decay=True), receptance, key, value, w, u, state)


class Rwkv5LinearAttention:
    """`Rwkv5LinearAttention.apply(…)` is `rwkv5_cuda_linear_attention(…)`.

    In flash-rwkv this is the `torch.autograd.Function` behind the call; here `wkv5` brings its own
    gradients, and `apply` is all there is: no `forward`, no `backward`, no `ctx`.
    """

    apply = staticmethod(rwkv5_cuda_linear_attention)


class Rwkv6LinearAttention:
    """`Rwkv6LinearAttention.apply(…)` is `rwkv6_cuda_linear_attention(…)`, and all there is."""

    apply = staticmethod(rwkv6_cuda_linear_attention)


def _check(receptance, key, value, time_decay, time_first, state):
    parameters = {"time_decay": time_decay, "time_first": time_first}
    if state is not None:
        parameters["state"] = state
    shape = check_sequences(receptance, key, value, **parameters)
    for name, x in {"key": key, "value": value}.items():
        if x.dtype != receptance.dtype:
            raise TypeError(
                f"{name} must have receptance's dtype {receptance.dtype}, got {x.dtype}"
            )
    if state is not None and state.dtype != sum_dtype(receptance.dtype):
        raise TypeError(f"state must be {sum_dtype(receptance.dtype)}, got {state.dtype}")
    return shape


def _values_first(operation, receptance, key, value, w, u, state):
    """Calls wkv5 or wkv6 with a state of values × keys, and returns such a state."""
    B, T, C = receptance.shape
    H, N = u.shape
    if state is not None:
        check_shape("state", state, "B, H, V, K", (B, H, N, N))
        state = state.transpose(2, 3)
    r, k, v = (x.reshape(B, T, H, N) for x in (receptance, key, value))
    o, s1 = operation(r, k, v, w, u, state)
    return o.contiguous(), s1.transpose(2, 3).contiguous()
