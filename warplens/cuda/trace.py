"""Counts what a kernel asks of memory, on a CPU, from the unmodified kernel.

The counts are of the kernel *as written*: an access in the source is an access here. A compiler may
keep a local array in registers, load an unchanging address once, or merge neighbouring accesses;
where it does, the hardware counts less. `lab.assembly` shows what it did.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ..faults import (
    DivergentBarrier,
    EndlessLoop,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    Place,
    UninitialisedRead,
)
from ..shown import Shown
from . import banks
from . import memory_model as traffic
from .access_log import Recorder
from .events import events_of, key, occurrence
from .fake_cuda import FULL_WARP
from .races import Race, races
from .run import run
from .trace_text import table

__all__ = [
    "DivergentBarrier",
    "KernelFault",
    "MisalignedAccess",
    "OutOfBounds",
    "Trace",
    "UninitialisedRead",
    "run",
    "trace",
]


def trace(
    kernel: object,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *args: Any,
    constants: dict[str, Any] | None = None,
    blocks: int | list[int] | None = None,
    sharedmem: int = 0,
    local: bool = True,
) -> "Trace":
    """Runs `kernel[grid, block](*args)` on copies of its arguments and counts its accesses.

    Args:
        kernel, grid, block, args, constants, sharedmem: as for `run`.
        blocks: trace only so many blocks, spread evenly over the grid, or only these (a list of
            numbers, x counted first). Counts are then of these blocks; `Trace.scale` says how many
            times larger the launch is. What blocks do to each other is then not seen.
        local: whether to count accesses to local arrays too, which takes time.

    Returns:
        A `Trace`. A fault ends the run and is in `Trace.faults`, with the counts up to there.
        Reads of uninitialised shared or local memory are there too, one per line.
    """
    recorder = Recorder(kernel, grid, block, constants, sharedmem, local=local)
    forwards = _traced(recorder, args, blocks)
    if forwards.ordered_by_atomics and not forwards.faults:
        # In another order of blocks, whoever reads what a counter guards may come too early.
        recorder = Recorder(kernel, grid, block, constants, sharedmem, local=local)
        backwards = _traced(recorder, args, blocks, reverse=True)
        if not any(isinstance(fault, EndlessLoop) for fault in backwards.faults):
            reported = {
                (race.array, race.place.line, race.other_place.line) for race in forwards.races
            }
            forwards.races += [
                race
                for race in backwards.races
                if (race.array, race.place.line, race.other_place.line) not in reported
            ]
    return forwards


def _traced(recorder, args, blocks, reverse=False):
    wrapped = [recorder.argument(i, arg) for i, arg in enumerate(args)]
    everything = recorder.all_blocks()
    chosen = [everything[n] for n in _choose(blocks, len(everything))]
    faults = []
    try:
        recorder.launch(wrapped, chosen, reverse)
    except KernelFault as fault:
        faults.append(fault)
        if isinstance(fault, EndlessLoop):
            recorder.shorten()
    chosen = chosen[::-1] if reverse else chosen
    arguments = [getattr(arg, "data", arg) for arg in wrapped]
    return Trace(recorder, chosen, len(everything), faults, arguments)


def _choose(blocks, total):
    if blocks is None:
        return range(total)
    if isinstance(blocks, (int, np.integer)):
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}; at least one block must be traced")
        blocks = [n * total // min(blocks, total) for n in range(min(blocks, total))]
    for n in blocks:
        if not 0 <= n < total:
            raise ValueError(f"blocks has {n!r}; the grid's blocks are 0 to {total - 1}")
    return list(blocks)


@dataclass(frozen=True)
class CudaCount:
    """What one source line does to one array. Counts that do not apply to the space are 0."""

    place: Place
    array: str
    space: str  # "global", "shared", "local", "const"
    op: str  # "load", "store", "atomic"
    width: int  # bytes per lane and access
    accesses: int  # by single lanes
    requests: int  # by warps: one instruction of one warp
    bytes: int  # asked for by lanes
    sectors: int  # 32 bytes each, over all requests (global and local)
    least_sectors: int  # distinct ones
    wavefronts: int  # of shared memory
    conflicts: int  # wavefronts beyond those a conflict-free layout needs
    addresses: int  # distinct ones
    most_on_one: int  # accesses that one address gets
    together: int  # lanes of one request that meet at one address

    @property
    def line(self) -> int:
        return self.place.line


@dataclass(frozen=True)
class Request:
    """One warp executing one instruction once: the address of each lane, None where it is off."""

    row: CudaCount
    block: tuple[int, ...]
    warp: int
    addresses: tuple[int | None, ...]  # 32 byte offsets from the start of the array
    sectors: int
    wavefronts: int


Space: TypeAlias = Literal["global", "shared", "local", "const"] | None
Op: TypeAlias = Literal["load", "store", "atomic"] | None
Name: TypeAlias = str | None
Line: TypeAlias = int | None


class Trace(Shown):
    """What a launch asked of memory. Counts are exact, and the same in every run.

    Attributes:
        rows: a `CudaCount` per source line, array and kind of access, in source order.
        races: what no barrier orders, as `Race`s; `print` one to read it.
        faults: `KernelFault`s. After any but an `UninitialisedRead` the counts are partial.
        blocks: the traced blocks; all_blocks: how many the grid has.
        arguments: the launch's arguments after it, arrays as what the kernel made of its copies.
        exponentials: calls of exp, exp2 and the like, by single threads.
        shared_bytes: of the arrays in shared memory that a block declares.

    The methods that count take any of `space` ("global", "shared", "local"), `op` ("load",
    "store", "atomic"), `array` (a name) and `line` (a number), and count what fits all of them.
    """

    kernel: str
    rows: list[CudaCount]
    races: list[Race]
    faults: list[KernelFault]
    blocks: list[tuple[int, ...]]
    all_blocks: int
    threads_per_block: int
    arguments: list[Any]
    exponentials: int
    shared_bytes: int

    def __init__(self, recorder, blocks, all_blocks, faults, arguments):
        self.arguments, self.exponentials = arguments, recorder.exponentials
        self.shared_bytes = recorder.shared_bytes
        self.kernel = recorder.kernel.__name__
        self.blocks, self.all_blocks = blocks, all_blocks
        self.threads_per_block = recorder.threads_per_block
        self.barriers = recorder.barriers
        self.sites, self.events = recorder.sites, events_of(recorder)
        self.faults = [*faults, *recorder.unwritten.values()]
        self._coordinates = recorder.coordinates
        self._address = self._addresses()
        self.rows, self._row_of_site = self._make_rows()
        order = list(recorder.lock_sets), recorder.fences
        races_and_order = races(self.events, self.sites, *order, self._thread_name)
        self.races, self.ordered_by_atomics = races_and_order

    # Counting.
    @property
    def scale(self) -> float:
        """How many times more blocks the launch has than were traced."""
        return self.all_blocks / len(self.blocks)

    @property
    def warps(self) -> int:
        return len(self.blocks) * -(-self.threads_per_block // FULL_WARP)

    def requests(
        self, space: Space = None, op: Op = None, array: Name = None, line: Line = None
    ) -> int:
        """Warp instructions."""
        return sum(row.requests for row in self._fitting(space, op, array, line))

    def accesses(
        self, space: Space = None, op: Op = None, array: Name = None, line: Line = None
    ) -> int:
        """Accesses of single lanes."""
        return sum(row.accesses for row in self._fitting(space, op, array, line))

    def sectors(
        self, space: Space = "global", op: Op = None, array: Name = None, line: Line = None
    ) -> int:
        """32-byte sectors, summed over the requests."""
        return sum(row.sectors for row in self._fitting(space, op, array, line))

    def bytes(
        self, space: Space = None, op: Op = None, array: Name = None, line: Line = None
    ) -> int:
        """Bytes the lanes ask for."""
        return sum(row.bytes for row in self._fitting(space, op, array, line))

    def least_bytes(
        self, space: Space = "global", op: Op = None, array: Name = None, line: Line = None
    ) -> int:
        """Bytes of the distinct sectors: what moves if each is fetched once per launch."""
        chosen = [self.rows.index(row) for row in self._fitting(space, op, array, line)]
        mask = np.isin(self._row_of_site[self.events.site], chosen)
        return traffic.SECTOR * self._distinct_sectors(mask)

    @property
    def atomics(self) -> int:
        """Atomic operations of single lanes, on global and shared memory."""
        return self.accesses(op="atomic")

    @property
    def shared_wavefronts(self) -> int:
        return sum(row.wavefronts for row in self.rows)

    @property
    def bank_conflicts(self) -> int:
        """Passes over shared memory that a conflict-free layout would not need."""
        return sum(row.conflicts for row in self.rows)

    def _fitting(self, space, op, array, line):
        selection = {"space": space, "op": op, "array": array, "line": line}
        for name, allowed in (("space", "global shared local const"), ("op", "load store atomic")):
            if selection[name] is not None and selection[name] not in allowed.split():
                raise ValueError(f"{name} is {selection[name]!r}; it must be one of {allowed}")
        criteria = {name: value for name, value in selection.items() if value is not None}
        return [r for r in self.rows if all(getattr(r, n) == v for n, v in criteria.items())]

    @functools.cached_property
    def reloads(self) -> dict[CudaCount, int]:
        """Requests for what their threads have loaded before in the same turn of their loops.

        A dictionary by row. They are in `rows` all the same, as written. A compiler loads such a
        number of global memory once, if the thread stores nothing in that turn.
        """
        e = self.events
        load, is_global, memory = self._of_sites()
        if not np.bincount(memory[load & is_global], minlength=1).max(initial=0) > 1:
            return {}
        turn = key(e.block, e.thread, e.context, e.interval)
        stores = np.unique(turn[(is_global & ~load)[e.site]])
        chosen = np.flatnonzero((is_global & load)[e.site] & ~np.isin(turn, stores))
        site, request = e.site[chosen], e.request[chosen]
        cell = key(turn[chosen], memory[site], e.offset[chosen])
        again = occurrence(cell) > occurrence(key(cell, site))  # by another instruction
        requests, first = np.unique(request, return_index=True)
        whole = ~np.isin(requests, request[~again])
        counts = np.bincount(self._row_of_site[site[first[whole]]], minlength=len(self.rows))
        return {self.rows[n]: int(counts[n]) for n in np.flatnonzero(counts)}

    def _of_sites(self):
        """Of every site: does it load, is it in global memory, and which array (a number)?"""
        arrays = list({id(site.memory): None for site in self.sites})
        load = np.array([site.op == "load" for site in self.sites], bool)
        is_global = np.array([site.memory.space == "global" for site in self.sites], bool)
        return load, is_global, np.array([arrays.index(id(x.memory)) for x in self.sites], np.int64)

    # Looking closer.
    def request(
        self,
        line: Line = None,
        array: Name = None,
        op: Op = None,
        space: Space = None,
        nth: int = 0,
    ) -> Request:
        """The addresses of one warp request, in the order of execution; `nth` picks one.

        Raises:
            ValueError: no access fits, or there are not that many.
        """
        rows = self._fitting(space, op, array, line)
        mask = np.isin(self._row_of_site[self.events.site], [self.rows.index(r) for r in rows])
        numbers, first = np.unique(self.events.request[mask], return_index=True)
        if nth >= len(numbers):
            selection = {"line": line, "array": array, "op": op, "space": space, "nth": nth}
            selection = ", ".join(f"{k}={v!r}" for k, v in selection.items() if v is not None)
            raise ValueError(f"{selection}: {self.kernel} makes {len(numbers)} such requests")
        # By warp, then as its first lane executes them.
        order = np.lexsort((first, self.events.warp[mask][first]))
        events = np.flatnonzero(self.events.request == numbers[order[nth]])
        lane = self.events.thread[events] % FULL_WARP
        addresses = [None] * FULL_WARP
        offset = self.events.offset[events]
        for n, start in zip(lane, offset, strict=True):
            addresses[n] = int(start)
        row = self.rows[self._row_of_site[self.events.site[events[0]]]]
        zero = np.zeros(len(events), np.int64)
        wavefronts, _ = banks.wavefronts(zero, lane, offset, row.width, row.op)
        return Request(
            row,
            self.blocks[self.events.block[events[0]]],
            int(self.events.warp[events[0]]) % -(-self.threads_per_block // FULL_WARP),
            tuple(addresses),
            int(traffic.sectors(zero, self._address[events])[0]),
            int(wavefronts[0]) if row.space == "shared" else 0,
        )

    def intervals(self, block: int = 0) -> list[tuple[dict[CudaCount, int], Place | None]]:
        """Between barriers: a list of ({row: requests}, barrier's Place or None), in order.

        Args:
            block: which of the traced blocks, counted from 0.
        """
        result, mine = [], self.events.block == block
        last = int(self.events.interval[mine].max(initial=0))
        last = max([last, *(n + 1 for b, n in self.barriers if b == block)])
        for n in range(last + 1):
            now = mine & (self.events.interval == n)
            request, first = np.unique(self.events.request[now], return_index=True)
            row = self._row_of_site[self.events.site[now][first]]
            count = np.bincount(row, minlength=len(self.rows))
            counts = {self.rows[i]: int(count[i]) for i in np.flatnonzero(count)}
            result.append((counts, self.barriers.get((block, n))))
        return result

    def table(self) -> str:
        """The counts as text: per line and array, then races and faults."""
        return table(self)

    def __str__(self) -> str:
        return self.table()

    def _thread_name(self, block, thread):
        return f"block {self.blocks[block]}, thread {self._coordinates(thread)}"

    # From the log to rows.
    def _addresses(self):
        """Byte addresses, apart for each allocation, as the hardware lays them out."""
        e = self.events
        local = np.array([s.memory.space == "local" for s in self.sites], bool)[e.site]
        lane = e.thread % FULL_WARP
        return np.where(local, traffic.local_address(e.offset, lane), e.offset)

    def _owner(self, mask):
        """Whose copy of an array it is: everyone's, a block's, or a warp's."""
        e = self.events
        space = np.array([s.memory.space for s in self.sites])[e.site[mask]]
        apart = np.where(space == "shared", e.block[mask], e.warp[mask])
        return np.where(np.isin(space, ("global", "const")), 0, apart + 1)

    def _distinct_sectors(self, mask):
        memories = list({id(s.memory): 0 for s in self.sites})
        number = np.array([memories.index(id(s.memory)) for s in self.sites] or [0])
        memory = number[self.events.site[mask]]
        sector = self._address[mask] // traffic.SECTOR
        return len(np.unique(key(memory, self._owner(mask), sector)))

    def _make_rows(self):
        groups = {}
        for site in self.sites:
            memory = site.memory
            kind = (site.place.file, site.place.line, memory.name, memory.space, site.op)
            groups.setdefault((*kind, site.width), []).append(site)
        first = self.sites[0].place.file if self.sites else ""
        order = sorted(groups, key=lambda g: (g[0] != first, *g))
        row_of_site = np.zeros(len(self.sites), np.int64)
        for n, group in enumerate(order):
            for site in groups[group]:
                row_of_site[site.number] = n
        row = row_of_site[self.events.site]
        ends = np.cumsum(np.bincount(row, minlength=len(order)))[:-1]
        mine = np.split(np.argsort(row, kind="stable"), ends) if order else []
        return [self._row(groups[g][0], mine[n]) for n, g in enumerate(order)], row_of_site

    def _row(self, site, mask):
        """The counts of the events `mask`, numbers of one row's."""
        e, address = self.events.select(mask), self._address[mask]
        _, request = np.unique(e.request, return_inverse=True)
        own = key(self._owner(mask), e.offset)
        space, shared = site.memory.space, site.memory.space == "shared"
        wavefronts, least = np.zeros((2, 1), np.int64)
        if shared:
            lane = e.thread % FULL_WARP
            wavefronts, least = banks.wavefronts(request, lane, e.offset, site.width, site.op)
        moved = space in ("global", "local")
        return CudaCount(
            site.place,
            site.memory.name,
            space,
            site.op,
            site.width,
            accesses=len(e),
            requests=int(request.max()) + 1,
            bytes=len(e) * site.width,
            sectors=int(traffic.sectors(request, address).sum()) if moved else 0,
            least_sectors=self._distinct_sectors(mask) if moved else 0,
            wavefronts=int(wavefronts.sum()),
            conflicts=int((wavefronts - least).sum()),
            addresses=len(np.unique(own)),
            most_on_one=traffic.most_on_one(own),
            together=traffic.together(request, e.offset),
        )
