"""One launch of a Triton kernel that can be judged: the grid, what goes in, what must come out."""

import dataclasses
from collections.abc import Callable

import torch

from ...evidence.cuda import TOLERANCE, Difference, compare
from . import run as interpreter


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a kernel, and its answers.

    Args:
        grid: programs, up to three numbers.
        inputs: {parameter: tensor}, which the kernel has to leave alone.
        outputs: {parameter: shape}: tensors that the kernel gets full of NaN.
        wants: {name: float64 tensor} after `finish`.
        constants: {parameter: number}: sizes, constexprs; also num_warps and the like.
        finish: from {parameter: written tensor} to what is compared with `wants`, for example the
            sum of partial results. By default the outputs as they are.
        letters: {name: one letter per axis}, for messages.
        scales: {name: size of what was added up} where `wants` is what remains of larger numbers;
            by default the largest wanted.
        dtype: of the outputs.
        tolerance: the largest error allowed, over the scale.
        size: of the problem, for messages: "B=1 T=3".
    """

    grid: tuple
    inputs: dict
    outputs: dict
    wants: dict
    constants: dict = dataclasses.field(default_factory=dict)
    finish: Callable = dict
    letters: dict = dataclasses.field(default_factory=dict)
    scales: dict = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    tolerance: float = TOLERANCE
    size: str = ""

    def arguments(self, device="cpu"):
        """A fresh set of a kernel's arguments, by name; outputs are full of NaN."""
        tensors = {name: x.detach().clone().to(device) for name, x in self.inputs.items()}
        for name, shape in self.outputs.items():
            tensors[name] = torch.full(shape, torch.nan, dtype=self.dtype, device=device)
        return tensors | self.constants

    def judge(self, given):
        """Raises `Difference` for the first of the answers that is wrong, or a changed input."""
        for name, x in self.inputs.items():
            if not torch.equal(given[name].cpu().nan_to_num(), x.cpu().nan_to_num()):
                raise Difference(f"the kernel changed its input {name}")
        found = self.finish({name: given[name] for name in self.outputs})
        for name, want in self.wants.items():
            letters, scale = self.letters.get(name, "abcde"), self.scales.get(name)
            got = found[name].detach().double().cpu().numpy()
            try:
                compare(got, want.cpu().numpy(), letters, scale, self.tolerance)
            except Difference as difference:
                raise Difference(f"{name}: {difference}") from None


@dataclasses.dataclass(frozen=True)
class Case:
    """A launch small enough for the interpreter, named by the property that fails if it does.

    Args:
        symptom: which hint fits: a key of the exercise's `symptoms`, or of `hints.HINTS`.
        launch: () → Launch.
        reverse: run the programs from the last to the first.
    """

    name: str
    symptom: str
    launch: Callable
    reverse: bool = False


def results(kernel, launch, device="cpu"):
    """Runs `kernel` over a Launch: {name: what `finish` makes of its outputs}.

    On the CPU through the interpreter, else on the device.
    """
    given = launch.arguments(device)
    start(kernel, launch, given, device)
    return launch.finish({name: given[name] for name in launch.outputs})


def start(kernel, launch, given, device="cpu", reverse=False):
    """Launches with the arguments `given`: in the interpreter on the CPU, else on the device."""
    if device == "cpu":
        interpreter.run(kernel, launch.grid, reverse=reverse, **given)
    else:
        kernel[launch.grid](**given)
