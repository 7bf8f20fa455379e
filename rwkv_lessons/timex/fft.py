"""Time-x as a product of spectra: T·log T operations for each row instead of T².

A convolution of two rows of T numbers is a product of their Fourier transforms, once both are
followed by T - 1 zeros or more, so that nothing comes around the end. Each row of k is transformed
there and back; those of w once for all of the batch.

Memory: some twelve times the bytes of k are moved, in float32 whatever k is, which is what bounds
it. The rounding of the largest term reaches every output of a row, those before it too: causality
holds up to float32's precision, not to the bit, and a NaN reaches its whole row.
"""

import torch

from ..runtime.precision import outside_autocast
from .arguments import check_arguments
from .reference import sum_dtype_of


@outside_autocast
def timex_fft(w, k, eps=0.0):
    """Same arguments and results as `timex`, on any device, gradients of any order included."""
    _, _, T = check_arguments(w, k, eps)
    real = sum_dtype_of(w, k)
    n = length_for(2 * T - 1)
    weights, rows = torch.fft.rfft(w.to(real).flip(-1), n), torch.fft.rfft(k.to(real), n)
    return (torch.fft.irfft(weights * rows, n)[..., :T] + eps).to(k.dtype)


def length_for(least):
    """The shortest 2^a or 3·2^a from `least` on: lengths of such small factors are fast."""
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= least and power >= 4 else power
