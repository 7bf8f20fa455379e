"""Digits of latent attention: float16, bfloat16 and float32 against float64, form by form."""

import torch

from warplens.triton import run as interpreter

from ...course.exercises import solutions
from ..lessons_25_28.evidence import LatentSizes, decoding, problem, scale_of

# What may differ after rounding, as the README of triton-mla gives it; None: no claim there.
CLAIMED = {"float16": 1e-3, "bfloat16": 5e-3, "float32": None}


def layer_inputs(dtype, H=8, N=512, rank_q=96):
    """x [1, rank_q], w_q [H, K, rank_q] and the other arguments of lesson 25's functions.

    MiniCPM3's K, P, V and R; every number is one of `dtype`.
    """
    sizes = LatentSizes(N=N, H=H, K=64, P=32, V=64, R=256)
    values = decoding(problem(sizes, dtype))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, rank_q, generator=generator)
    w_q = torch.randn(H, sizes.K, rank_q, generator=generator) / rank_q**0.5
    cache_and_weights = [values[name] for name in ("q_rope", "latent", "k_rope", "w_k", "w_v")]
    return [y.to(dtype) for y in (x, w_q, *cache_and_weights)] + [scale_of(sizes)]


def precision(forms, dtypes=(torch.float16, torch.bfloat16, torch.float32)):
    """Prints how far each form is from float64 on the same inputs, and the claim of `CLAIMED`.

    Args:
        forms: {name: function of (x, w_q, q_rope, latent, k_rope, w_k, w_v, scale)}, which
            returns None where it cannot compute.
    """
    print(f"{'':9} {'':17} {'‖o − o64‖ / ‖o64‖':>18}   largest difference")
    for dtype in dtypes:
        inputs, name = layer_inputs(dtype), str(dtype).removeprefix("torch.")
        exact = [x.double() if isinstance(x, torch.Tensor) else x for x in inputs]
        for form, function in forms.items():
            got, want = function(*inputs), function(*exact)
            line = f"{name:9} {form:17}"
            print(line, "needs Triton" if got is None else _compared(got, want, CLAIMED[name]))


def _compared(got, want, claim):
    off = got.double() - want
    text = f"{_digits(off.norm() / want.norm()):>18} {_digits(off.abs().max()):>20}"
    if claim is None:
        return text
    close = bool((off.abs() <= claim + claim * want.abs()).all())  # as torch.allclose has it
    return f"{text}  {'' if close else 'not '}within {claim:g}"


def from_x(attend):
    """One of lesson 25's functions with the query's weight in front: x and w_q in place of q."""
    return lambda x, w_q, *rest: attend(torch.einsum("bd,hkd->bhk", x, w_q), *rest)


def stored(x, w_q, q_rope, latent, k_rope, w_k, w_v, scale):
    """Absorbed, with the product of w_q and w_k made beforehand and kept in their dtype."""
    w_qk = torch.einsum("hkd,hkr->hdr", w_q, w_k)
    s = torch.einsum("bd,hdr->bhr", x, w_qk) @ latent.mT + q_rope @ k_rope.mT
    return torch.einsum("bhr,hvr->bhv", (s * scale).softmax(-1) @ latent, w_v)


def fused(q, q_rope, latent, k_rope, w_k, w_v, scale, split=128):
    """Lesson 27's two kernels in the interpreter, with lesson 25's arguments; float64 in torch.

    Products of float32 operands are those of tensor cores, in TF32. None without Triton.
    """
    if interpreter.what_is_missing():
        return None
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)
    if q.dtype == torch.float64:
        return solutions("25_absorb_the_weights").absorbed(
            q, q_rope, latent, k_rope, w_k, w_v, scale
        )
    lesson = solutions("27_split_decode")
    B, N, R = latent.shape
    H, V, P = q.shape[1], w_v.shape[1], q_rope.shape[2]
    sizes = LatentSizes(B, 1, N, H, q.shape[2], P, V, R)
    grid, constants = lesson.launch_partial(sizes, scale, split)
    parts, part_lse = torch.empty(B, grid[0], H, R), torch.empty(B, grid[0], H)
    tensors = (q_latent, q_rope, latent, k_rope, parts, part_lse)
    interpreter.run(lesson.partial, grid, *tensors, tf32=True, **constants)
    o = torch.empty(B, H, V, dtype=q.dtype)
    grid, constants = lesson.launch_combine(sizes, split)
    interpreter.run(lesson.combine, grid, parts, part_lse, w_v, o, tf32=True, **constants)
    return o


def _digits(error):
    """One digit of an error; below 1e-6 that differs from processor to processor."""
    return "below 1e-06" if error < 1e-6 else f"{float(error):.0e}"
