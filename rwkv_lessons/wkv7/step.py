"""One token of WKV-7, the state updated where it is: one launch, one read and one write of it."""

import functools

from ..sequences.step import Step
from .arguments import check_call
from .reference import wkv7_reference


@functools.cache
def _run_forward():
    """The recurrent method's function, with which Triton is imported."""
    from .recurrent.forward import run_forward

    return run_forward


STEP = Step("wkv7", "rwkvab", "float scale, str decay", "rw", _run_forward, wkv7_reference.checked)


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
    sizes = check_call(r, w, k, v, a, b, None, None, scale, decay)
    return STEP(sizes, (r, w, k, v, a, b), state, float(scale), decay)
