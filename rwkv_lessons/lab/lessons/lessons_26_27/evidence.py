"""The evidence for lesson kernels of MLA in Triton.

A kernel's tensors have the names of `evidence_mla.LETTERS`; sizes, scale and blocks come from the
lesson's own `launch`: (sizes, scale, **blocks) → (grid, {parameter: number, num_warps, …}). The
lessons are about 16-bit numbers: float32 cases tell formulas apart, and may multiply in TF32.
"""

import torch

from ...evidence.cuda import TOLERANCE
from ...evidence.launching import Call
from ...evidence.triton import Case, Launch, answer, gpu, machine_code, traffic
from ..lessons_25_28.evidence import LETTERS, answers, decoding, problem, scale_of

# Weights p, the sum over the latents and the output are each rounded to float16's 11 bits: up to
# 3 · 2⁻¹¹ of the largest.
HALF_TOLERANCE = 2e-3
DECODING = {name: letters.replace("m", "") for name, letters in LETTERS.items()}


def mla_launch(launch, inputs, sizes, outputs=("o",), dtype=torch.float32, scores="tame", **blocks):
    """A `Launch` of a lesson kernel that writes whole answers.

    Args:
        inputs, outputs: names of LETTERS.
        dtype: of inputs and outputs.
        scores: as in `LatentCase`.
        blocks: block sizes in place of the lesson's own.
    """
    values = problem(sizes, dtype, scores)
    grid, constants = launch(sizes, scale_of(sizes), **blocks)
    return Launch(
        grid,
        {name: values[name].to(dtype).contiguous() for name in inputs},
        {name: tuple(values[name].shape) for name in outputs},
        {name: values[name] for name in outputs},
        constants,
        letters=LETTERS,
        exact=False,
        dtype=dtype,
        tolerance=TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE,
        size=str(sizes),
    )


def call(name, sizes, arguments, dtype=torch.float16, scores="tame", more=(), passed=None):
    """A `launching.Call` of a function that returns o, with tensors of LETTERS, scale, and `more`.

    Without an axis of queries if there is one query; see `LatentCase` for the scores and `Call`
    for what has to be passed on.
    """

    def make():
        values, letters = problem(sizes, dtype, scores), LETTERS
        if sizes.M == 1:
            values, letters = decoding(values), DECODING
        tensors = [values[x].to(dtype).contiguous() for x in arguments]
        return [*tensors, scale_of(sizes), *more], {"o": (values["o"], letters["o"])}

    return Call(name, make, HALF_TOLERANCE, str(sizes), dtype, passed=passed or {})


def partial_launch(launch, inputs, sizes, dtype=torch.float32, scores="tame", **blocks):
    """A `Launch` of a decoding kernel that writes a part of the answer for each split of a text.

    Its outputs are parts [B, splits, H, R] and part_lse [B, splits, H], float32. What they make
    together is compared with the attention over the whole text, o_latent and lse.
    """
    values = decoding(problem(sizes, dtype, scores))
    grid, constants = launch(sizes, scale_of(sizes), **blocks)
    shape = sizes.B, grid[0], sizes.H, sizes.R
    return Launch(
        grid,
        {name: values[name].to(dtype).contiguous() for name in inputs},
        {"parts": shape, "part_lse": shape[:-1]},
        {name: values[name] for name in ("o_latent", "lse")},
        constants,
        finish=lambda written: joined(**written),
        letters=DECODING,
        exact=False,
        tolerance=TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE,
        size=f"{sizes} SPLIT={constants['SPLIT']}",
    )


def joined(parts, part_lse):
    """What the parts of a text make together: o_latent [B, H, R] and lse [B, H]."""
    weights = part_lse.double().softmax(1)
    return {"o_latent": (weights[..., None] * parts).sum(1), "lse": part_lse.logsumexp(1)}


def combine_launch(launch, sizes, split, dtype=torch.float32, scores="tame", **blocks):
    """A `Launch` of a kernel that joins the parts of splits of `split` tokens, and applies w_v."""
    values = problem(sizes, dtype, scores)
    ends = [(n, min(n + split, sizes.N)) for n in range(0, sizes.N, split)]
    cut = [_of_tokens(values, scale_of(sizes), *end) for end in ends]
    parts, part_lse = (torch.stack([x[name] for x in cut], 1) for name in ("o_latent", "lse"))
    grid, constants = launch(sizes, split, **blocks)
    return Launch(
        grid,
        {"parts": parts.float(), "part_lse": part_lse.float(), "w_v": values["w_v"].to(dtype)},
        {"o": (sizes.B, sizes.H, sizes.V)},
        {"o": decoding(values)["o"]},
        constants,
        letters=DECODING,
        exact=False,
        dtype=dtype,
        tolerance=TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE,
        size=f"{sizes} splits of {split}",
    )


def _of_tokens(values, scale, start, end):
    """The answers over some of the tokens only, for one query."""
    names = ("q_latent", "q_rope", "latent", "k_rope", "w_v")
    tensors = {x: values[x][:, start:end] if "n" in LETTERS[x] else values[x] for x in names}
    return decoding(answers(**tensors, scale=scale))


def triton_kernel(make, chosen, own, counted, full, *claims, limits=()):
    """All the evidence for a lesson kernel.

    Args:
        make: (sizes, dtype, scores, small=False) → Launch; `small` blocks are for the interpreter.
        chosen: `LatentCase`s. Each is run with the programs from first to last, and the
            last of them also in reverse.
        own: `LatentSizes` of a case in the lesson's own blocks, in float16.
        counted: `LatentSizes` whose traffic is held against `limits`.
        full: `LatentSizes` of a launch for the compiler and for this machine's GPU, in float16.
        claims: about its machine code.
    """

    def later(case, reverse=False):
        name = "the order of the programs does not matter" if reverse else case.name
        symptom = "programs" if reverse else case.symptom
        return Case(name, symptom, lambda: make(case.sizes, case.dtype, case.scores, True), reverse)

    def in_own_blocks():
        return make(own, torch.float16)

    def whole():
        return make(full, torch.float16)

    return (
        answer(
            *map(later, chosen),
            later(chosen[-1], reverse=True),
            Case("the lesson's own blocks", "own blocks", in_own_blocks),
        ),
        traffic(lambda: make(counted, torch.float32, "tame", True), *limits),
        machine_code(whole, *claims),
        gpu(whole),
    )
