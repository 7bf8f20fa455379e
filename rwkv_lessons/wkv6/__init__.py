"""WKV-6, the time mixing of RWKV-6: a matrix state whose decay rates depend on the data.

For each head, with row vectors r, k, v, w, u and a K × V state S:

    o[t] = r[t] (S[t-1] + diag(u) k[t]ᵀ v[t])
    S[t] = diag(exp(w[t])) S[t-1] + k[t]ᵀ v[t]

With the same w for every token, this is WKV-5.
"""

import functools

import torch

from ..runtime import devices
from ..runtime.arguments import check_count, check_device_type, check_flag, check_floating, checked
from ..runtime.assembler import distrusted
from ..runtime.bounded import Table
from ..runtime.methods import method_table
from ..runtime.packages import NUMBA, TRITON, needed_by
from ..sequences.arguments import holds_float64, wants_gradients
from .chunked.sizes import largest
from .doubling import wkv6_doubling
from .options import LARGEST, check_call, key_of
from .reference import wkv6_reference
from .step import wkv6_step

__all__ = ["METHODS", "method_for", "wkv6", "wkv6_doubling", "wkv6_reference", "wkv6_step"]
__all__ += ["wkv6_cuda"] * NUMBA + ["wkv6_chunked", "wkv6_recurrent"] * TRITON

MANY_HEADS = 256  # with as many, tokens one after the other no longer find free SMs


@method_table
def _method(name):
    """A method by its name; numba and Triton are imported when one of theirs is first wanted."""
    if name == "cuda":
        from .cuda.forward import wkv6_cuda

        return wkv6_cuda
    if name == "recurrent":
        from .recurrent.forward import wkv6_recurrent

        return wkv6_recurrent
    if name == "chunked":
        from .chunked.forward import wkv6_chunked

        return wkv6_chunked
    return wkv6_reference if name == "reference" else wkv6_doubling


@method_table
def _checked(name):
    """The method without the check of its arguments, its options by place."""
    if name == "recurrent":
        from .recurrent.forward import recurrent

        return recurrent
    if name == "chunked":
        from .chunked.forward import chunked

        return chunked
    return _method(name).checked


_known_checked = functools.cache(_checked)  # an import statement costs the host 1 µs
_methods = Table()  # by `key_of` a call, and whether gradients are wanted: its method


def __getattr__(name):
    if name == "METHODS":
        names = ["reference", "doubling", *["cuda"] * NUMBA, *["recurrent", "chunked"] * TRITON]
        value = {name: _method(name) for name in names}
    elif name in ("wkv6_cuda", "wkv6_recurrent", "wkv6_chunked"):
        with needed_by(name):
            value = _method(name.removeprefix("wkv6_"))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


@checked(
    device=check_device_type, dtype=check_floating, T=check_count, heads=check_count,
    size=check_count, gradients=check_flag, packed=check_flag, gpu=devices.check_gpu,
)  # fmt: skip
def method_for(device, dtype, T, heads, size, gradients, packed=False, gpu=None):
    """The method that `wkv6` chooses, a key of `METHODS`, based on times on an H200.

    | device | T         | and                   | method    | because |
    |--------|-----------|-----------------------|-----------|---------|
    | no GPU | 1         |                       | reference | nothing to make products of |
    | no GPU | more      |                       | doubling  | matrix products, on any device |
    | GPU    | any       | float64               | doubling  | no kernel computes in it |
    | GPU    | up to 4   |                       | recurrent | least to launch |
    | GPU    | up to 16  | no gradients          | recurrent | least to launch |
    | GPU    | up to 64  | … of few heads in float32 | recurrent | 19.1 µs at T=54, chunks 29.7 |
    | GPU    | more      | float32 of many heads | cuda      | 24 bits take 3 matrix products |
    | GPU    | more      | float32, old assembler | cuda     | see `runtime/assembler.py` |
    | GPU    | more      | size up to 256 *      | chunked   | matrix products, T in parallel |
    | GPU    | more      | packed                | recurrent | the others read cu_seqlens first |
    | GPU    | more      | size up to 1024       | cuda      | many tokens in shared memory |
    | GPU    | more      | larger                | doubling  | no kernel is as large |

    * On GPUs other than Hopper up to 128, or 64 in float32: tiles of larger heads do not fit.
    On Hopper, chunked runs in Gluon if r, k, v and w have one dtype of 16 bits, addresses that are
    multiples of 16, and K and V that are multiples of 64. For K = V = 128 in bfloat16 a thread
    block then takes a whole head. Otherwise, as with w in float32, it runs in Triton.

    Without Triton there is no recurrent and no chunked method, and the last rows apply.
    Without numba-cuda, the chunked method replaces its kernels, or else the recurrent one.

    Args:
        device: "cuda" or another `torch.device.type`.
        dtype: torch.float64 if any tensor is, else r's.
        T: tokens of a sequence, or their mean if several are packed.
        heads: B·H, or sequences·H if they are packed; 256 or more count as many.
        size: the larger of K and V.
        gradients: whether any gradient is needed.
        packed: whether there are several sequences along T.
        gpu: `devices.gpu_of` a device, if that is "cuda"; the current one if left out, or an H200
            where there is none.
    """
    if device != "cuda":
        return "reference" if T == 1 else "doubling"
    if dtype == torch.float64:
        return "doubling"
    gpu = gpu or devices.current()
    many, whole = heads >= MANY_HEADS, dtype == torch.float32
    if TRITON:
        if T <= (4 if gradients else 64 if whole and not many else 16):
            return "recurrent"
        if size <= largest(dtype, gpu) and (packed or not many or not whole or not NUMBA):
            if not (whole and distrusted(gpu.capability)):
                return "chunked"
        if packed or (not NUMBA and size <= LARGEST):
            return "recurrent"
    return "cuda" if NUMBA and size <= LARGEST else "doubling"


def wkv6(r, k, v, w, u, s0=None, *, cu_seqlens=None, scale=1.0, raw_decay=False):
    """Mixes time with the RWKV-6 recurrence, with the method that `method_for` chooses.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        v: value, `[B, T, H, V]`, of the same dtype.
        w: log decay, `[B, T, H, K]`, at most 0 and as low as -inf; before token t is added, the
            state is multiplied by `exp(w[t])`. Any of these dtypes; decays close to 0 need the
            precision of float32, but on Hopper a w of another dtype than r takes slower kernels.
        u: bonus of the current token, `[H, K]`.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.
        cu_seqlens: the boundaries of packed sequences along T, `[S + 1]`, int32 or int64,
            increasing from 0 to T, on r's device; B must be 1, and states are `[S, H, K, V]`. An
            empty sequence keeps its state. On a GPU the host does not check the values.
        scale: a factor for r.
        raw_decay: if True, w is x in `exp(-exp(x))`, as models store it, instead of the log decay,
            and dw is the gradient of x.

    Returns:
        o `[B, T, H, V]` in r's dtype, and s1 `[B, H, K, V]`, the state after the last token, in
        float32 (float64 if r is). All tensors have gradients, through both o and s1. s0 is not
        modified; `wkv6_step` updates a state in place.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.

    Limits:
        NaN and infinity: everything that depends on a NaN is NaN, and an infinity can cause NaN.
            It stays in its head and its sequence, packed or not; one in u reaches its head in
            every sequence. After a NaN at token t, o is NaN from t on, and so are gradients before
            t. The chunked method multiplies independent values by 0, so there a NaN can reach all
            tokens of its chunk (64 tokens from a multiple of 64 in the sequence), also earlier
            ones. The cuda method's dw can be NaN from the multiple of 64 before t on.
        Reproducibility: kernels add in a fixed order, without atomics. The same call on the same
            GPU with the same versions gives the same bits in o, s1 and every gradient; doubling
            does if torch's matrix products do. Another batch, T or method can round differently.
        Precision: torch.autocast has no effect. Second gradients are supported by the methods
            in torch, reference and doubling; the kernels raise a RuntimeError.
    """
    tensors = r, k, v, w, u, s0
    signature = key_of(tensors, scale, raw_decay) if cu_seqlens is None else None
    if signature:  # to check and to choose again takes half as long again
        signature = signature, torch.is_grad_enabled() and wants_gradients(*tensors)
        if method := _methods.get(signature):
            return method(*tensors, None, float(scale), raw_decay)
    B, T, H, K, V = check_call(*tensors, cu_seqlens, scale, raw_decay)
    gradients = torch.is_grad_enabled() and wants_gradients(*tensors)
    packed = cu_seqlens is not None
    S = len(cu_seqlens) - 1 if packed else B
    dtype = torch.float64 if holds_float64(r, w, u, s0) else r.dtype
    gpu = devices.gpu_of(r.device)
    sizes = r.device.type, dtype, -(-B * T // S), S * H, max(K, V), gradients, packed, gpu
    name = method_for.unchecked(*sizes)
    method = (_checked if torch.compiler.is_compiling() else _known_checked)(name)
    if signature:
        _methods[signature] = method
    return method(*tensors, cu_seqlens, float(scale), raw_decay)
