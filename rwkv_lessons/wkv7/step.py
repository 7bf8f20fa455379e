"""One token of WKV-7, the state updated where it is: one launch, one read and one write of it."""

import functools

import torch

from ..runtime.operators import call
from ..runtime.packages import TRITON
from ..runtime.plain import launches_directly
from ..runtime.precision import sum_dtype
from .arguments import check_call
from .options import holds_float64, wants_gradients
from .reference import wkv7_reference


@functools.cache
def _run_forward():
    """The recurrent method's function, with which Triton is imported."""
    from .recurrent.forward import run_forward

    return run_forward


def step(r, w, k, v, a, b, state, scale, decay):
    if holds_float64(r, w):
        return step_in_torch(r, w, k, v, a, b, state, scale, decay)
    return step_in_kernel(r, w, k, v, a, b, state, scale, decay)


def step_in_kernel(r, w, k, v, a, b, state, scale, decay):
    o, _ = _run_forward()(r, w, k, v, a, b, state, None, scale, decay, s1=state)
    torch.autograd.graph.increment_version(state)  # of what a kernel writes torch knows nothing
    return o


def step_in_torch(r, w, k, v, a, b, state, scale, decay):
    o, s1 = wkv7_reference.checked(r, w, k, v, a, b, state, None, scale, decay)
    state.copy_(s1)
    return o


def step_shapes(r, w, k, v, a, b, state, scale, decay):
    """What `step` returns, without values."""
    return torch.empty_like(v, memory_format=torch.contiguous_format)


NAME = "rwkv_lessons::wkv7_step"
torch.library.define(
    NAME,
    f"({', '.join(f'Tensor {x}' for x in 'rwkvab')}, Tensor(a!) state, float scale, str decay)"
    " -> Tensor",
)
torch.library.impl(NAME, "CUDA", step if TRITON else step_in_torch)
torch.library.impl(NAME, "CPU", step_in_torch)
torch.library.register_fake(NAME, step_shapes)


def wkv7_step(r, w, k, v, a, b, state, *, scale=1.0, decay="log"):
    """Mixes one more token into `state`, which is overwritten, and returns its output.

    For decoding: `o = wkv7_step(r, w, k, v, a, b, state)` is `o, state = wkv7(…, state)` without
    gradients, and without memory for a second state. It can be captured in a CUDA graph.

    Args:
        r, w, k, a, b: `[B, 1, H, K]`; v: `[B, 1, H, V]`; see `wkv7`.
        state: `[B, H, K, V]` (keys × values), contiguous, float32 (float64 where r is).
        scale: r is multiplied by it.
        decay: what w is: "log", "raw" or "clamp".

    Returns:
        o `[B, 1, H, V]` in r's dtype.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape, layout or device, or needs a
            gradient.
    """
    B, T, H, K, V = check_call(r, w, k, v, a, b, None, None, scale, decay)
    if T != 1:
        raise ValueError(f"r must be [B, 1, H, K], one token, got {list(r.shape)}; see wkv7")
    real = sum_dtype(r.dtype)
    if not isinstance(state, torch.Tensor) or state.dtype != real:
        got = getattr(state, "dtype", type(state).__name__)
        raise TypeError(f"state must be a tensor of {real}, got {got}")
    if state.shape != (B, H, K, V) or not state.is_contiguous():
        wanted, got = [B, H, K, V], f"{list(state.shape)}, strides {state.stride()}"
        raise ValueError(f"state must be [B, H, K, V] = {wanted}, contiguous, got {got}")
    if state.device != r.device:
        raise ValueError(f"state must be on r's device {r.device}, got {state.device}")
    if torch.is_grad_enabled() and wants_gradients(r, w, k, v, a, b, state):
        raise ValueError("no argument may need a gradient: state is overwritten; see wkv7")
    tensors = (r, w, k, v, a, b, state)
    given = (*tensors, float(scale), decay)
    if TRITON and r.is_cuda and launches_directly(*tensors) and not holds_float64(r, w):
        return step_in_kernel(*given)
    return call(torch.ops.rwkv_lessons.wkv7_step, *given)
