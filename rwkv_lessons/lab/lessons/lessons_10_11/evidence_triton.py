"""Launches of lesson 10's kernel in Triton, which multiplies with Toeplitz matrices."""

import torch

from ...evidence.triton import Launch
from .evidence import LETTERS, problem

# Sums are float32; o is rounded to 8 bits: half a unit of the last is 2⁻⁹ of a number.
BFLOAT16_TOLERANCE = 3e-3


class Absent:
    """Stands for Triton where it has no wheels: kernels can be defined, and that is all."""

    constexpr = int

    @staticmethod
    def jit(function):
        return function


triton = tl = Absent


def timex_launch(launch, shape, numbers="random", dtype=torch.float32, **blocks):
    """A `Launch` of the kernel: o of w and k.

    Args:
        launch: (B, C, T, **blocks) → (grid, {parameter: size, constexpr, num_warps}).
        shape: B, C, T.
        numbers: as of `timex.CaseX`. With "late" the last output, which has the huge token, is
            left out of the comparison.
        dtype: of w, k and o.
        blocks: sizes other than the lesson's own.
    """
    tensors = of_dtype(shape, numbers, dtype)
    shown = slice(0, -1) if numbers == "late" else slice(None)
    grid, constants = launch(*shape, **blocks)
    size = "B={} C={} T={}".format(*shape)
    return Launch(
        grid,
        {"w": tensors["w"].to(dtype), "k": tensors["k"].to(dtype)},
        {"o": tuple(shape)},
        {"o": tensors["o"][..., shown]},
        constants,
        finish=lambda written: {"o": written["o"][..., shown]},
        letters=LETTERS,
        dtype=dtype,
        size=size if dtype == torch.float32 else f"{size} bfloat16",
        **({} if dtype == torch.float32 else {"tolerance": BFLOAT16_TOLERANCE}),
    )


def of_dtype(shape, numbers, dtype):
    """w, k and o in float64, of numbers that `dtype` holds."""
    tensors = problem(tuple(shape), numbers)
    if dtype == torch.float32:
        return tensors
    from ....timex.reference import timex_reference

    w, k = (tensors[x].to(dtype).double() for x in ("w", "k"))
    return {"w": w, "k": k, "o": timex_reference(w, k)}
