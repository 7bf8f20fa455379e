"""The evidence for lesson kernels of MLA in Triton.

A kernel's tensors have the names of `evidence_mla.LETTERS`; sizes, scale and blocks come from the
lesson's own `launch`: (sizes, scale, **blocks) → (grid, {parameter: number, num_warps, …}).
"""

import torch

from .evidence import TOLERANCE
from .evidence_mla import LETTERS, problem, scale_of
from .evidence_triton import Case, Launch, answer, gpu, machine_code, traffic

# Weights p, the sum over the latents and the output are each rounded to float16's 11 bits: up to
# 3 · 2⁻¹¹ of the largest.
HALF_TOLERANCE = 2e-3


def mla_launch(launch, inputs, sizes, outputs=("o",), dtype=torch.float32, high=False, **blocks):
    """A `Launch` of a lesson kernel that writes whole answers.

    Args:
        inputs, outputs: names of LETTERS.
        dtype: of inputs and outputs.
        high: as in `evidence_mla.Case`.
        blocks: block sizes in place of the lesson's own.
    """
    known = problem(sizes, dtype, high)
    grid, constants = launch(sizes, scale_of(sizes), **blocks)
    return Launch(
        grid,
        {name: known[name].to(dtype).contiguous() for name in inputs},
        {name: tuple(known[name].shape) for name in outputs},
        {name: known[name] for name in outputs},
        constants,
        letters=LETTERS,
        dtype=dtype,
        tolerance=TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE,
        size=str(sizes),
    )


def triton_kernel(make, chosen, counted, full, *claims, limits=()):
    """All the evidence for a lesson kernel.

    Args:
        make: (sizes, dtype, high) or (sizes, dtype, high, small=False) → Launch; `small` blocks
            are for the interpreter.
        chosen: `evidence_mla.Case`s. Each is run with the programs from first to last, and the
            last of them also in reverse.
        counted: Sizes whose traffic is held against `limits`.
        full: Sizes of a launch for the compiler and for this machine's GPU, in float16.
        claims: about its machine code.
    """

    def later(case, reverse=False):
        name = "the order of the programs does not matter" if reverse else case.name
        symptom = "programs" if reverse else case.symptom
        return Case(name, symptom, lambda: make(case.sizes, case.dtype, case.high, True), reverse)

    def whole():
        return make(full, torch.float16, False, False)

    return (
        answer(*map(later, chosen), later(chosen[-1], reverse=True)),
        traffic(lambda: make(counted, torch.float32, False, True), *limits),
        machine_code(whole, *claims),
        gpu(whole),
    )
