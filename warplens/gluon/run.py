"""Runs an unmodified Gluon kernel for Hopper on the CPU, one program after another.

    OnCPU(kernel)[grid](*args, num_warps=4)             tensors are changed in place
    t = trace(kernel, grid, *args, num_warps=4)      the same on copies: a `GluonTrace`

What a GPU does some time later is done here when the kernel waits for it, and not before. A
`GluonFault` names a result that was not waited for, a tile that threads use while it is on its way
or still read, a tile that threads wrote without a fence after, a wait that never ends, work that
is left at the end, an address outside of its tensor, and two programs that write the same element;
each with its line, the line of its cause, and what to do. Layouts of tiles in registers are known
where an operation keeps them, and two that differ must not meet. Barriers between threads are not
looked at, since Triton adds them. Functions take what Triton's own take; the rest is refused.
"""

import contextlib
import dataclasses
import inspect
import itertools
import re
import types

import torch
from triton import language as tl
from triton.experimental.gluon import language as gluon_language
from triton.experimental.gluon.language.nvidia import hopper

from ..compiled.functions import Rebinder, plain
from ..faults import STILL, EndlessLoop, Unsupported, in_words, place_of
from ..time_limit import SECONDS, StillRunning, time_limit
from .clusters import ClusterBarrier, parts, refuse_multicast
from .faults import GluonFault, LeftInFlight, MissingFence, refuse
from .flights import Log, name_in
from .memory import FENCE, Barrier, FlyingProduct, Several, SharedTile, product_in_registers
from .registers import RegisterArithmetic, Value, as_argument, met, raw
from .roles import Roles
from .touched import Touched
from .trace import GluonTrace

INTERNAL = re.compile(r"\b(?:Machine|Arithmetic|Tile|Value|Several|Barrier)\.(\w+)")
NOT_SIMULATED = "is not simulated; docs/own_kernels.md has what is not, and what to do"


class Names(types.SimpleNamespace):
    """A module of Gluon's."""

    def __init__(self, module, **names):
        self.module = module
        super().__init__(**names)

    def __getattr__(self, name):
        raise Unsupported(f"{self.module}.{name} {NOT_SIMULATED}")


class Machine(RegisterArithmetic):
    """What the names of Gluon stand for in a kernel, and what is on its way in a program."""

    # Under any name. Of a tile copy and a thread's, which have one name, the module decides.
    MODULES = {id(gluon_language): "gl", id(tl): "tl", id(hopper): "hopper", id(hopper.tma): "tma"}
    MODULES |= {id(hopper.mbarrier): "mbarrier", id(hopper.async_copy): "async_copy"}
    MODULES |= {id(x): "cluster" for x in [getattr(hopper, "cluster", None)] if x}  # from 3.7 on
    NAMES = "gl tl tma mbarrier async_copy barrier fence_async_shared warpgroup_mma"
    NAMES = (*NAMES.split(), "warpgroup_mma_wait", "mma_v2", "gdc_launch_dependents", "gdc_wait")

    def __init__(self, keeps=True, traced=False):
        self.keeps, self.flight_log = keeps, Log(traced)
        self.gl = self.tl = self.tma = self.hopper = self
        self.nvidia = types.SimpleNamespace(hopper=self)
        self.mbarrier = Names(
            "mbarrier",
            MBarrierLayout=lambda cga_layout=None: None,
            init=self.init_barrier,
            expect=self.expect,
            arrive=self.arrive,
            wait=self.wait_barrier,
            invalidate=lambda mbarrier: None,
            fence_init_release_cluster=lambda: None,
        )
        self.cluster = ClusterBarrier(self)
        self.async_copy = Names(
            "async_copy",
            async_copy_global_to_shared=self.copy_by_threads,
            async_load=self.copy_by_threads,
            commit_group=self.commit_group,
            wait_group=self.wait_group,
            mbarrier_arrive=self.arrive_with_copies,
        )
        self.thread_barrier = self.barrier
        self.rebuilt = Rebinder(self._replacement, self._code_of)
        self.owners, self.roles = {}, None
        self.touched = Touched() if traced else None

    def run(self, kernel, grid, warps, args, reverse=False):
        """Runs all programs of a launch.

        Args:
            grid: programs along each axis; warps: of a program.
            args: {parameter: argument}.
            reverse: programs from the last to the first.

        Raises:
            GluonFault: with the line of the kernel where it was noticed.
        """
        self.grid, self.reverse = grid, reverse
        constants = inspect.get_annotations(plain(kernel), eval_str=True)
        args = {n: x if n in constants else as_argument(x) for n, x in args.items()}
        programs = list(enumerate(itertools.product(*map(range, grid))))
        arrays = []  # of barriers, of each program in the order in which it makes them
        with one_thread():
            for self.program, self.at in reversed(programs) if reverse else programs:
                self.products, self.stores, self.tiles, self.barriers = [], [], [], []
                self.barrier_arrays = []
                self.copies, self.groups, self.given_away, self.warps = [], [], [], warps
                self.flight_log.program, self.cluster = self.program, ClusterBarrier(self)
                with self.placed():
                    self.rebuilt(plain(kernel))(**args)
                self.refuse_left()
                arrays.append(self.barrier_arrays)
        self.refuse_idle(arrays)

    def refuse_left(self):
        """A program has ended: nothing of it may be on its way, and all factors were kept."""
        for _, fault in self.given_away:
            raise fault
        self.cluster.refuse_left()
        unfinished = [x.flight for x in self.products]
        for flight, do in (
            *((x, "warpgroup_mma_wait(0, …) before the end") for x in unfinished),
            *((x, "tma.store_wait(0) before the end") for x, *_ in self.stores),
            *((x, "wait for it, or do not start it") for b in self.barriers for x, *_ in b.loads),
        ):
            why = "what nobody waits for may not be done, or be done to the next program's memory"
            message = f"a program ends while {flight} is on its way"
            raise LeftInFlight(message, flight.place, why, do)
        if self.copies or self.groups:
            raise LeftInFlight("a program ends before a tile is there: async_copy.wait_group(0)")
        for barrier in self.barriers:
            if barrier.bytes:
                message = f"{barrier.name}: a program ends, and a tile that it announced never came"
                raise LeftInFlight(message, barrier.announced, None, "expect(…, pred=there is one)")

    def refuse_idle(self, arrays):
        """All programs have ended: where barriers were used, each array of them was, by one."""
        of_all = [sum(same, []) for same in itertools.zip_longest(*arrays, fillvalue=[])]
        used = [any(x.used for x in barriers) for barriers in of_all]
        for is_used, barriers in zip(used, of_all, strict=True):
            if any(used) and not is_used and barriers[0].initialised:
                raise LeftInFlight(
                    f"{barriers[0].name}: a barrier that nothing arrives at, and nobody waits for",
                    barriers[0].initialised,
                    "its memory is given to a tile, and to the hardware it stays a barrier",
                    "mbarrier.init for those alone that this version of the kernel uses",
                )

    @contextlib.contextmanager
    def placed(self):
        """Tells a fault on which line of the kernel, or of a function that it calls, it is."""
        try:
            yield
        except GluonFault as fault:
            raise fault.placed(self.place_of(fault)) from None
        except Unsupported as fault:
            raise Unsupported(fault.what, self.place_of(fault)) from None
        except Exception as error:
            raise GluonFault(INTERNAL.sub(r"\1", in_words(error)), self.place_of(error)) from error

    def place_of(self, error):
        """The innermost line of the kernel, or of what it calls, that an error went through."""
        return place_of(error, self.flight_log.codes.__contains__)

    def _code_of(self, function):
        self.flight_log.codes.add(function.__code__)
        return function.__code__

    def _replacement(self, name, value):
        """This machine's own for a name of Gluon's, and for functions that a kernel calls."""
        if name in self.NAMES or id(value) in self.MODULES:
            return getattr(self, self.MODULES.get(id(value), name))
        if hasattr(value, "fn"):
            return self.rebuilt(plain(value))
        return value.value if isinstance(value, tl.constexpr) else value

    def __getattr__(self, name):
        raise Unsupported(f"gl.{name} {NOT_SIMULATED}")

    def program_id(self, axis):
        return as_argument(self.at[axis])

    def num_programs(self, axis):
        return as_argument(self.grid[axis])

    def num_warps(self):
        return self.warps

    def gdc_launch_dependents(self):
        pass

    def gdc_wait(self):
        """The kernel before is over already."""

    # Global memory.

    def load(self, pointer, mask=None, other=None, boundary_check=(), padding_option="",
             cache_modifier="", eviction_policy="", volatile=False):  # fmt: skip
        mask = True if mask is None else mask
        other = float("nan") if other is None else other
        layout = met(pointer.at, mask, other)
        memory = pointer.memory.view(-1)
        at, mask = pointer.elements(mask)
        self.note(memory, "load", at[mask])
        values = memory[torch.where(mask, at, 0)]
        values = values if mask.all() else torch.where(mask, values, raw(other)).to(memory.dtype)
        return Value(values, layout)

    def store(self, pointer, value, mask=None, boundary_check=(), cache_modifier="",
              eviction_policy=""):  # fmt: skip
        mask = True if mask is None else mask
        met(pointer.at, mask, value)
        at, mask, value = pointer.elements(mask, [value])
        self.write(pointer.memory, at[mask], value[mask])

    def write(self, memory, at, values):
        owner = torch.full((memory.numel(),), self.program)
        owner = self.owners.setdefault(memory.data_ptr(), torch.full_like(owner, -1))
        by_others = (owner[at] != -1) & (owner[at] != self.program)
        refuse(by_others.any(), "two programs write the same element", "programs")
        owner[at] = self.program
        self.note(memory, "store", at)
        memory.view(-1)[at] = values.to(memory.dtype)

    def note(self, memory, op, at):
        if self.touched:
            self.touched.note(memory, op, at)

    # Shared memory and what reads and writes it by itself.

    def allocate_shared_memory(self, element_ty, shape, layout, value=None):
        dtype = element_ty
        name = name_in(self.flight_log.here(), "tile")
        if dtype == torch.int64:
            names = [f"{name}[{i}]" for i in range(shape[0])] if len(shape) == 2 else [name]
            allocated = [Barrier(self.flight_log, name) for name in names]
            self.barriers += allocated
            self.barrier_arrays.append(allocated)
            return Several(allocated) if len(shape) == 2 else allocated[0]
        unknown = float("nan") if dtype.is_floating_point else -1
        parts = torch.full(shape, unknown, dtype=dtype).view(-1, *shape[-2:])
        names = [f"{name}[{i}]" for i in range(len(parts))] if len(shape) == 3 else [name]
        allocated = [SharedTile(self.flight_log, *x) for x in zip(names, parts, strict=True)]
        self.tiles += allocated
        if value is not None:
            allocated[0].store(value)
        return Several(allocated) if len(shape) == 3 else allocated[0]

    def barrier(self, *, cluster=False):
        self.flight_log.step("barrier", "all threads")

    def fence_async_shared(self, cluster=False):
        self.flight_log.step("fence", "shared memory")
        for x in self.tiles:
            if x.state.writer is self.flight_log.role:  # each role for itself
                x.state.written = None
        for x in self.barriers:
            x.dirty = None

    def init_barrier(self, mbarrier, count):
        mbarrier.init(count)

    def expect(self, mbarrier, bytes_per_cta=None, pred=True):
        if pred:
            mbarrier.arrive(bytes_per_cta)
            self.flight_log.step("announce", mbarrier.name)

    def arrive(self, mbarrier, *, count=1, pred=True):
        for _ in range(count if pred else 0):
            mbarrier.arrive(0, together=self.roles is not None)
        if self.roles:
            self.roles.arrived()

    def wait_barrier(self, mbarrier, phase, pred=True, deps=()):
        if pred:
            if self.roles:
                self.roles.wait(mbarrier, int(phase))
            mbarrier.wait(phase)

    def warp_specialize(self, functions_and_args, worker_num_warps, worker_num_regs=None):
        self.cluster.refuse_outside()
        warps = [self.warps, *worker_num_warps]
        Roles(self, functions_and_args, warps, self.reverse).run()

    def copy_by_threads(self, smem, pointer, mask=None, cache_modifier="", eviction_policy="",
                        volatile=False):  # fmt: skip
        tile = smem
        tile.refuse_overwriting()
        block = self.load(pointer, mask, 0.0).x
        flight = self.flight_log.start("copy in", tile.name, bytes=block.nbytes)
        flight.way = "cp.async"
        tile.starts(flight)
        tile.data.fill_(float("nan"))
        self.copies.append((flight, tile, block))

    def commit_group(self):
        self.groups.append(self.copies)
        self.copies = []

    def wait_group(self, num_outstanding=0):
        finished = []
        while len(self.groups) > num_outstanding:
            for flight, tile, block in self.groups.pop(0):
                finished.append(flight)
                tile.arrives(flight)
                tile.wrote()
                tile.data.copy_(block)
        self.flight_log.wait("copies", finished)

    def arrive_with_copies(self, mbarrier, increment_count=True):
        """Each thread arrives when its copies so far are done: all that no group was made of."""
        refuse(increment_count, "increment_count=False is all that is known here")
        for _ in range(32 * self.warps):
            mbarrier.arrive(0)
        for flight, tile, block in self.copies:
            mbarrier.bytes += block.nbytes
            mbarrier.loads.append((flight, tile, block))
        self.copies = []

    def async_copy_global_to_shared(self, tensor_desc, coord, barrier, result, pred=True,
                                    multicast=False):  # fmt: skip
        if multicast:
            refuse_multicast(tensor_desc)
        if not pred:
            return
        described, at, tile = tensor_desc, coord, result
        swapped = isinstance(barrier, SharedTile) or isinstance(tile, Barrier)
        refuse(swapped, "a copy in takes descriptor, [row, column], barrier, tile, in this order")
        if barrier.dirty:
            message = f"{barrier.name}: no fence came after the barrier's init"
            why = f"line {barrier.dirty.line} wrote it, and the copy signals it on another way"
            raise MissingFence(message, None, why, FENCE)
        fit(tile, described)
        tile.refuse_overwriting()
        tile.refuse_written("a copy")
        inside, place = self.place(described, at)
        block = torch.zeros(described.block_shape, dtype=described.base.dtype)
        block[inside] = flat(described.base)[place[inside]]
        self.note(described.base, "load", place[inside])
        of_each = block.nbytes // parts(described.layout)  # of the programs of a cluster
        flight = self.flight_log.start("copy in", tile.name, bytes=of_each)
        tile.starts(flight)
        tile.data.fill_(float("nan"))
        flight.note = f"phase {barrier.phase % 2}"
        barrier.loads.append((flight, tile, block))

    def async_copy_shared_to_global(self, tensor_desc, coord, src):
        described, at, tile = tensor_desc, coord, src
        fit(tile, described)
        tile.refuse_using("a copy")
        flight = self.flight_log.start("copy out", tile.name, bytes=tile.data.nbytes)
        tile.is_read(flight)
        self.stores.append((flight, described, at, tile))

    # Of Triton 3.8 on.
    async_load, async_store = async_copy_global_to_shared, async_copy_shared_to_global

    def store_wait(self, pendings):
        finished = []
        while len(self.stores) > pendings:
            flight, described, at, tile = self.stores.pop(0)
            inside, place = self.place(described, at)
            self.write(described.base, place[inside], tile.data[inside])
            tile.was_read(flight)
            finished.append(flight)
        self.flight_log.wait("stores", finished)

    def place(self, described, at):
        """Which elements of a tile are inside of the tensor, and their indices."""
        inside, place = torch.tensor(True), torch.tensor(0)
        for x, n, size, stride in zip(
            at, described.block_shape, described.shape, described.strides, strict=True
        ):
            x = int(x) + torch.arange(n)
            inside = inside[..., None] & (x >= 0) & (x < size)
            place = place[..., None] + x * stride
        return inside, place

    def warpgroup_mma(self, a, b, acc, *, use_acc=True, precision=None, max_num_imprecise_acc=None,
                      is_async=False):  # fmt: skip
        name = name_in(self.flight_log.here(), "product")
        sums = torch.float32 if isinstance(acc, FlyingProduct) else acc.dtype
        refuse(sums != torch.float32, f"{name}: a product whose sums are {sums}: float32 has room")
        product = FlyingProduct(self.flight_log, name, a, b, acc if use_acc else None)
        product.layout = acc.layout
        self.products.append(product)
        return product if is_async else self.warpgroup_mma_wait(0, (product, a))[0]

    def mma_v2(self, a, b, acc, input_precision=None):
        return product_in_registers(a, b, acc)

    def warpgroup_mma_wait(self, num_outstanding=0, deps=None):
        refuse(not deps, "warpgroup_mma_wait without deps: nothing comes out of it")
        finished = []
        while len(self.products) > num_outstanding:
            product = self.products.pop(0)
            product.finish()
            finished.append(product.flight)
            if self.keeps and (fault := product.not_kept(deps)):
                self.given_away.append((product.left, fault))
        # A later wait that names a factor has kept it as well.
        self.given_away = [x for x in self.given_away if all(x[0] is not y for y in deps)]
        self.flight_log.wait("products", finished)
        deps = [x.get(num_outstanding) if isinstance(x, FlyingProduct) else x for x in deps]
        return deps[0] if len(deps) == 1 else tuple(deps)


def flat(x):
    """All elements from a tensor's first one on, in memory's order."""
    if x.is_contiguous():
        return x.view(-1)
    elements = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return x.as_strided((elements,), (1,))


def fit(tile, described):
    """Refuses a tile of another shape or type than the blocks of a descriptor."""
    refuse(
        list(tile.shape) != list(described.block_shape) or tile.dtype != described.base.dtype,
        f"{tile.name} is {list(tile.shape)} of {tile.dtype}, and the descriptor's tiles are "
        f"{list(described.block_shape)} of {described.base.dtype}",
    )


@contextlib.contextmanager
def one_thread():
    """Tiles are small: torch's other threads would cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class OnCPU:
    """Stands for a Gluon kernel: `OnCPU(kernel)[grid](*args, num_warps=4)`.

    Args:
        kernel: what `gluon.jit` made.
        keeps: whether a wait has to name the left factors in registers of what it waits for. ptxas
            keeps those that nothing overwrites in PTX, too.

    Attributes:
        arguments: {parameter: value} of the last launch.
    """

    def __init__(self, kernel, keeps=True):
        self.kernel, self.keeps = kernel, keeps

    def __getitem__(self, grid):
        return lambda *args, num_warps: self.run(grid, num_warps, args)

    def run(self, grid, warps, args):
        """A launch; see `Machine.run`. The arguments come in the order of the parameters."""
        self.arguments = dict(
            zip(inspect.signature(plain(self.kernel)).parameters, args, strict=True)
        )
        Machine(self.keeps).run(self.kernel, grid, warps, self.arguments)


def watch(kernel, grid, arguments, num_warps=4, keeps=True, reverse=False):
    """Runs a kernel on the CPU, on the tensors of `arguments`, and counts what is in flight.

    Args:
        grid: up to three numbers. arguments: {parameter: value}. keeps: as for `OnCPU`.
        reverse: programs from the last to the first.

    Returns:
        A `GluonTrace`. A fault ends the run and is in its `faults`, with the steps up to there.
    """
    machine, faults = Machine(keeps, traced=True), []
    grid = tuple(grid) + (1,) * (3 - len(grid))
    try:
        with time_limit():
            machine.run(kernel, grid, num_warps, arguments, reverse)
    except GluonFault as fault:
        faults.append(fault)
    except StillRunning as error:
        faults.append(EndlessLoop(f"{STILL} after {SECONDS} s", machine.place_of(error)))
    return GluonTrace(plain(kernel).__name__, grid, machine, faults, arguments)


def trace(kernel, grid, *args, num_warps=4, **named):
    """`watch` on copies of the tensors, with arguments by position or by name.

    Other options of a launch are taken and ignored.
    """
    grid = (grid,) if isinstance(grid, int) else grid
    parameters = inspect.signature(plain(kernel)).parameters
    arguments = dict(zip(parameters, args, strict=False)) | {
        x: y for x, y in named.items() if x in parameters
    }
    inspect.signature(plain(kernel)).bind(**arguments)
    return watch(kernel, grid, {name: copied(x) for name, x in arguments.items()}, num_warps)


def copied(x):
    """A copy of a tensor, or a descriptor of one."""
    if isinstance(x, torch.Tensor):
        return x.clone()
    return dataclasses.replace(x, base=x.base.clone()) if hasattr(x, "base") else x
