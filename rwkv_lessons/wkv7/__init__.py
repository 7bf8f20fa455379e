"""WKV-7, the time mixing of RWKV-7: a matrix state that each token reads, corrects and decays.

For each head, with row vectors r, w, k, v, a, b and a K × V state S:

    z[t] = a[t] S[t-1]
    S[t] = diag(exp(w[t])) S[t-1] + b[t]ᵀ z[t] + k[t]ᵀ v[t]
    o[t] = r[t] S[t]

This is the delta rule: with a = -κ and b = βκ for a unit vector κ, a fraction β of what the state
holds under the key κ is removed before k writes. With b = 0 it is WKV-6 without the bonus, except
that o reads the state after the token.
"""

import functools

import torch

from ..runtime import devices
from ..runtime.arguments import check_count, check_device_type, check_flag, check_floating, checked
from ..runtime.assembler import distrusted
from ..runtime.methods import method_table
from ..runtime.packages import TRITON, needed_by
from ..sequences.arguments import holds_float64, wants_gradients
from .arguments import check_call
from .few import fewest_heads, is_cut
from .reference import wkv7_reference
from .step import wkv7_step
from .wy import wkv7_wy

__all__ = ["METHODS", "method_for", "wkv7", "wkv7_reference", "wkv7_step", "wkv7_wy"]
__all__ += ["wkv7_chunked", "wkv7_fused", "wkv7_recurrent"] * TRITON

IN_TRITON = ("recurrent", "chunked", "fused")
LARGEST = 256  # keys of a head that the kernels hold
MANY_HEADS = 256  # with as many, tokens one after the other no longer find free SMs
FUSED_SIZES = (64, 128)  # keys and values of the heads that chunked/hopper takes
WIDE_HEADS = 64  # from how many of 128 on it is faster than segments in chunks: 32 are slower


@method_table
def _method(name):
    """A method by its name; Triton is imported when one of its methods is first wanted."""
    if name == "recurrent":
        from .recurrent.forward import wkv7_recurrent

        return wkv7_recurrent
    if name == "chunked":
        from .chunked.forward import wkv7_chunked

        return wkv7_chunked
    if name == "fused":
        from .chunked.hopper.fused import wkv7_fused

        return wkv7_fused
    return wkv7_reference if name == "reference" else wkv7_wy


@method_table
def _checked(name):
    """The method without the check of its arguments, its options by place."""
    if name == "recurrent":
        from .recurrent.forward import recurrent

        return recurrent
    if name == "chunked":
        from .chunked.forward import chunked

        return chunked
    if name == "fused":
        from .chunked.hopper.fused import fused

        return fused
    return _method(name).checked


_known_checked = functools.cache(_checked)  # an import statement costs the host 1 µs


def __getattr__(name):
    if name == "METHODS":
        names = ("reference", "wy", *(IN_TRITON if TRITON else ()))
        value = {name: _method(name) for name in names}
    elif name in [f"wkv7_{method}" for method in IN_TRITON]:
        with needed_by(name):
            value = _method(name.removeprefix("wkv7_"))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


@checked(
    device=check_device_type, dtype=check_floating, T=check_count, heads=check_count,
    size=check_count, gradients=check_flag, gpu=devices.check_gpu, alike=check_flag,
    packed=check_flag,
)  # fmt: skip
def method_for(
    device, dtype, T, heads, size, gradients, gpu=None, alike=True, packed=False
):  # fmt: skip
    """The method that `wkv7` chooses, a key of `METHODS`.

    | device | T         | and            | method    | because |
    |--------|-----------|----------------|-----------|---------|
    | no GPU | 1         |                | reference | nothing to make products of |
    | no GPU | more      |                | wy        | matrix products, on any device |
    | GPU    | any       | float64        | wy        | no kernel computes in it |
    | GPU    | any       | size above 256 | wy        | no kernel is as large |
    | GPU    | up to 4   |                | recurrent | one launch, and no chunk to fill |
    | GPU    | up to 16  | no gradients   | recurrent | half a chunk would be padding |
    | GPU    | up to 64  | … and few heads | recurrent | a chain of small steps, no maps to make |
    | GPU    | more      | float32, no gradients, many heads | recurrent | 4.0 ms, chunks 5.4 |
    | GPU    | more      | float32, old assembler | recurrent | see `runtime/assembler.py` |
    | GPU    | more      | size above 128, no Hopper | recurrent | tiles do not fit |
    | Hopper | more      | bfloat16, size 64 or 128, alike, enough heads * | fused | 0.49 ms |
    | GPU    | more      |                | chunked   | matrix products, T in parallel |

    * The fewest heads with which fused is faster; few.py says when it cuts sequences:

        size 64, cut          1, with gradients 12,288 / T
        size 64, not cut      40 - 16,384 / T, with gradients 32
        size 128              64

    Fewer leave SMs without a thread block, and chunked cuts their sequences into segments.

    Without Triton, the rows for no GPU apply. Times are forward times on an H200 at B=8 T=4096
    H=64 N=64; the other reasons were not timed.

    Args:
        device: "cuda" or another `torch.device.type`.
        dtype: torch.float64 if any tensor is, else r's.
        T: tokens of a sequence, or their mean if several are packed.
        heads: B·H, or sequences·H if they are packed; 256 or more count as many.
        size: K.
        gradients: whether any gradient is needed.
        gpu: `devices.gpu_of` a device, if that is "cuda"; the current one if left out, or an H200
            where there is none.
        alike: whether w has r's dtype, and v its shape.
        packed: whether sequences are packed.
    """
    if device != "cuda" or not TRITON:
        return "reference" if T == 1 else "wy"
    if dtype == torch.float64 or size > LARGEST:
        return "wy"
    if T <= (4 if gradients else 16 if heads >= MANY_HEADS else 64):
        return "recurrent"
    from .chunked.forward import largest

    gpu = gpu or devices.current()
    one_by_one = dtype == torch.float32 and (
        distrusted(gpu.capability) or (heads >= MANY_HEADS and not gradients)
    )
    if one_by_one or size > largest(gpu):
        return "recurrent"
    of_bfloat16 = dtype == torch.bfloat16 and size in FUSED_SIZES and alike
    if not (of_bfloat16 and gpu.is_hopper):
        return "chunked"
    fewest = WIDE_HEADS
    if size == FUSED_SIZES[0]:
        cut = not packed and is_cut(heads, T, gpu.sms)
        fewest = fewest_heads(T, cut, gradients)
    return "fused" if heads >= fewest else "chunked"


def wkv7(r, w, k, v, a, b, s0=None, *, cu_seqlens=None, scale=1.0, decay="log"):
    """Mixes time with the RWKV-7 recurrence, with the method that `method_for` chooses.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        w: decay, `[B, T, H, K]`, any of these dtypes. In 16 bits a product of decays is off by at
            most 0.37 · 2⁻⁸ with "log", by more with "raw" if decays are close to 1. On Hopper a w
            of another dtype than r takes slower kernels. But where 64 tokens of heads of 64 decay
            below exp(-120), which RWKV-7's models never do, gradients with w in bfloat16 are many
            times slower: give it in float32 there. See `decay`.
        v: value, `[B, T, H, V]`, of r's dtype.
        a: token t reads the state before it with a, `[B, T, H, K]`; in models -κ, where κ is a
            unit vector for each head.
        b: token t adds the result along b, `[B, T, H, K]`; in models κ times a rate from 0 to 1.
            If |a| |b| is above 2, states can grow without bound.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.
        cu_seqlens: the boundaries of packed sequences along T, `[S + 1]`, int32 or int64,
            increasing from 0 to T, on r's device; B must be 1, and states are `[S, H, K, V]`. An
            empty sequence keeps its state. On a GPU the host does not check the values.
        scale: a factor for r.
        decay: how w is given. "log": the log decay, at most 0 and as low as -inf; the state is
            multiplied by `exp(w)`. "raw": x in `exp(-exp(x))`. "clamp": x in
            `exp(-exp(-0.5) · sigmoid(x))`, as RWKV-7's models store it. dw is the gradient of w
            in the given form.

    Returns:
        o `[B, T, H, V]` in r's dtype, and s1 `[B, H, K, V]`, the state after the last token, in
        float32 (float64 if r is). All tensors have gradients, through both o and s1. s0 is not
        modified.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device, or decay is none
            of these.

    Limits:
        NaN: everything that depends on a NaN is NaN. It stays in its head and its sequence. In
            methods with chunks it reaches all tokens of its chunk, also earlier ones: up to 32
            tokens from a multiple of 32 in the sequence with chunked, 64 with fused and wy.
        Reproducibility: kernels add in a fixed order, without atomics.
        Precision: torch.autocast has no effect. Second gradients are supported by the methods
            in torch, reference and wy; the kernels raise a RuntimeError.
    """
    B, T, H, K, V = check_call(r, w, k, v, a, b, s0, cu_seqlens, scale, decay)
    S = B if cu_seqlens is None else len(cu_seqlens) - 1
    dtype = torch.float64 if holds_float64(r, w, s0) else r.dtype
    gradients = torch.is_grad_enabled() and wants_gradients(r, w, k, v, a, b, s0)
    gpu = devices.gpu_of(r.device)
    alike = w.dtype == r.dtype and V == K
    name = method_for.unchecked(
        r.device.type, dtype, -(-B * T // S), S * H, K, gradients, gpu, alike,
        cu_seqlens is not None,
    )  # fmt: skip
    arguments = (r, w, k, v, a, b, s0, cu_seqlens, float(scale), decay)
    method = (_checked if torch.compiler.is_compiling() else _known_checked)(name)
    return method(*arguments)
