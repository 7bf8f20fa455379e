"""One launch of a Triton kernel that can be judged: the grid, what goes in, what must come out."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from warplens.triton import run as interpreter

from .cuda import TOLERANCE, Difference


class NeverWritten(Difference):
    """An output has elements that no program has stored."""


class NotANumber(Difference):
    """An answer is NaN, and was stored."""


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
        exact: whether the lesson promises float32 answers for float32 inputs.
        operands: the only type that a tl.dot may multiply, as Triton calls it, "bf16"; "" for any.
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
    exact: bool = True
    operands: str = ""
    size: str = ""

    @property
    def refuses_tf32(self):
        """Whether products of float32 operands have to keep all their bits."""
        return self.exact and all(x.dtype == torch.float32 for x in self.inputs.values())

    def arguments(self, device="cpu"):
        """A fresh set of a kernel's arguments, by name; outputs are full of NaN."""
        tensors = {name: x.detach().clone().to(device) for name, x in self.inputs.items()}
        for name, shape in self.outputs.items():
            tensors[name] = torch.full(shape, torch.nan, dtype=self.dtype, device=device)
        return tensors | self.constants

    def judge(self, given, seen=None, names=None):
        """Raises `Difference` for the first of the answers that is wrong, or a changed input.

        Args:
            given: the arguments, after the launch.
            seen: the `Watched` of an interpreted launch: which elements were written, and where.
            names: {a parameter's name here: its name in the kernel}, where they differ.
        """
        names, regions = names or {}, {x.name: x for x in seen.regions} if seen else {}
        for name, x in self.inputs.items():
            if not torch.equal(given[name].cpu().nan_to_num(), x.cpu().nan_to_num()):
                raise Difference(f"the kernel changed its input {names.get(name, name)}")
        for name in self.outputs:
            if region := regions.get(names.get(name, name)):
                self._all_written(name, region)
        found = self.finish({name: given[name] for name in self.outputs})
        for name, want in self.wants.items():
            letters, scale = self.letters.get(name, "abcde"), self.scales.get(name)
            got = found[name].detach().double().cpu().numpy()
            try:
                _compare(got, want.cpu().numpy(), letters, scale, self.tolerance)
            except Difference as difference:
                raise type(difference)(f"{name}: {difference}") from None

    def _all_written(self, name, region):
        missing = region.never_written()
        if not missing.any():
            return
        whole = name.removesuffix("_parts")  # partial sums have one axis more, in front
        letters = self.letters.get(name) or self.letters.get(whole, "abcdef").rjust(
            missing.dim(), "n"
        )
        first = _place(letters, missing.nonzero()[0].tolist())
        raise NeverWritten(
            f"{region.name}: [{first}] is never written (NaN in fresh memory), as are "
            f"{int(missing.sum())} of its {missing.numel()} elements"
        )


def _place(letters, index):
    return ", ".join(f"{a}={n}" for a, n in zip(letters, index, strict=False))


def _compare(got, want, letters, scale, tolerance):
    """`evidence.cuda.compare`, that tells by how much, and NaN from a wrong number."""
    if got.shape != want.shape:
        raise Difference(f"shape {list(got.shape)}, want {list(want.shape)}")
    scale = np.abs(want).max(initial=0) if scale is None else scale
    limit = tolerance * max(scale, 1e-30)
    off = ~(np.abs(got - want) <= limit)
    if not off.any():
        return
    first = tuple(int(n) for n in np.argwhere(off)[0])
    rest = f"{off.sum()} of {off.size} differ"
    if np.isnan(got[first]):
        raise NotANumber(
            f"first difference at [{_place(letters, first)}]: NaN was computed, "
            f"want {want[first]:.6g}; {rest}"
        )
    # By powers of ten: a last digit differs from one machine to the next.
    error = np.abs(got - want)[off & np.isfinite(got)].max(initial=0) / limit
    times = f"{10 ** int(np.log10(error)):,} times" if error >= 10 else "a few times"
    times = f", by up to {times} what rounding explains" if error else ""
    raise Difference(
        f"first difference at [{_place(letters, first)}]: {got[first]:.6g}, "
        f"want {want[first]:.6g}; {rest}{times}"
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A launch small enough for the interpreter, named by the property that fails if it does.

    Args:
        symptom: which hint fits: a key of the exercise's `symptoms`, or of `hints.HINTS`.
        launch: () → Launch.
        reverse: run the programs from the last to the first.
        may_refuse: a kernel that does not compile for these types is right all the same, for
            others: it says so itself.
    """

    name: str
    symptom: str
    launch: Callable
    reverse: bool = False
    may_refuse: bool = False


def results(kernel, launch, device="cpu"):
    """Runs `kernel` over a Launch: {name: what `finish` makes of its outputs}.

    On the CPU through the interpreter, else on the device.
    """
    given = launch.arguments(device)
    start(kernel, launch, given, device)
    return launch.finish({name: given[name] for name in launch.outputs})


def start(kernel, launch, given, device="cpu", reverse=False, names=None):
    """Launches with the arguments `given`: in the interpreter on the CPU, else on the device.

    Args:
        names: as for `Launch.judge`.

    Returns:
        The interpreter's `Watched`, or None.
    """
    given = renamed(given, names)
    if device == "cpu":
        return interpreter.run(kernel, launch.grid, reverse=reverse, **given)
    kernel[launch.grid](**given)


def renamed(given, names):
    """Arguments by the names that the kernel has for them."""
    return {(names or {}).get(name, name): x for name, x in given.items()}
