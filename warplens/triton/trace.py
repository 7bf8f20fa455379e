"""What an interpreted Triton kernel asked of memory, in numbers."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ..faults import KernelFault, Place
from ..shown import Shown
from ..wording import many
from .checked_memory import SECTOR, Access, ProgramRace

Op: TypeAlias = Literal["load", "store", "atomic"] | None


@dataclass(frozen=True)
class TritonCount:
    """What one source line does to one tensor, all programs together."""

    place: Place | None
    array: str
    op: str  # "load", "store", "atomic"
    requests: int  # executions by a program
    lanes: int  # elements asked for: unmasked lanes
    bytes: int
    sectors: int  # 32 bytes each, distinct within a request

    @property
    def line(self) -> int:
        return self.place.line if self.place else 0


class TritonTrace(Shown):
    """Counts of a launch, exact and the same in every run.

    Attributes:
        grid, programs: as launched, and how many that are.
        rows: a `TritonCount` per source line, tensor and kind of access.
        dots: {(M, N, K, type of the operands): how often}, over all programs.
        exps: elements of which `tl.exp` or `tl.exp2` was taken; exp_lines: {line: how many}.
        races: elements that one program writes and another reads or writes, one
            `ProgramRace` per tensor.
        faults: the `KernelFault` that ended the run, if one did.
        accesses: every `Access`, in order.
        names: {an array's name elsewhere: its name in the kernel}, where they differ.
        depends: the first `Place` at which an address, a mask or a branch depends on values that
            were read from memory. If it is None, races and faults are those of every input of the
            same shape, as `for_all_inputs` says; otherwise they are those of this launch.
        configuration: what was taken in place of `triton.autotune`'s choice, in words, or None.

    The methods that count take any of `op` ("load", "store", "atomic"), `array` (a parameter's
    name) and `line`, and count what fits all of them.
    """

    kernel: str
    grid: tuple[int, ...]
    programs: int
    rows: list[TritonCount]
    races: list[ProgramRace]
    faults: list[KernelFault]
    accesses: list[Access]
    dots: dict[tuple[int, int, int, str], int]
    exps: int
    exp_lines: dict[int, int]
    names: dict[str, str]
    configuration: str | None
    depends: Place | None

    def __init__(self, kernel, grid, memory, faults, configuration=None, depends=None):
        self.kernel, self.grid, self.programs = kernel, grid, int(np.prod(grid))
        self.accesses, self.faults = memory.accesses, faults
        self.names, self.configuration, self.depends = {}, configuration, depends
        self.races = list(memory.races.values())
        arithmetic = self.arithmetic = memory.arithmetic
        self.dots, self.exps, self.exp_lines = (
            arithmetic.dots,
            arithmetic.exps,
            arithmetic.exp_lines,
        )
        self.tensors = {region.name: region.tensor for region in memory.regions}
        groups = {}
        for access in self.accesses:
            line = access.place.line if access.place else 0
            groups.setdefault((line, access.array, access.op), []).append(access)
        self.rows = [_row(groups[key]) for key in sorted(groups)]

    @property
    def for_all_inputs(self) -> bool:
        """Whether what was found is so for every input of this shape."""
        return self.depends is None

    def reach(self) -> str:
        """The same in a sentence."""
        clause = "address, mask or branch depends on the data, so this holds for"
        if self.depends is None:
            return f"No {clause} every input of this shape"
        return f"An {clause} one launch: {self.depends}"

    def name_of(self, array: str) -> str:
        """The kernel's own name of `array`."""
        return (self.names or {}).get(array, array)

    def requests(self, op: Op = None, array: str | None = None, line: int | None = None) -> int:
        """Executions of loads, stores or atomics by a program."""
        return sum(row.requests for row in self._fitting(op, array, line))

    def lanes(self, op: Op = None, array: str | None = None, line: int | None = None) -> int:
        """Elements asked for, masked ones left out."""
        return sum(row.lanes for row in self._fitting(op, array, line))

    def bytes(self, op: Op = None, array: str | None = None, line: int | None = None) -> int:
        """Bytes asked for."""
        return sum(row.bytes for row in self._fitting(op, array, line))

    def sectors(self, op: Op = None, array: str | None = None, line: int | None = None) -> int:
        """32-byte sectors, distinct within a request, summed over the requests."""
        return sum(row.sectors for row in self._fitting(op, array, line))

    def least_bytes(self, op: Op = None, array: str | None = None) -> int:
        """Bytes of the distinct elements: what moves if each is asked for once in the launch."""
        return sum(
            np.unique(np.concatenate([a.offsets for a in accesses])).size * accesses[0].width
            for name in self.tensors
            if array in (None, name)
            and (accesses := [a for a in self.accesses if a.array == name and op in (None, a.op)])
        )

    def times(self, array: str, op: Op = "load") -> float:
        """How often an element of `array` is asked for, on average over the tensor: 2.0."""
        return self.lanes(op, array) / self.tensors[self.name_of(array)].numel()

    @property
    def flops(self) -> int:
        """Of the dots: 2·M·N·K each."""
        return sum(2 * M * N * K * n for (M, N, K, _), n in self.dots.items())

    def by_program(self, array: str, op: Op = None) -> dict[tuple[int, ...], Any]:
        """{program: how often it asks for each element}, counts in the shape of the tensor.

        The tensor has to be contiguous.
        """
        tensor = self.tensors[array]
        per_program = {}
        for a in self.accesses:
            if a.array == array and op in (None, a.op):
                counts = per_program.setdefault(a.program, np.zeros(tensor.numel(), np.int64))
                np.add.at(counts, a.offsets // a.width, 1)
        return {program: counts.reshape(tensor.shape) for program, counts in per_program.items()}

    def table(self) -> str:
        """The counts as text: per line and tensor, then dots, exps, races and faults."""
        head = f"{'line':>4}  {'tensor':8} {'op':7}" + "".join(f"{x:>10}" for x in HEADS)
        lines = [f"{self.kernel}: {many(self.programs, 'program')} {self.grid}"]
        lines += [self.configuration] if self.configuration else []
        lines.append(head)
        for row in self.rows:
            numbers = (row.requests, row.lanes, row.bytes, row.sectors)
            cells = "".join(f" {x:>9,}" for x in numbers)
            lines.append(f"{row.line:4}  {row.array:8} {row.op:7}{cells}")
        for (M, N, K, kind), n in sorted(self.dots.items()):
            lines.append(f"dot {M}×{K} by {K}×{N}, {kind}: {many(n, 'time')}")
        if self.exps:
            lines.append(f"exp of {many(self.exps, 'element')}")
        lines += [f"race: {race}" for race in self.races]
        lines += [f"fault: {fault}" for fault in self.faults]
        lines.append(self.reach())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _fitting(self, op, array, line):
        array = self.name_of(array)
        if op not in (None, "load", "store", "atomic"):
            raise ValueError(f"op is {op!r}, needs one of load, store, atomic")
        if array is not None and array not in self.tensors:
            raise ValueError(f"array is {array!r}, needs one of {', '.join(self.tensors)}")
        selection = {"op": op, "array": array, "line": line}
        criteria = {name: value for name, value in selection.items() if value is not None}
        return [r for r in self.rows if all(getattr(r, n) == v for n, v in criteria.items())]


HEADS = ("requests", "lanes", "bytes", "sectors")


def _row(accesses):
    first = accesses[0]
    total = Counter()
    for a in accesses:
        total["lanes"] += len(a.offsets)
        total["sectors"] += len(np.unique(a.offsets // SECTOR))
    return TritonCount(
        first.place,
        first.array,
        first.op,
        requests=len(accesses),
        lanes=total["lanes"],
        bytes=total["lanes"] * first.width,
        sectors=total["sectors"],
    )
