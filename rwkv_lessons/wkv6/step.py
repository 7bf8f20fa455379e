"""One token of WKV-6, the state updated where it is: one launch, one read and one write of it."""

import functools

from ..sequences.step import Step
from .options import check_call
from .reference import wkv6_reference


@functools.cache
def _run_forward():
    """The recurrent method's function, with which Triton is imported."""
    from .recurrent.forward import run_forward

    return run_forward


STEP = Step(
    "wkv6", "rkvwu", "float scale, bool raw_decay", "rwu", _run_forward, wkv6_reference.checked
)


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
    sizes = check_call(r, k, v, w, u, None, None, scale, raw_decay)
    return STEP(sizes, (r, k, v, w, u), state, float(scale), raw_decay)
