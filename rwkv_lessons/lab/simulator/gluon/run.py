"""Runs an unmodified Gluon kernel for Hopper on the CPU, one program after another.

    OnCPU(kernel)[grid](*args, num_warps=4)    tensors are changed in place

What a GPU does some time later is done here when the kernel waits for it, and not before. A
`GluonFault` names a result that was not waited for, a tile that threads use while it is on its way
or still read, a tile that threads wrote without a fence after, work that is left at the end, an
address outside of its tensor, and two programs that write the same element. Not seen are what
needs a barrier only, and layouts: Triton adds the one and checks the others.
"""

import contextlib
import inspect
import itertools
import traceback
import types

import torch
from triton import language as tl

from ...machine_code.cubin import named, plain
from ..faults import Place
from .registers import Arithmetic, GluonFault, Value, as_argument, refuse


class Tile:
    """A tile of shared memory, or a view of one; all its views share what is done to it, `state`.

    state: `dirty`: threads wrote it, and no fence came after; `arriving`: a copy is on its way to
    it; `readers`: products and copies on their way that read it.
    """

    def __init__(self, data, state=None):
        self.data, self.shape, self.dtype = data, data.shape, data.dtype
        self.state = state or types.SimpleNamespace(dirty=False, arriving=False, readers=0)

    def slice(self, start, length, dim=0):
        return Tile(self.data.narrow(dim, start, length), self.state)

    def permute(self, order):
        return Tile(self.data.permute(order), self.state)

    def _reinterpret(self, dtype, shape, layout):
        """The same bytes; in another order, but nothing is read as what it was not written."""
        return Tile(self.data.view(-1).view(dtype).view(shape), self.state)

    def load(self, layout=None):
        refuse(self.state.arriving, "a tile is read before the wait for it")
        return Value(self.data.clone())

    def store(self, value):
        refuse(self.dtype != value.dtype, f"{value.dtype} is stored in a tile of {self.dtype}")
        self.refuse_overwriting()
        self.state.dirty = True
        self.data.copy_(value.x)

    def refuse_overwriting(self):
        refuse(self.state.arriving, "a tile is overwritten while it is on its way")
        refuse(self.state.readers, "a tile is overwritten while it is read")

    def refuse_using(self):
        """What reads or writes shared memory by itself sees neither threads' writes nor copies."""
        refuse(self.state.dirty, "a tile was written by threads, and no fence came after")
        refuse(self.state.arriving, "a tile is used before the wait for it")

    def read_later(self):
        self.refuse_using()
        self.state.readers += 1


class Barrier:
    """Counts what arrives of the tiles on their way."""

    def __init__(self):
        self.dirty, self.phase, self.bytes, self.loads = False, 0, 0, []

    def init(self, count):
        self.dirty, self.count, self.left = True, count, count

    def expect(self, bytes, pred=True):
        if pred:
            refuse(self.left == 0, "a tile is announced twice")
            self.left, self.bytes = self.left - 1, self.bytes + bytes

    def wait(self, phase, deps=()):
        if self.phase % 2 != int(phase):
            return  # that phase is over, or has not begun
        for tile, block in self.loads:
            tile.data.copy_(block)
            tile.state.arriving = False
            self.bytes -= block.nbytes
        refuse(self.left or self.bytes, "the wait for a tile never ends")
        self.phase, self.left, self.loads = self.phase + 1, self.count, []


class Several:
    """Tiles or barriers with one name."""

    def __init__(self, parts):
        self.parts = parts

    def index(self, i):
        refuse(not 0 <= int(i) < len(self.parts), "there is no such tile")
        return self.parts[int(i)]


class Product:
    """A product on its way: its operands are read at the end of it."""

    def __init__(self, left, right, so_far):
        self.left, self.right, self.so_far, self.result = left, right, so_far, None
        refuse(left.shape[1] != right.shape[0], "the sizes of factors differ")
        refuse(left.dtype != right.dtype, "the dtypes of factors differ")
        for tile in self.tiles():
            tile.read_later()

    def tiles(self):
        return [x for x in (self.left, self.right) if isinstance(x, Tile)]

    def get(self):
        refuse(self.result is None, "a product is taken before the wait for it")
        return Value(self.result)

    def finish(self, kept):
        in_registers = isinstance(self.left, Value)
        if kept is not None and in_registers:
            refuse(all(self.left is not x for x in kept), "a factor is not kept until the wait")
        left = self.left.x if in_registers else self.left.data
        self.result = left.float() @ self.right.data.float()
        if self.so_far is not None:
            done = isinstance(self.so_far, Product)
            self.result = self.result + (self.so_far.result if done else self.so_far.x)
        for tile in self.tiles():
            tile.state.readers -= 1


class Machine(Arithmetic):
    """What the names of Gluon stand for in a kernel, and what is on its way in a program."""

    NAMES = "gl tl tma mbarrier async_copy barrier fence_async_shared warpgroup_mma"
    NAMES = (*NAMES.split(), "warpgroup_mma_wait", "gdc_launch_dependents")

    def __init__(self, keeps=True):
        self.keeps = keeps
        self.gl = self.tl = self.tma = self
        self.mbarrier = types.SimpleNamespace(
            MBarrierLayout=lambda: None, init=Barrier.init, expect=Barrier.expect, wait=Barrier.wait
        )
        self.async_copy = types.SimpleNamespace(
            async_copy_global_to_shared=self.copy_by_threads,
            commit_group=self.commit_group,
            wait_group=self.wait_group,
        )
        self.functions, self.owners = {}, {}

    def run(self, kernel, grid, warps, args):
        """Runs all programs of a launch.

        Args:
            grid: programs along each axis; warps: of a program.
            args: {parameter: argument}.

        Raises:
            GluonFault: with the line of the kernel where it was noticed.
        """
        self.grid, self.warps = grid, warps
        constants = inspect.get_annotations(plain(kernel), eval_str=True)
        args = {n: x if n in constants else as_argument(x) for n, x in args.items()}
        for self.program, self.at in enumerate(itertools.product(*map(range, grid))):
            self.products, self.stores, self.tiles, self.barriers = [], [], [], []
            self.copies, self.groups = [], []
            with self.placed():
                self.rebuilt(plain(kernel))(**args)
            refuse(self.products, "a product is not waited for")
            refuse(self.stores, "a program ends before its tiles are stored")
            late = self.copies or self.groups or any(x.bytes or x.loads for x in self.barriers)
            refuse(late, "a program ends before a tile is there")

    @contextlib.contextmanager
    def placed(self):
        """Tells a fault on which line of the kernel, or of a function that it calls, it is."""
        try:
            yield
        except GluonFault as fault:
            codes = {function.__code__ for function in self.functions}
            steps = traceback.walk_tb(fault.__traceback__)
            own = [Place(frame.f_code, line) for frame, line in steps if frame.f_code in codes]
            raise GluonFault(fault.what, own[-1] if own else None) from None

    def rebuilt(self, function):
        """The function with this machine's names for Gluon's, as are those that it calls."""
        if function not in self.functions:
            known = dict(function.__globals__)
            made = types.FunctionType(function.__code__, known, None, function.__defaults__)
            self.functions[function] = made
            for name, value in named(function).items():
                if name in self.NAMES:
                    known[name] = getattr(self, name)
                elif hasattr(value, "fn"):
                    known[name] = self.rebuilt(plain(value))
                elif isinstance(value, tl.constexpr):
                    known[name] = value.value
        return self.functions[function]

    def program_id(self, axis):
        return as_argument(self.at[axis])

    def num_programs(self, axis):
        return as_argument(self.grid[axis])

    def num_warps(self):
        return self.warps

    def gdc_launch_dependents(self):
        pass

    # Global memory.

    def load(self, pointer, mask=True, other=float("nan")):
        memory = pointer.memory.view(-1)
        at, mask = pointer.elements(mask)
        found = memory[torch.where(mask, at, 0)]
        return Value(found if mask.all() else torch.where(mask, found, other).to(memory.dtype))

    def store(self, pointer, value, mask=True):
        at, mask, value = pointer.elements(mask, [value])
        self.write(pointer.memory, at[mask], value[mask])

    def write(self, memory, at, values):
        owner = torch.full((memory.numel(),), self.program)
        owner = self.owners.setdefault(memory.data_ptr(), torch.full_like(owner, -1))
        others = (owner[at] != -1) & (owner[at] != self.program)
        refuse(others.any(), "two programs write the same element")
        owner[at] = self.program
        memory.view(-1)[at] = values.to(memory.dtype)

    # Shared memory and what reads and writes it by itself.

    def allocate_shared_memory(self, dtype, shape, layout):
        if dtype == torch.int64:
            made = [Barrier() for _ in range(shape[0])]
            self.barriers += made
            return Several(made) if len(shape) == 2 else made[0]
        unknown = float("nan") if dtype.is_floating_point else -1
        made = [Tile(x) for x in torch.full(shape, unknown, dtype=dtype).view(-1, *shape[-2:])]
        self.tiles += made
        return Several(made) if len(shape) == 3 else made[0]

    def barrier(self):
        pass

    def fence_async_shared(self):
        for x in (*self.tiles, *self.barriers):
            getattr(x, "state", x).dirty = False

    def copy_by_threads(self, tile, pointers, mask):
        tile.refuse_overwriting()
        tile.state.arriving = True
        tile.data.fill_(float("nan"))
        self.copies.append((tile, self.load(pointers, mask, 0.0).x))

    def commit_group(self):
        self.groups.append(self.copies)
        self.copies = []

    def wait_group(self, outstanding):
        while len(self.groups) > outstanding:
            for tile, block in self.groups.pop(0):
                tile.state.arriving, tile.state.dirty = False, True
                tile.data.copy_(block)

    def async_copy_global_to_shared(self, described, at, barrier, tile, pred=True):
        if not pred:
            return
        refuse(barrier.dirty, "no fence came after the barrier's init")
        tile.refuse_using()
        tile.refuse_overwriting()
        tile.state.arriving = True
        tile.data.fill_(float("nan"))
        inside, place = self.place(described, at)
        block = torch.zeros(described.block_shape, dtype=described.base.dtype)
        block[inside] = described.base.view(-1)[place[inside]]
        barrier.loads.append((tile, block))

    def async_copy_shared_to_global(self, described, at, tile):
        tile.read_later()
        self.stores.append((described, at, tile))

    def store_wait(self, pendings):
        while len(self.stores) > pendings:
            described, at, tile = self.stores.pop(0)
            inside, place = self.place(described, at)
            self.write(described.base, place[inside], tile.data[inside])
            tile.state.readers -= 1

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

    def warpgroup_mma(self, left, right, so_far, use_acc=True, is_async=False):
        self.products.append(Product(left, right, so_far if use_acc else None))
        made = self.products[-1]
        return made if is_async else self.warpgroup_mma_wait(0, (made, left))

    def warpgroup_mma_wait(self, outstanding, deps):
        while len(self.products) > outstanding:
            self.products.pop(0).finish(deps if self.keeps else None)
        done = [x.get() if isinstance(x, Product) else x for x in deps]
        return done[0] if len(done) == 1 else tuple(done)


class OnCPU:
    """Stands for a Gluon kernel: `OnCPU(kernel)[grid](*args, num_warps=4)`.

    Args:
        kernel: what `gluon.jit` made.
        keeps: whether a wait has to name the left factors in registers of what it waits for. ptxas
            keeps those that nothing overwrites in PTX, too.

    Attributes:
        given: {parameter: argument} of the last launch.
    """

    def __init__(self, kernel, keeps=True):
        self.kernel, self.keeps = kernel, keeps

    def __getitem__(self, grid):
        return lambda *args, num_warps: self.run(grid, num_warps, args)

    def run(self, grid, warps, args):
        """A launch; see `Machine.run`. The arguments come in the order of the parameters."""
        self.given = dict(zip(inspect.signature(plain(self.kernel)).parameters, args, strict=True))
        Machine(self.keeps).run(self.kernel, grid, warps, self.given)
