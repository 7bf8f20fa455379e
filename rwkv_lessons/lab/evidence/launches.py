"""One launch of a Triton kernel that can be judged: the grid, what goes in, what must come out."""

import dataclasses
import inspect
from collections.abc import Callable

import torch

from warplens.compiled.functions import plain
from warplens.triton import run as interpreter

from .compare import TOLERANCE, ChangedInput, NeverWritten, about, compare, place


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

    def judge(self, arguments, watched=None, names=None):
        """Raises `Difference` for the first of the answers that is wrong, or a changed input.

        Args:
            arguments: those of the launch, after it.
            watched: the `Watched` of an interpreted launch: which elements were written, and where.
            names: {a parameter's name here: its name in the kernel}, where they differ.
        """
        names, regions = names or {}, {x.name: x for x in watched.regions} if watched else {}
        for name, x in self.inputs.items():
            if not torch.equal(arguments[name].cpu().nan_to_num(), x.cpu().nan_to_num()):
                raise ChangedInput(f"the kernel changed its input {names.get(name, name)}")
        for name in self.outputs:
            if region := regions.get(names.get(name, name)):
                self._all_written(name, region)
        results = self.finish({name: arguments[name] for name in self.outputs})
        for name, want in self.wants.items():
            letters, scale = self.letters.get(name, "abcde"), self.scales.get(name)
            got = results[name].detach().double().cpu().numpy()
            with about(name):
                compare(got, want.cpu().numpy(), letters, scale, self.tolerance, by_how_much=True)

    def _all_written(self, name, region):
        missing = region.never_written()
        if not missing.any():
            return
        whole = name.removesuffix("_parts")  # partial sums have one axis more, in front
        letters = self.letters.get(name) or self.letters.get(whole, "abcdef").rjust(
            missing.dim(), "n"
        )
        first = place(letters, missing.nonzero()[0].tolist())
        raise NeverWritten(
            f"{region.name}: [{first}] is never written (NaN in fresh memory), as are "
            f"{int(missing.sum())} of its {missing.numel()} elements"
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
    arguments = launch.arguments(device)
    start(kernel, launch, arguments, device)
    return launch.finish({name: arguments[name] for name in launch.outputs})


def one_after_another(launch_of, steps, size, **blocks):
    """Runs kernels in the interpreter, each on what those before it wrote, and compares.

    Args:
        launch_of: `wkv6_launch` or `wkv7_launch`.
        steps: (kernel, launch, names, writes) each, as for `launch_of`, as size and blocks are.

    Returns:
        {array: its largest error, in units of its largest element}.
    """
    written, wants = {}, {}
    for kernel, launch, names, writes in steps:
        launched = launch_of(launch, names, writes, size, **blocks)
        inputs = {name: written.get(name, x) for name, x in launched.inputs.items()}
        written |= results(kernel, dataclasses.replace(launched, inputs=inputs))
        wants |= launched.wants
    return {x: float((written[x] - wants[x]).abs().max() / wants[x].abs().max()) for x in written}


def start(kernel, launch, arguments, device="cpu", reverse=False, names=None):
    """Launches on these arguments: in the interpreter on the CPU, else on the device.

    Args:
        names: as for `Launch.judge`.

    Returns:
        The interpreter's `Watched`, or None.
    """
    arguments = renamed(arguments, names)
    if device == "cpu":
        return interpreter.run(kernel, launch.grid, reverse=reverse, **arguments)
    kernel[launch.grid](**arguments)


def renamed(arguments, names):
    """Arguments by the names that the kernel has for them."""
    return {(names or {}).get(name, name): x for name, x in arguments.items()}


def parameter_names(kernel, reference):
    """{a parameter of the solution: the learner's name for it}, where they differ.

    Parameters that have the solution's names may stand in any order; the others are taken in order.

    Args:
        reference: the solution, or None: then the names are the kernel's own.
    """
    if reference is None:
        return {}
    want = list(inspect.signature(plain(reference)).parameters)
    own = list(inspect.signature(plain(kernel)).parameters)
    expected, actual = [x for x in want if x not in own], [x for x in own if x not in want]
    return dict(zip(expected, actual, strict=False))
