"""One token of WKV-6, the state updated where it is: one launch, one read and one write of it."""

import functools

import torch

from ..runtime.operators import call
from ..runtime.packages import TRITON
from ..runtime.plain import launches_directly
from ..runtime.precision import sum_dtype
from .options import check_call, holds_float64, wants_gradients
from .reference import wkv6_reference


@functools.cache
def _run_forward():
    """The recurrent method's function, with which Triton is imported."""
    from .recurrent.forward import run_forward

    return run_forward


def step(r, k, v, w, u, state, scale, raw_decay):
    if holds_float64(r, w, u):
        return step_in_torch(r, k, v, w, u, state, scale, raw_decay)
    return step_in_kernel(r, k, v, w, u, state, scale, raw_decay)


def step_in_kernel(r, k, v, w, u, state, scale, raw_decay):
    o, _ = _run_forward()(r, k, v, w, u, state, None, scale, raw_decay, s1=state)
    torch.autograd.graph.increment_version(state)  # of what a kernel writes torch knows nothing
    return o


def step_in_torch(r, k, v, w, u, state, scale, raw_decay):
    o, s1 = wkv6_reference.checked(r, k, v, w, u, state, None, scale, raw_decay)
    state.copy_(s1)
    return o


def step_shapes(r, k, v, w, u, state, scale, raw_decay):
    """What `step` returns, without values."""
    return torch.empty_like(v, memory_format=torch.contiguous_format)


NAME = "rwkv_lessons::wkv6_step"
torch.library.define(
    NAME,
    "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor(a!) state, float scale,"
    " bool raw_decay) -> Tensor",
)
torch.library.impl(NAME, "CUDA", step if TRITON else step_in_torch)
torch.library.impl(NAME, "CPU", step_in_torch)
torch.library.register_fake(NAME, step_shapes)


def wkv6_step(r, k, v, w, u, state, *, scale=1.0, raw_decay=False):
    """Mixes one more token into `state`, which is overwritten, and returns its output.

    For decoding: `o = wkv6_step(r, k, v, w, u, state)` is `o, state = wkv6(r, k, v, w, u, state)`
    without gradients, and without memory for a second state. It can be captured in a CUDA graph.

    Args:
        r, k: receptance and key, `[B, 1, H, K]`, float32, float16, bfloat16 or float64.
        v: value, `[B, 1, H, V]`, of the same dtype.
        w: log decay, `[B, 1, H, K]`, at most 0 and as low as -inf, any of these dtypes.
        u: bonus of the current token, `[H, K]`.
        state: `[B, H, K, V]` (keys × values), contiguous, float32 (float64 where r is).
        scale: r is multiplied by it.
        raw_decay: w is x of `exp(-exp(x))`, as models store it, and not the log decay.

    Returns:
        o `[B, 1, H, V]` in r's dtype.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape, layout or device, or needs a
            gradient.
    """
    B, T, H, K, V = check_call(r, k, v, w, u, None, None, scale, raw_decay)
    if T != 1:
        raise ValueError(f"r must be [B, 1, H, K], one token, got {list(r.shape)}; see wkv6")
    real = sum_dtype(r.dtype)
    if not isinstance(state, torch.Tensor) or state.dtype != real:
        got = getattr(state, "dtype", type(state).__name__)
        raise TypeError(f"state must be a tensor of {real}, got {got}")
    if state.shape != (B, H, K, V) or not state.is_contiguous():
        wanted, got = [B, H, K, V], f"{list(state.shape)}, strides {state.stride()}"
        raise ValueError(f"state must be [B, H, K, V] = {wanted}, contiguous, got {got}")
    if state.device != r.device:
        raise ValueError(f"state must be on r's device {r.device}, got {state.device}")
    if torch.is_grad_enabled() and wants_gradients(r, k, v, w, u, state):
        raise ValueError("no argument may need a gradient: state is overwritten; see wkv6")
    tensors = (r, k, v, w, u, state)
    given = (*tensors, float(scale), raw_decay)
    if TRITON and r.is_cuda and launches_directly(*tensors) and not holds_float64(r, w, u):
        return step_in_kernel(*given)
    return call(torch.ops.rwkv_lessons.wkv6_step, *given)
