"""Kernels with one planted race or fault each, and as many without, for race detectors to decide.

Each is small, runs as it is under numba.cuda, Triton or Gluon, and says in `finds` what is wrong
with it. docs/warplens_races.md has the table of what several tools say.
"""

import importlib
from dataclasses import dataclass, field

NUMBA = "sums scans histograms products stencils locks warps buffers grids memory".split()
TRITON = ["of_triton", "of_gluon"]


@dataclass(frozen=True)
class Case:
    """One kernel and one launch of it.

    Attributes:
        planted: what is wrong, in words; None where nothing is.
        finds: "race on NAME", or the name of a fault; None where nothing is.
        options: of the launch: num_warps, sharedmem and the like.
    """

    topic: str
    kernel: object
    launch: tuple  # grid, for numba the block, and the arguments
    planted: str | None = None
    finds: str | None = None
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        return getattr(self.kernel, "py_func", getattr(self.kernel, "fn", None)).__name__

    def trace(self):
        from warplens import trace

        return trace(self.kernel, *self.launch, **self.options)


CASES = []


def case(*launch, planted=None, finds=None, **options):
    """Adds a kernel to the set, with the launch that it is decided for."""

    def add(kernel):
        function = getattr(kernel, "py_func", getattr(kernel, "fn", None))
        topic = function.__module__.rpartition(".")[2].removeprefix("of_")
        CASES.append(Case(topic, kernel, launch, planted, finds, options))
        return kernel

    return add


def every(modules):
    """The cases of these modules, in their order."""
    for name in modules:
        importlib.import_module(f"{__name__}.{name}")
    return list(CASES)


def said(trace):
    """What a trace says, as `finds` would have it: a set."""
    return {f"race on {race.array}" for race in trace.races} | {
        type(fault).__name__ for fault in trace.faults
    }
