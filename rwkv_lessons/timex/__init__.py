"""Time-x, the time mixing of RWKV-v2 and v3 (2022): a weight for every distance in time.

    o[b, c, t] = eps + Σ_{u ≤ t} w[c, (T-1) - (t-u)] k[b, c, u]

Every channel has T weights of its own. The last one is for the token itself, the first one for the
token T - 1 before it. This is a depthwise convolution as long as the sequence: T² / 2 products per
row.
"""

import functools

import torch

from ..runtime.arguments import check_count, check_device_type, check_floating, checked
from ..runtime.methods import method_table
from ..runtime.packages import NUMBA, TRITON, needed_by
from .arguments import check_arguments
from .fft import timex_fft
from .reference import timex_reference

__all__ = ["METHODS", "method_for", "timex", "timex_fft", "timex_reference"]
__all__ += ["timex_cuda"] * NUMBA + ["timex_toeplitz"] * TRITON

# From so many tokens on, spectra are faster, both passes taken together: measured on an H200 at
# B = 32, C = 768 for T = 128 … 8192 (docs/designs_timex.md), and drawn between two lengths.
FFT_FROM = {"cuda": 896, "cuda in 16 bits": 640, "toeplitz": 1920, "toeplitz in 16 bits": 9216}


def _cuda():
    from .cuda.forward import timex_cuda

    return timex_cuda


def _toeplitz():
    from .toeplitz.forward import timex_toeplitz

    return timex_toeplitz


def __getattr__(name):
    if name in ("timex_cuda", "timex_toeplitz"):
        with needed_by(name):
            value = _method(name.removeprefix("timex_"))
    elif name == "METHODS":
        value = {"reference": timex_reference, "fft": timex_fft}
        value |= {"cuda": _cuda()} if NUMBA else {}
        value |= {"toeplitz": _toeplitz()} if TRITON else {}
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


@method_table
def _method(name):
    """A method by its name; numba and Triton are imported when they are first wanted."""
    lazy = {"cuda": _cuda, "toeplitz": _toeplitz}
    return lazy[name]() if name in lazy else {"reference": timex_reference, "fft": timex_fft}[name]


_known_method = functools.cache(_method)  # an import statement costs the host 1 µs


@checked(device=check_device_type, dtype=check_floating, T=check_count)
def method_for(device, dtype, T):
    """The name of the method that `timex` picks: a key of `METHODS`.

    | device | T                          | method   | because                                    |
    |--------|----------------------------|----------|--------------------------------------------|
    | CPU    | up to 32                   | reference| T shifted rows are less work than spectra  |
    | CPU    | more                       | fft      | T·log T                                    |
    | GPU    | float64                    | fft      | the kernels sum in float32                 |
    | GPU    | below `FFT_FROM`           | toeplitz | tensor cores                               |
    | GPU    | from there on              | fft      | T·log T; where T² costs more than memory   |

    Without Triton, the numba kernels replace the Toeplitz products, up to fewer tokens. Without
    both, fft is always used. `FFT_FROM` was measured on an H200 with B = 32.

    Args:
        device: "cuda" or another `torch.device.type`.
        dtype: k's torch.dtype, or float64 if w's is.
        T: tokens.
    """
    if device != "cuda":
        return "reference" if T <= 32 else "fft"
    if dtype == torch.float64:
        return "fft"
    name = "toeplitz" if TRITON else "cuda" if NUMBA else "fft"
    key = name if dtype == torch.float32 else f"{name} in 16 bits"
    return name if T < FFT_FROM.get(key, 0) else "fft"


def timex(w, k, eps=0.0):
    """Mixes time as RWKV-v2 and v3 do, with the method that `method_for` chooses.

    Args:
        w: weights, `[C, T]`, float32, float16, bfloat16 or float64; `w[c, T-1-d]` is the weight
            of the token d before.
        k: the values to mix, `[B, C, T]`, any of these dtypes.
        eps: a number that is added to every output.

    Returns:
        o `[B, C, T]`, contiguous, in k's dtype; w and k have gradients. Sums are in float32, or in
        float64 if w or k is.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Limits:
        Causality: with the methods cuda, toeplitz and reference, no bit of o[t] depends on later
            tokens. With fft this holds up to rounding: every output of a row has an error of up to
            3e-7 of |w| |k|, the norms of its weights and of its values.
        NaN and infinity: everything that depends on a NaN is NaN. With fft a NaN reaches its whole
            row (one in w: all rows of its channel). With the kernels it also reaches tokens and
            distances in the same tile: up to 128 tokens from a multiple of 128, or 512 with
            toeplitz. Values that depend on an infinity can be NaN.
        Reproducibility: the kernels add in a fixed order, without atomics.
        Precision: torch.autocast has no effect. Second gradients are supported by the methods
            in torch, reference and fft; the kernels raise a RuntimeError.

    Source:
        Peng Bo, "RWKV-CUDA", depthwise_conv1d, 2022.
    """
    _, _, T = check_arguments(w, k, eps)
    dtype = torch.float64 if torch.float64 in (w.dtype, k.dtype) else k.dtype
    name = method_for.unchecked(k.device.type, dtype, T)
    method = (_method if torch.compiler.is_compiling() else _known_method)(name)
    return method(w, k, eps)
