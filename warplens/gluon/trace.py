"""What was in flight while a Gluon kernel ran, in numbers and as a list of steps."""

from typing import Any, Literal, TypeAlias

from ..faults import KernelFault
from ..shown import Shown
from ..wording import many

Kind: TypeAlias = Literal["copy in", "copy out", "product"]


class GluonTrace(Shown):
    """Counts of a launch, exact and the same in every run.

    Attributes:
        grid, programs: as launched, and how many that are.
        steps: every `FlightStep` of every program, in order.
        flights: every `Flight`.
        faults: the `KernelFault` that ended the run, if one did.
        races: none: Triton adds barriers, and programs that write the same element are a fault.
        touched: [(argument, shape, strides, "load" or "store", counts by element of its memory)].
        owners: {address of a tensor's memory: which program wrote each element, or -1}.

    The methods that count take the `kind` of a flight: "copy in", "copy out", "product".
    """

    kernel: str
    grid: tuple[int, ...]
    programs: int
    steps: list[Any]
    flights: list[Any]
    faults: list[KernelFault]
    touched: list[Any]
    races: tuple[Any, ...] = ()

    def __init__(self, kernel, grid, machine, faults, arguments):
        self.kernel, self.grid, self.programs = kernel, grid, grid[0] * grid[1] * grid[2]
        self.steps, self.flights = machine.flight_log.steps, machine.flight_log.flights
        self.owners, self.faults = machine.owners, faults
        self.touched = machine.touched.named(arguments)

    def of(self, kind: Kind, program: int | None = None) -> list[Any]:
        """The flights of a kind."""
        return [x for x in self.flights if x.kind == kind and program in (None, x.program)]

    def bytes(self, kind: Kind) -> int:
        """Moved by copies of a kind."""
        return sum(x.bytes for x in self.of(kind))

    @property
    def flops(self) -> int:
        """Of the products: 2·M·N·K each."""
        return sum(x.flops for x in self.of("product"))

    def waits(self, kind: Kind) -> int:
        """How many waits had something of a kind to wait for."""
        return sum(any(x.kind == kind for x in step.ended) for step in self.steps)

    def most(self, kind: Kind) -> int:
        """How many of a kind are on their way at once in a program, at most."""
        most = 0
        for flight in self.of(kind):
            same_kind = self.of(kind, flight.program)
            most = max(most, sum(x.start <= flight.start < (x.end or 1e9) for x in same_kind))
        return most

    def meanwhile(self, flight: Any, *kinds: str) -> list[Any]:
        """The steps of these kinds that a program takes while a flight is on its way."""
        last = flight.end or len(self.steps) + 1
        between = self.steps[flight.start : last - 1]  # steps are numbered from 1
        return [x for x in between if x.kind in kinds]

    def hidden(self, kind: Kind, *by: str) -> int:
        """How many flights of a kind have work meanwhile: tiles read, written or computed.

        `by` are other kinds of steps that count, instead of these.
        """
        by = by or ("read", "write", "compute")
        return sum(bool(self.meanwhile(flight, *by)) for flight in self.of(kind))

    def table(self, program: int = 0) -> str:
        """The steps of a program as text: its line, what it does, and what is in flight then."""
        lines = [f"{self.kernel}: {many(self.programs, 'program')}, program {program}"]
        lines.append(f"{'step':>4} {'line':>5}  {'what':34}in flight")
        for step in self.steps:
            if step.program == program:
                flying = [x for x in self.flights if x.program == program]
                flying = [x.name for x in flying if x.start <= step.n < (x.end or 1e9)]
                count = step.kind == "compute"
                text = f"{step.kind} {many(int(step.what), 'tile') if count else step.what}"
                line = step.place.line if step.place else ""
                lines.append(f"{step.n:4} {line:>5}  {text:34}{' '.join(flying)}".rstrip())
        return "\n".join([*lines, *(f"fault: {fault}" for fault in self.faults)])

    def __str__(self) -> str:
        return self.table()
