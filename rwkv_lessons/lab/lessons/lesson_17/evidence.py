"""Launches of lesson 17's two kernels: one keeps states, the other sweeps back from them.

`launch` is the lesson's: (B, T, H, K, V, BT=, …) → (grid, sizes).
"""

from dataclasses import replace
from functools import partial

import torch

from ...evidence.launches import results
from ...evidence.triton import Case
from ...evidence.wkv6 import problem
from ...evidence.wkv6_triton import BFLOAT16_TOLERANCE, Size, wkv6_launch

TENSORS = ("r", "k", "v", "w", "u", "do", "ds1")
GRADIENTS = ("dr", "dk", "dv", "dw", "du", "ds0")
OWN_BLOCKS = Size((2, 70, 2, 64, 64))
LOW = Size((1, 35, 2, 16, 16), dtype=torch.bfloat16)
CASES = (
    ("one token, no states", "by hand", Size((1, 1, 1, 4, 4), states=False), 4),
    ("one token between two states", "last", Size((1, 1, 1, 4, 4)), 4),
    ("a chunk of two tokens", "pairs", Size((1, 2, 1, 4, 4), states=False), 2),
    ("a chunk of four tokens", "pairs", Size((1, 4, 1, 4, 4), states=False), 4),
    ("a chunk between two states", "last", Size((1, 4, 1, 4, 4)), 4),
    ("two chunks", "state", Size((1, 8, 1, 8, 8)), 4),
    ("every head has its own states, decay and bonus", "head", Size((1, 3, 2, 8, 8)), 4),
    ("every batch row has its own tokens and states", "batch", Size((2, 5, 2, 4, 4)), 4),
    ("17 tokens, the last chunk has one", "mask", Size((1, 17, 3, 4, 4)), 8),
    ("strong decays", "decay", Size((1, 9, 1, 8, 8), decay="strong"), 8),
    ("300 tokens", "long", Size((1, 300, 1, 2, 2)), 4),
    ("260 heads of batch rows", "many", Size((13, 2, 20, 2, 2)), 2),
    ("bfloat16", "16 bits", LOW, 16),
    ("strong decays in bfloat16", "16 bits", replace(LOW, decay="strong"), 8),
    ("the order of the programs does not matter", "programs", Size((2, 6, 3, 4, 4)), 4),
)


def _before(size, BT):
    """The state before every chunk, [B, chunks, H, N, N], in float64."""
    values = problem(size.shape, BT, size.states, size.decay, dtype=size.dtype)
    return torch.cat([values["s0"][:, None], values["kept"][:, :-1]], 1)


def _sweep_launch(launch, names, writes, size, BT, more):
    sweep = wkv6_launch(launch, names, writes, replace(size, C=BT), BT=BT, **more)
    if size.dtype == torch.bfloat16:
        return replace(sweep, tolerance=BFLOAT16_TOLERANCE, operands="bf16")
    return sweep


def keeping(launch, size, BT=16, **more):
    """A `Launch` of `checkpoints`, which keeps the state before every chunk of BT tokens."""
    sweep = _sweep_launch(launch, ("k", "v", "w", "s0"), (), size, BT, more)
    want = _before(size, BT)
    letters = sweep.letters | {"before": "bchij"}
    return replace(sweep, outputs={"before": want.shape}, wants={"before": want}, letters=letters)


def sweeping(launch, size, BT=16, **more):
    """A `Launch` of `backward_sweep`, which gets these states, and writes all gradients."""
    sweep = _sweep_launch(launch, (*TENSORS, *GRADIENTS), GRADIENTS, size, BT, more)
    before = _before(size, BT).float().contiguous()
    return replace(sweep, inputs=sweep.inputs | {"before": before})


LARGE, SMALL = 256.0, 2.0**-6  # 256 and what a product of two small ones adds: 21 bits


def _much(sweep, large, small):
    """A launch in bfloat16 whose state starts large, does not decay, and moves on very little.

    All numbers are powers of two, so that float32 states are exact. In 16 bits nothing is added.
    """
    none = {x: torch.zeros_like(y) for x, y in sweep.inputs.items() if x not in (*large, *small)}
    much = {x: torch.full_like(sweep.inputs[x], LARGE) for x in large}
    little = {x: torch.full_like(sweep.inputs[x], SMALL) for x in small}
    return replace(sweep, inputs={x: (none | much | little)[x] for x in sweep.inputs})


def keeping_much(launch, size, BT=16):
    """A `Launch` of `checkpoints` in bfloat16: states of 256 to which every token adds 2⁻¹²."""
    sweep = _much(keeping(launch, size, BT), ("s0",), ("k", "v"))
    chunks = torch.arange(sweep.wants["before"].shape[1]).double() * BT * SMALL**2
    want = LARGE + chunks[None, :, None, None, None].expand_as(sweep.wants["before"])
    return replace(sweep, wants={"before": want}, scales={"before": float(chunks.max())})


def sweeping_much(launch, size, BT=16):
    """A `Launch` of `backward_sweep`, the same of ds1, r and do; only ds0 is looked at."""
    sweep = _much(sweeping(launch, size, BT), ("ds1",), ("r", "do"))
    added = size.shape[1] * SMALL**2
    wants = {"ds0": torch.full_like(sweep.wants["ds0"], LARGE + added)}
    return replace(sweep, wants=wants, scales={"ds0": added})


def in_turn(launch, first_kernel, second_kernel, size, BT):
    """What both kernels compute, in the interpreter, the second on what the first one wrote."""
    before = results(first_kernel, keeping(launch, size, BT))["before"]
    second = sweeping(launch, size, BT)
    second = replace(second, inputs=second.inputs | {"before": before})
    return results(second_kernel, second), second.wants


def cases(make, much):
    """The `Case`s of either kernel.

    Args:
        make: (Size, BT=) → Launch.
        much: the same, of large states that hardly change.
    """
    small = tuple(
        Case(name, symptom, partial(make, size, BT=BT), reverse=symptom == "programs")
        for name, symptom, size, BT in CASES
    )
    whole = Case("70 tokens, the lesson's own blocks", "own blocks", partial(make, OWN_BLOCKS))
    large = Case("a large state in bfloat16", "16 bits", partial(much, LOW))
    return (*small, large, whole)
