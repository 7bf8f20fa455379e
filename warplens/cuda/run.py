"""Runs an unmodified numba.cuda kernel on the CPU: one thread at a time, in a fixed order.

Each thread of a block is a greenlet that runs until it meets a barrier or its end; then the next
thread starts. So thread 0 is always as far ahead as the program allows, and a forgotten barrier
shows the same wrong answer every time, not in one run of twenty.
"""

import contextvars
import inspect
import math
import sys
import time
from dataclasses import dataclass

import greenlet
import numpy as np

from ..architectures import ARCHITECTURES
from ..faults import (
    STILL,
    DivergentBarrier,
    EndlessLoop,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    Place,
    TooMuchShared,
    in_words,
    place_of,
)
from ..time_limit import StillRunning, TooLarge, time_limit
from .checked_array import GuardedArray, Memory, RecordView, Written
from .fake_cuda import FULL_WARP, PretendCuda, fresh
from .grid_barrier import run_blocks
from .instructions import assigned_name, instruction
from .rebuild import Rebuilder

MOST_THREADS = 1024  # in one block
MOST_STATIC = 48 * 1024  # bytes of shared arrays of fixed size: more does not compile
MOST_SHARED = max(a.shared_bytes_block for a in ARCHITECTURES.values())

# A kernel that names none of these has threads that run from their start to their end.
BARRIERS = frozenset(
    [
        *"syncthreads syncthreads_count syncthreads_and syncthreads_or syncwarp sync".split(),
        *"shfl_sync shfl_up_sync shfl_down_sync shfl_xor_sync all_sync any_sync eq_sync".split(),
        *"ballot_sync match_any_sync match_all_sync activemask".split(),
    ]
)


@dataclass
class Axes:
    x: int = 0
    y: int = 0
    z: int = 0

    def set(self, xyz):
        self.x, self.y, self.z = xyz


@dataclass
class Wait:
    """A thread that has met a barrier: where, who must come, and what it brings."""

    scope: str
    site: tuple
    place: Place
    answer: object
    value: object
    mask: int


def run(kernel, grid, block, *args, constants=None, reverse=False, sharedmem=0):
    """Runs `kernel[grid, block](*args)` on the CPU; arrays are changed in place.

    Args:
        kernel: what `cuda.jit` made, or the plain function.
        grid, block: launch sizes, an integer or a tuple of up to three.
        args: numpy arrays, CPU tensors (which share their memory) and scalars.
        constants: new values for global names, `{"N": 8}`, in the kernel and what it calls. A
            global that was computed from another one keeps its value.
        reverse: blocks and threads in the opposite order; a correct kernel does not notice.
        sharedmem: bytes of dynamic shared memory, for `cuda.shared.array(0, …)`.

    Fresh shared and local memory is full of NaN.

    Raises:
        KernelFault: with the source line and the thread: `OutOfBounds` (negative indices too),
            `DivergentBarrier`, `MisalignedAccess`, `EndlessLoop`, or any exception of the kernel.
    """
    machine = CudaMachine(kernel, grid, block, constants, sharedmem)
    wrapped = [machine.argument(i, arg) for i, arg in enumerate(args)]
    machine.launch(wrapped, machine.all_blocks(), reverse)


class CudaMachine:
    """One launch: which thread runs now, its arrays, its barriers."""

    array_type = GuardedArray
    errors = {"all": "ignore"}  # of numpy's arithmetic, as `np.errstate` takes them
    from_the_end = False  # whether x[-1] is the last element, as in numba, and no fault

    def __init__(self, kernel, grid, block, constants=None, sharedmem=0):
        self.grid_dim, self.block_dim = Axes(), Axes()
        self.thread_index, self.block_index = Axes(), Axes()
        self.prepare(grid, block, sharedmem)
        self.rebuilder = self.make_rebuilder(constants)
        self.kernel = self.rebuilder.kernel(kernel)
        self.meets = self.rebuilder.names() & BARRIERS  # names of what its threads meet at

    def prepare(self, grid, block, sharedmem=0):
        """Makes ready for a launch of these sizes, the first one or another."""
        self.grid_dim.set(_sizes("grid", grid))
        self.block_dim.set(_sizes("block", block))
        self.threads_per_block = math.prod(_sizes("block", block))
        if self.threads_per_block > MOST_THREADS:
            raise ValueError(f"block is {block}: a block has at most {MOST_THREADS} threads")
        self.lane = self.thread = 0
        self.threads = []  # of the block that runs
        self.exponentials = 0  # calls of exp and the like, by all threads
        self.shared_bytes = 0  # of a block, the most that one has declared
        self.shared, self.sharedmem, self.memories = {}, sharedmem, {}

    def make_rebuilder(self, constants):
        return Rebuilder(PretendCuda(self), constants, self.vector_access)

    def vector_access(self, twin):
        """`load4` or `store4` on the CPU: called with (array, index) or (array, index, values).

        An intrinsic that takes no array, say a conversion, is called as it is.
        """
        parameters = tuple(inspect.signature(twin).parameters)

        def access(array, *index_and_value):
            if not isinstance(array, GuardedArray):
                if parameters[:2] == ("array", "index"):
                    raise TypeError(_miscalled(twin, parameters, array, index_and_value))
                return twin(array, *index_and_value)
            index, *values = index_and_value or (None,)
            if type(index) is not tuple or len(index) != array.ndim:
                raise TypeError(_miscalled(twin, parameters, array, index_and_value))
            if len(values) != len(parameters) - 2:
                raise TypeError(_miscalled(twin, parameters, array, index_and_value))
            try:
                offset, width = array.locate(index), 4 * array.itemsize
            except OutOfBounds as fault:
                array.out_of_bounds(fault.index, "a vector starts where its index says")
            if offset is not None and offset % width:
                name = array.memory.describe(index)
                message = f"{name} starts at byte {offset}, not a multiple of {width}"
                self.fault(MisalignedAccess, message, array=array.memory.name, index=index)
            if (declared := array.memory.alignment) and declared < width:
                name = array.memory.name
                message = f"{name} may start at any multiple of {declared} bytes, and this takes "
                message += f"{width} at once: declare it with alignment={width}"
                self.fault(MisalignedAccess, message, array=name, index=index)
            plain = array.data if offset is not None and array.holds_four(index) else array
            return twin(plain, index, *values)

        return access

    def argument(self, position, value):
        """An argument as the kernel sees it: arrays wrapped, everything else as it is."""
        names = self.kernel.__code__.co_varnames[: self.kernel.__code__.co_argcount]
        name = names[position] if position < len(names) else f"argument {position}"
        return self.wrapped(name, value)

    def wrapped(self, name, value):
        if isinstance(value, tuple):
            parts = [self.wrapped(f"{name}[{n}]", part) for n, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, np.void):
            return RecordView(self.wrapped(name, np.asarray(value)[None]))
        if hasattr(value, "detach"):
            try:
                value = value.detach().numpy()
            except TypeError:
                message = f"{name} is a {value.dtype} tensor, a type that numba has not"
                raise TypeError(f"{message}: convert it to float32 first") from None
        if not isinstance(value, np.ndarray):
            return value
        value = self.adopt(value)
        memory = self.memories.setdefault(id(value), Memory(name, "global", value))
        return self.array_type(value, memory, self)

    def adopt(self, array):
        """The array that the kernel works on."""
        return array

    # Launching.
    def all_blocks(self):
        g = self.grid_dim
        return [(x, y, z) for z in range(g.z) for y in range(g.y) for x in range(g.x)]

    def launch(self, args, blocks, reverse=False):
        start = time.process_time()
        try:
            with time_limit():
                self.run_all(blocks[::-1] if reverse else blocks, args, reverse)
        except StillRunning as error:
            after = f"after {time.process_time() - start:.0f} s"
            after = "with more and more memory" if isinstance(error, TooLarge) else after
            raise self.explain(error, EndlessLoop, f"{STILL} {after}") from None

    def run_all(self, blocks, args, reverse=False):
        with np.errstate(**self.errors):
            if self.meets:
                run_blocks(self, blocks, args, reverse)
            else:
                for block in blocks:
                    self.run_block(block, args, reverse)

    def run_block(self, block, args, reverse):
        self.block_index.set(block)
        self.shared = {}
        if not self.meets:
            return self.run_straight(args, reverse)
        threads = self.threads = [self.make_thread() for _ in range(self.threads_per_block)]
        waiting, finished = {}, []
        passed = dict.fromkeys(range(self.threads_per_block), args)
        while passed:
            self.returned = frozenset(finished)
            for t in sorted(passed, reverse=reverse):
                self.resume(t)
                wait = self.switch(threads[t], passed[t])
                if threads[t].dead:
                    finished.append(t)
                else:
                    waiting[t] = wait
            answers = self.release(waiting, finished)
            passed = {t: (answer,) for t, answer in answers.items()}
            for t in passed:
                del waiting[t]

    def run_straight(self, args, reverse):
        """A block whose threads meet nowhere: each runs from its start to its end."""
        everyone = range(self.threads_per_block)
        for t in reversed(everyone) if reverse else everyone:
            self.resume(t)
            self.call(self.kernel, args)

    def make_thread(self):
        thread = greenlet.greenlet(self.kernel)
        thread.gr_context = contextvars.copy_context()  # numpy's errstate lives in the context
        return thread

    def switch(self, thread, values):
        """Lets one thread run to its next barrier, which it returns, or to its end."""
        return self.call(thread.switch, values)

    def call(self, function, values):
        try:
            return function(*values)
        except KernelFault as fault:
            if fault.thread is not None:
                raise
            raise self.explain(fault, type(fault), fault.what) from None
        except Exception as error:
            raise self.raised(error) from error

    def raised(self, error):
        """What an exception that the kernel raises becomes."""
        return self.explain(error)

    def resume(self, t):
        """Makes t, counted x first, the thread that runs."""
        self.thread, self.lane = t, t % FULL_WARP
        self.thread_index.set(self.coordinates(t))

    def coordinates(self, t):
        across, rows = self.block_dim.x, self.block_dim.y
        return t % across, t // across % rows, t // (across * rows)

    # Barriers.
    def wait(self, scope, answer, value=None, mask=0):
        frame = self.frame()
        place = Place(frame.f_code, frame.f_lineno)
        wait = Wait(scope, instruction(frame), place, answer, value, mask)
        return greenlet.getcurrent().parent.switch(wait)

    def release(self, waiting, finished):
        """The threads that may go on, each with what its barrier returns."""
        answers = {}
        for t, wait in waiting.items():
            if wait.scope == "warp" and t not in answers:
                answers |= self.release_warp(t, wait, waiting, finished)
        if answers or not waiting:
            return answers
        first, wait = next(iter(waiting.items()))
        self.must_meet(first, wait, range(self.threads_per_block), waiting, finished)
        self.passed_block_barrier(wait)
        if wait.scope == "grid":
            greenlet.getcurrent().parent.switch(self.state())
        result = wait.answer([w.value for _, w in sorted(waiting.items())])
        return dict.fromkeys(waiting, result)

    def release_warp(self, t, wait, waiting, finished):
        start = t - t % FULL_WARP
        lanes = range(start, min(start + FULL_WARP, self.threads_per_block))
        members = [n for n in lanes if wait.mask >> (n - start) & 1]
        if any(n in waiting and waiting[n].scope == "block" for n in members):
            self.must_meet(t, wait, members, waiting, finished)
        if any(n in finished or waiting[n].site != wait.site for n in members):
            self.must_meet(t, wait, members, waiting, finished)
        self.passed_warp_barrier(start // FULL_WARP)
        values = {n - start: waiting[n].value for n in members}
        return {n: waiting[n].answer(n - start, values) for n in members}

    def must_meet(self, t, wait, members, waiting, finished):
        """Faults unless all members wait at the same instruction as thread t."""
        absent = [n for n in members if n not in waiting or waiting[n].site != wait.site]
        if not absent:
            return
        absentee = absent[0]
        if absentee in finished:
            reason = f"thread {self.coordinates(absentee)} has returned"
        else:
            reason = f"thread {self.coordinates(absentee)} waits at {waiting[absentee].place}"
        self.resume(t)
        here = len(members) - len(absent)
        message = f"{here} of {len(members)} threads wait at a barrier, but {reason}"
        raise DivergentBarrier(message, wait.place, self.block(), self.coordinates(t))

    def state(self):
        """What belongs to the block that runs, for `restore`."""
        return {"shared": self.shared, "threads": self.threads}, self.block()

    def restore(self, state):
        attributes, block = state
        vars(self).update(attributes)
        self.block_index.set(block)

    def passed_grid_barrier(self):
        """Called when all blocks have met."""

    def passed_block_barrier(self, wait):
        """Called when all threads of the block have met."""

    def passed_warp_barrier(self, warp):
        """Called when lanes of a warp have met."""

    # Locks: who changes a value by `atomic.cas` holds one, until another atomic of that thread.
    def fence(self):
        """Called by a thread that waits until others can see what it wrote."""

    def locked(self, array, index):
        """Called when the current thread has taken a lock."""

    def unlocked(self, array, index):
        """Called when the current thread updates an element, which may be a lock it holds."""

    # Memory of a block and of a thread.
    def shared_array(self, shape, dtype, alignment=None):
        frame = self.frame()
        key = instruction(frame)
        if key not in self.shared:
            data = fresh(shape, dtype)
            if data.size == 0:
                self.shared[key] = self.dynamic_array(data.dtype, frame, key)
            else:
                self.shared[key] = self.allocate(
                    data, "shared", frame, key, alignment or data.itemsize
                )
            arrays = [x for x in self.shared.values() if hasattr(x, "memory")]
            static = [x.nbytes for x in arrays if x.memory.storage is x.memory]
            self._check_shared(sum(static))
            declared = sum(static) + self.sharedmem
            self.shared_bytes = max(self.shared_bytes, declared)
        return self.shared[key]

    def _check_shared(self, static):
        if static > MOST_STATIC:
            message = (
                f"shared arrays of fixed size take {static:,} bytes, a block has {MOST_STATIC:,} "
                "for them; for more, cuda.shared.array(0, …) with the bytes as the launch's fourth "
                "number"
            )
            self.fault(TooMuchShared, message)
        if static + self.sharedmem > MOST_SHARED:
            message = f"the block takes {static + self.sharedmem:,} bytes of shared memory, with "
            message += (
                f"{self.sharedmem:,} of the launch; no GPU here has more than {MOST_SHARED:,}"
            )
            self.fault(TooMuchShared, message)

    def dynamic_array(self, dtype, frame, key):
        """A view of the block's dynamic memory, which is one for all its dynamic arrays."""
        if "dynamic" not in self.shared:
            flags = bytearray(self.sharedmem)
            self.shared["dynamic"] = np.full(self.sharedmem, 0xFF, np.uint8), flags
        data, flags = self.shared["dynamic"]
        data = data[: self.sharedmem // dtype.itemsize * dtype.itemsize].view(dtype)
        array = self.allocate(data, "shared", frame, key)
        if "dynamic" not in self.memories:
            self.memories["dynamic"] = Memory("dynamic", "shared", data)
        array.memory.storage = self.memories["dynamic"]
        array.written = Written(flags, dtype.itemsize)
        return array

    def local_array(self, shape, dtype, alignment=None):
        frame = self.frame()
        key = instruction(frame)
        data = fresh(shape, dtype)
        return self.allocate(data, "local", frame, key, alignment or data.itemsize)

    def const_array(self, array):
        frame = self.frame()
        key = instruction(frame)
        return self.allocate(np.asarray(array), "const", frame, key)

    def allocate(self, data, space, frame, key, alignment=None):
        """An array in memory that blocks and threads have each for themselves, under one name."""
        key = (key, data.shape, data.dtype)
        if key not in self.memories:
            name = assigned_name(frame) or f"{space} array of line {frame.f_lineno}"
            self.memories[key] = Memory(name, space, data, alignment)
        written = bytearray(data.size) if space != "const" else None
        if data.dtype.names and written is not None:
            written = Written(bytearray(data.nbytes), data.itemsize)
        return self.array_type(data, self.memories[key], self, 0, written)

    # Faults.
    def frame(self):
        """The innermost frame that belongs to the kernel or one of its device functions."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code not in self.rebuilder.codes:
            frame = frame.f_back
        return frame

    def fault(self, kind, message, **details):
        frame = self.frame()
        place = Place(frame.f_code, frame.f_lineno)
        raise kind(message, place, self.block(), self.coordinates(self.thread), **details)

    def explain(self, error, kind=KernelFault, message=None):
        """An exception of the kernel as a fault with its place."""
        place = place_of(error, self.rebuilder.codes.__contains__)
        message = message or in_words(error)
        return kind(
            message, place or self.waiting_place(), self.block(), self.coordinates(self.thread)
        )

    def waiting_place(self):
        """Where the current thread waits at a barrier, or None."""
        if not self.threads:
            return None
        frame = self.threads[self.thread].gr_frame
        while frame is not None and frame.f_code not in self.rebuilder.codes:
            frame = frame.f_back
        return frame and Place(frame.f_code, frame.f_lineno)

    def living_lanes(self):
        """A bit for each lane of the current warp that had not returned when the block went on."""
        start = self.thread - self.lane
        lanes = range(start, min(start + FULL_WARP, self.threads_per_block))
        return sum(1 << n - start for n in lanes if n not in self.returned)

    def block(self):
        return self.block_index.x, self.block_index.y, self.block_index.z


def _miscalled(twin, parameters, array, index_and_value):
    """What is wrong with a call of `load4` or `store4`, and how it is called."""
    call = f"{twin.__name__.strip('_').removesuffix('_in_python')}({', '.join(parameters)})"
    if not isinstance(array, GuardedArray):
        return f"{call}: array is one element, {array}; needs an array, and its index apart"
    count = len(index_and_value) - (len(parameters) - 2)
    index = index_and_value[:1] if count == 1 else index_and_value[: max(count, 0)]
    shown = ", ".join(map(str, index)) or "missing"
    axes = f"{array.ndim} integer{'s' if array.ndim > 1 else ''}, one per axis"
    return f"{call}: index of {array.memory.name} is {shown}; needs one tuple of {axes}"


def _sizes(name, sizes):
    """(x, y, z) from an integer or a tuple of up to three."""
    dimensions = (sizes,) if isinstance(sizes, (int, np.integer)) else tuple(sizes)
    whole = all(isinstance(n, (int, np.integer)) and n > 0 for n in dimensions)
    if not 1 <= len(dimensions) <= 3 or not whole:
        raise ValueError(f"{name} is {sizes!r}; it must be 1 to 3 positive integers")
    return tuple(int(n) for n in dimensions) + (1,) * (3 - len(dimensions))
