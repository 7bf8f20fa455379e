"""The evidence for the small kernels of lesson 00: inputs, one output, a launch of a few blocks."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from warplens.cuda import trace

from ....runtime.launch_numba import as_array, stream
from ...course.check import ABSENT, FAILED, PASSED, Row
from ...evidence.compare import ChangedInput, Difference, compare
from ...evidence.kernels import cause_in, unlaunchable
from ...evidence.verdicts import explained, failed

LARGE = 10_000  # elements: more are not traced


@dataclasses.dataclass(frozen=True)
class Small:
    """One launch, `kernel[grid, block](*inputs, output)`, and what the output must be.

    Args:
        name, symptom: what fails if it does, and which of the exercise's hints fits then.
        inputs: NumPy arrays, which the kernel has to leave alone.
        want: the output, in its shape and dtype.
        start: what the output is full of before the launch.
        letters: of the output's axes, for messages.
        reverse: run the threads of a block from the last to the first.
    """

    name: str
    symptom: str
    grid: int | tuple
    block: int | tuple
    inputs: tuple
    want: np.ndarray
    start: float = np.nan
    letters: str = "i"
    reverse: bool = False

    def arguments(self):
        """Fresh copies of the inputs, and a fresh output."""
        return [*(x.copy() for x in self.inputs), np.full_like(self.want, self.start)]


def answer(*cases: Small):
    """Runs the kernel on the CPU, one thread after another, over `cases`."""

    def gather(kernel, exercise):
        threads = int(np.prod(cases[0].block))
        if reasons := unlaunchable(kernel, threads):
            return Row("answer", FAILED, "it cannot be launched", reasons)
        for case in cases:
            arrays = case.arguments()
            try:
                trace.run(kernel, case.grid, case.block, *arrays, reverse=case.reverse)
                compare(arrays[-1], case.want, case.letters)
                if not all(map(np.array_equal, arrays, case.inputs)):
                    raise ChangedInput("the kernel changed an input")
            except (Difference, trace.KernelFault) as error:
                sizes = ", ".join("×".join(map(str, x.shape)) for x in case.inputs)
                label = f"{case.name} (n={sizes})"
                small = case.want.size < LARGE and len(case.inputs[0]) < LARGE
                if isinstance(error, Difference) and small and (cause := _cause(kernel, case)):
                    label, error = f"{label}: {error}", cause  # not what came of it
                return failed(label, error, exercise, case.symptom, outside="tail")
        return Row("answer", PASSED, f"{len(cases)} cases on the CPU")

    gather.kind = "answer"
    return gather


def _cause(kernel, case):
    arrays = dict(enumerate(case.arguments()))
    return cause_in(kernel, case.grid, case.block, arrays)


@dataclasses.dataclass(frozen=True)
class Requests:
    """So many requests of warps to memory, of one kind: "load", "store" or "atomic"."""

    op: str
    most: int
    least: int
    space: str | None

    def count(self, trace):
        return trace.requests(self.space, self.op)

    def want(self):
        return f"at least {self.least}" if self.least else f"at most {self.most}"


def requests(op, most, least=0, space="global"):
    """A limit for `traffic`; with space=None shared memory counts too."""
    return Requests(op, most, least, space)


def traffic(case: Small, *limits: Requests):
    """Counts the requests of warps to memory, and looks for races."""

    def gather(kernel, exercise):
        counted = trace.trace(kernel, case.grid, case.block, *case.arguments())
        for trouble in (*counted.faults, *counted.races):
            return Row("traffic", FAILED, "", explained(trouble, exercise, outside="tail"))
        counts = [f"{limit.count(counted)} {limit.op} requests" for limit in limits]
        for limit, text in zip(limits, counts, strict=True):
            if not limit.least <= limit.count(counted) <= limit.most:
                return Row("traffic", FAILED, f"{text}, want {limit.want()}")
        return Row("traffic", PASSED, f"{counted.warps} warps: {', '.join(counts)}")

    gather.kind = "traffic"
    return gather


def this_gpu(case: Callable):
    """Runs the kernel on this machine's GPU.

    Args:
        case: () → Small, large.
    """

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        large = case()
        arrays = [torch.from_numpy(x).cuda() for x in large.arguments()]
        kernel[large.grid, large.block, stream()](*map(as_array, arrays))
        compare(arrays[-1].cpu(), large.want, large.letters)
        sizes = ", ".join("×".join(f"{n:,}" for n in x.shape) for x in large.inputs)
        return Row("this GPU", PASSED, f"n={sizes} on {torch.cuda.get_device_name()}")

    gather.kind = "this GPU"
    return gather
