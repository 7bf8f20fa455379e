"""A raw decay, as models store it, made a log decay, in torch; tiles.py has it in Triton."""

from ..runtime.precision import sum_dtype

# exp(-exp(7)) is 0 even in float64. Above it the gradient is 0 too, not 0 · exp(x) = 0 · inf.
MAX_RAW_DECAY = 7.0


def log_decay(raw, dtype=None):
    """w = -exp(raw): the state is multiplied by exp(w) = exp(-exp(raw)).

    In `dtype`; else in raw's, and in float32 at least.
    """
    return -raw.to(dtype or sum_dtype(raw.dtype)).clamp(max=MAX_RAW_DECAY).exp()
