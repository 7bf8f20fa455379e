"""A CPU run that writes down every access: the instruction, the byte, the turn of the loops."""

import itertools
import sys
from array import array as int_array
from dataclasses import dataclass

import numpy as np

from ..faults import Place, UninitialisedRead
from .checked_array import GuardedArray, Memory
from .fake_cuda import FULL_WARP, PretendCuda
from .instructions import instruction
from .rebuild import Rebuilder
from .run import CudaMachine
from .while_loops import TURNS

NO_LOCK = frozenset()
MOST_ACCESSES = 10_000_000  # 240 MB of log
MOST_OF_ENDLESS = 100_000  # accesses that are kept of a launch that does not end
MOST_TURNS = 1 << 16  # of a loop that get a number each, 10 MB; an endless one goes on


@dataclass(frozen=True)
class Site:
    """One memory instruction of the kernel, on one array."""

    number: int
    place: Place
    memory: Memory
    op: str  # "load", "store" or "atomic"
    width: int  # bytes per lane


class WatchedArray(GuardedArray):
    """A guarded array that knows which of its elements were never written."""

    __slots__ = ()

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.length:
            offset = self.offset + index * self.step
        elif (offset := self.locate(index)) is None:
            return self.part(index)
        if self.written is not None and not self.written[offset // self.width]:
            self.machine.uninitialised(self, index)
        return int(self.data[index]) if self.as_int else self.data[index]

    def __setitem__(self, index, value):
        if type(index) is int and 0 <= index < self.length:
            offset = self.offset + index * self.step
        elif (offset := self.locate(index)) is None:
            self.part(index).fill(value)
            return
        if self.written is not None:
            self.written[offset // self.width] = 1
        if self.as_int:
            self.put(index, value)
        else:
            self.data[index] = value


class TracedArray(GuardedArray):
    """A watched array that tells the recorder of each access, too.

    The short cuts of `locate` and `note` stand here once more: a check spends its time on these.
    """

    __slots__ = ()

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.length:
            offset = self.offset + index * self.step
        elif (offset := self.locate(index)) is None:
            return self.part(index)
        frame, machine = sys._getframe(1), self.machine
        site = self.memory.loads.get((id(frame.f_code), frame.f_lasti))
        if site is None:
            self.note("load", offset)
        else:
            machine.log.extend((site, offset, machine.context))
        if self.written is not None and not self.written[offset // self.width]:
            machine.uninitialised(self, index)
        return int(self.data[index]) if self.as_int else self.data[index]

    def __setitem__(self, index, value):
        offset = self.locate(index)
        if offset is None:
            self.part(index).fill(value)
            return
        frame, machine = sys._getframe(1), self.machine
        site = self.memory.stores.get((id(frame.f_code), frame.f_lasti))
        if site is None:
            self.note("store", offset)
        else:
            machine.log.extend((site, offset, machine.context))
        if self.written is not None:
            self.written[offset // self.width] = 1
        self.put(index, value)

    def update(self, index, change):
        offset = self.locate(index)
        if offset is not None:
            self.note("atomic", offset)
            if self.written is not None and not self.written[offset // self.data.itemsize]:
                self.machine.uninitialised(self, index)
        return super().update(index, change)

    def note(self, op, offset):
        """Writes an access down, of an instruction that was not met on this way before."""
        machine = self.machine
        if not machine.quiet:
            site = machine.site(self.memory, op, self.width)
            machine.log.extend((site, offset, machine.context))


class Recorder(CudaMachine):
    """A launch that keeps a log of three integers per access: site, byte offset, loop context."""

    array_type = TracedArray

    def __init__(self, *args, local=True):
        """`local`: whether accesses to local arrays are kept in the log."""
        self.local = local
        super().__init__(*args)

    def prepare(self, *sizes):
        super().prepare(*sizes)
        self.log, self.sites, self.segments = int_array("q"), [], []
        self.context, self.contexts, self.quiet = 0, {}, False
        self.interval, self.warp_intervals = 0, {}
        self.locks, self.lock_sets = {}, {frozenset(): 0}  # by thread; the numbers of all sets
        self.grid_interval = self.blocks_begun = 0
        self.fences = []  # (accesses before it, block, thread, interval)
        self.unfenced = None  # the segment since which the current thread has had no fence
        self.barriers, self.unwritten, self.copies, self.block_number = {}, {}, {}, -1

    def allocate(self, data, space, frame, key, alignment=None):
        array = super().allocate(data, space, frame, key, alignment)
        if space != "local" or self.local:
            return array
        return WatchedArray(data, array.memory, self, 0, array.written)

    def make_rebuilder(self, constants):
        loops = {"range": self.traced_range, TURNS: self.traced_turns}
        return Rebuilder(PretendCuda(self), constants, self.vector_access, loops)

    def adopt(self, array):
        """A copy with the same layout, so that tracing changes nothing; one per argument."""
        start = array.__array_interface__["data"][0]
        key = start, array.shape, array.strides, array.dtype
        if key not in self.copies:
            self.copies[key] = _copy(array)
        return self.copies[key]

    # Where in the program.
    def site(self, memory, op, width):
        """The number of the kernel's current instruction, for this array and kind of access."""
        frame = self.frame()
        key = op, width, *instruction(frame)  # the copy of a record accesses fields of many widths
        if key not in memory.sites:
            memory.sites[key] = len(self.sites)
            place = Place(frame.f_code, frame.f_lineno)
            self.sites.append(Site(len(self.sites), place, memory, op, width))
        # The short cut that a `TracedArray` takes next time. A kernel's code object lives as long
        # as the launch, so its id names it.
        if op != "atomic":
            shortcuts = memory.loads if op == "load" else memory.stores
            shortcuts[id(frame.f_code), frame.f_lasti] = memory.sites[key]
        return memory.sites[key]

    def traced_range(self, *args):
        return self.loop(instruction(sys._getframe(1)), range(*args))

    def traced_turns(self):
        return self.loop(instruction(sys._getframe(1)), itertools.count())

    def loop(self, site, values):
        """Iterates, and gives each turn of the loop, within the turns around it, a number.

        Lanes that execute an instruction in the same turn execute it together; in different turns
        they do not, even where it is each lane's first time.
        """
        outer, contexts = self.context, self.contexts
        try:
            for turn, value in enumerate(values):
                key = outer, site, min(turn, MOST_TURNS)
                self.context = contexts.setdefault(key, len(contexts) + 1)
                yield value
        finally:
            self.context = outer

    def vector_access(self, twin):
        checked = super().vector_access(twin)

        def access(array, *index_and_value):
            self.quiet = True
            try:
                result = checked(array, *index_and_value)
            finally:
                self.quiet = False
            if not isinstance(array, TracedArray):
                return result
            index, *values = index_and_value
            op, frame = "store" if values else "load", sys._getframe(1)
            sites = array.memory.stores if values else array.memory.loads
            site = sites.get((id(frame.f_code), frame.f_lasti))
            if site is None:
                site = self.site(array.memory, op, 4 * array.itemsize)
            self.log.extend((site, array.locate(index), self.context))
            return result

        return access

    # When, and by whom.
    def run_block(self, block, args, reverse):
        self.block_number = self.blocks_begun
        self.blocks_begun += 1
        self.interval, self.warp_intervals = 0, {}
        super().run_block(block, args, reverse)
        self.passed_block()

    def passed_block(self):
        """Called when a block has come to its end."""
        if len(self.log) > 3 * MOST_ACCESSES:
            raise ValueError(
                f"the launch makes more than {MOST_ACCESSES:,} accesses; trace some of its blocks "
                "(blocks=4), or a smaller problem"
            )

    def resume(self, t):
        super().resume(t)
        self.context = 0  # a thread that comes back from a barrier restores its own
        warp_interval = self.warp_intervals.get(t // FULL_WARP, 0)
        when = self.interval, warp_interval, self.grid_interval
        self.segments.append([len(self.log) // 3, self.block_number, t, *when, self.lock_set()])

    # Locks. What two threads do while both hold the same one is ordered, if each lets others see
    # what it wrote, with a fence, before it lets go.
    def lock_set(self):
        """The number of the set of locks that the current thread holds."""
        locks = self.locks.get((self.block_number, self.thread), NO_LOCK)
        return self.lock_sets.setdefault(locks, len(self.lock_sets))

    def locked(self, array, index):
        self.unfenced = len(self.segments)  # where its first segment will be
        self._hold(frozenset.union, array, index)

    def fence(self):
        self.unfenced = None
        self.fences.append((len(self.log) // 3, self.block_number, self.thread, self.interval))

    def shorten(self):
        """Forgets all but the first accesses of an endless loop: each turn is like another."""
        del self.log[3 * MOST_OF_ENDLESS :]
        self.segments = [x for x in self.segments if x[0] <= MOST_OF_ENDLESS]

    def unlocked(self, array, index):
        before = self._hold(frozenset.difference, array, index)
        if self.unfenced is not None and before is not None:
            for segment in self.segments[self.unfenced : -1]:
                segment[-1] = self.lock_set()

    def _hold(self, change, array, index):
        """Changes the set of locks that the current thread holds; returns the former, or None."""
        thread, lock = (self.block_number, self.thread), (array.memory.storage, array.locate(index))
        before = self.locks.get(thread, NO_LOCK)
        after = self.locks[thread] = change(before, [lock])
        if after == before:
            return None
        context = self.context
        self.resume(self.thread)
        self.context = context
        return before

    def wait(self, *args):
        context = self.context
        result = super().wait(*args)
        self.context = context
        return result

    def passed_block_barrier(self, wait):
        self.barriers[self.block_number, self.interval] = wait.place
        self.interval += 1

    def passed_grid_barrier(self):
        self.grid_interval += 1

    def state(self):
        attributes, block = super().state()
        names = "block_number", "interval", "warp_intervals"
        return attributes | {name: vars(self)[name] for name in names}, block

    def passed_warp_barrier(self, warp):
        self.warp_intervals[warp] = self.warp_intervals.get(warp, 0) + 1

    def uninitialised(self, array, index):
        """Notes the read, once per line; the thread goes on with what poisoned memory holds."""
        frame, memory = self.frame(), array.memory
        place = Place(frame.f_code, frame.f_lineno)
        index = index if type(index) is tuple else (index,)
        key = memory.name, place.file, place.line
        if key in self.unwritten:
            return
        message = f"{memory.describe(index)} is read before anything was written to it"
        position = self.block(), self.coordinates(self.thread)
        self.unwritten[key] = UninitialisedRead(message, place, *position, memory.name, index)
        self.unwritten[key].space = memory.space


def _copy(array):
    if any(stride < 0 for stride in array.strides):
        return array.copy()
    extent = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    buffer = np.zeros(max(0, extent) + array.itemsize, np.uint8)
    copy = np.ndarray(array.shape, array.dtype, buffer, strides=array.strides)
    copy[...] = array
    return copy
