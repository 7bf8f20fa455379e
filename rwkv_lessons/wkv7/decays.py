"""What w may be, in Triton: the log decay, or a parameter that it is made of. See options.py."""

import triton
import triton.language as tl

from ..sequences.tiles import LOG2E, raw_decay
from .options import CLAMP as _CLAMP

CLAMP = tl.constexpr(_CLAMP)
FORMS = {"log": 0, "raw": 1, "clamp": 2}  # what DECAY of a kernel is
RAW, OF_CLAMP = tl.constexpr(FORMS["raw"]), tl.constexpr(FORMS["clamp"])


@triton.jit
def log_of(b_w, m_w, DECAY: tl.constexpr):
    """The log decay, in float32 if it is made of a parameter, and 0 outside the mask."""
    if DECAY == RAW:
        return tl.where(m_w, raw_decay(b_w), 0.0)
    elif DECAY == OF_CLAMP:
        return tl.where(m_w, -CLAMP / (1 + tl.exp2(-b_w.to(tl.float32) * LOG2E)), 0.0)
    else:
        return b_w


@triton.jit
def dw_of(b_dw, b_w, DECAY: tl.constexpr):
    """The gradient of w as it was given, from that of the log decay b_w, which `log_of` returned.

    Where the decay is 0, w is -inf and 0 · -inf would be no gradient.
    """
    if DECAY == RAW:
        return b_dw * tl.maximum(b_w, -200.0)
    elif DECAY == OF_CLAMP:
        return b_dw * b_w * (1 + b_w / CLAMP)
    else:
        return b_dw
