"""Runs Gluon kernels for Hopper on the CPU, one program after another, as they are written.

What a card does some time later is done here when the kernel waits for it, and not before. Errors:
a result that was not waited for, a tile that threads use while it is on its way or still read, a
tile that threads wrote without a fence after, work that is left at the end, an address outside of
its tensor, and two programs that write the same element. What needs a barrier only is not seen,
nor are layouts: Triton adds the one and checks the others.
"""

import inspect
import types

import torch
from triton import language as tl

from rwkv_lessons.lab.cubin import named, plain


class Mistake(Exception):
    """What a card would punish, some day."""


def refuse(wrong, what):
    if wrong:
        raise Mistake(what)


def raw(x):
    refuse(isinstance(x, Product), "a product is used before the wait for it")
    return x.x if isinstance(x, Value) else x


def together(*values):
    """Tensors of one dtype; a number takes that of the others."""
    values = [raw(x) for x in values]
    dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor)] or [torch.int64]
    for dtype in dtypes[1:]:
        dtypes[0] = torch.promote_types(dtypes[0], dtype)
    fits = all(dtypes[0].is_floating_point or not isinstance(x, float) for x in values)
    dtype = dtypes[0] if fits else torch.float32
    return [torch.as_tensor(x).to(dtype) for x in values]


def operator(f, swapped=False):
    def apply(self, other):
        if isinstance(other, Pointer):
            return NotImplemented
        a, b = together(self, other)
        return Value(f(b, a) if swapped else f(a, b))

    return apply


class Value:
    """A tile or a number in registers."""

    layout, type = None, property(lambda self: self)
    shape, dtype = property(lambda self: self.x.shape), property(lambda self: self.x.dtype)

    def __init__(self, x):
        self.x = x

    def to(self, dtype):
        return Value(self.x.to(dtype))

    def __getitem__(self, at):
        return Value(self.x[at])

    def __index__(self):
        return int(self.x)

    def __bool__(self):
        return bool(self.x)

    def __neg__(self):
        return Value(-self.x)

    __hash__ = None
    __add__ = __radd__ = operator(torch.add)
    __mul__ = __rmul__ = operator(torch.mul)
    __and__ = __rand__ = operator(torch.bitwise_and)
    __or__ = __ror__ = operator(torch.bitwise_or)
    __sub__, __rsub__ = operator(torch.sub), operator(torch.sub, True)
    __truediv__ = operator(torch.div)
    # Integers are divided as in C: towards 0.
    __floordiv__ = operator(lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    __mod__ = operator(torch.fmod)
    __lt__, __le__, __gt__ = operator(torch.lt), operator(torch.le), operator(torch.gt)
    __ge__, __eq__, __ne__ = operator(torch.ge), operator(torch.eq), operator(torch.ne)


class Pointer:
    """Addresses of elements of a contiguous tensor."""

    def __init__(self, memory, at=0):
        self.memory, self.at = memory, at
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more):
        return Pointer(self.memory, self.at + more)

    def elements(self, mask, like=()):
        """The indices, the mask, and what is `like` them, of one shape."""
        at, mask, *like = (torch.as_tensor(raw(x)) for x in (self.at, mask, *like))
        at, mask, *like = torch.broadcast_tensors(at, mask.bool(), *like)
        inside = (at >= 0) & (at < self.memory.numel())
        refuse((mask & ~inside).any(), "an address outside of its tensor")
        return at.long(), mask, *like


class Tile:
    """Shared memory. `state`, of all views of a tile: what is done to it at the moment."""

    def __init__(self, data, state=None):
        self.data, self.shape, self.dtype = data, data.shape, data.dtype
        self.state = state or types.SimpleNamespace(dirty=False, arriving=False, readers=0)

    def slice(self, start, length, dim=0):
        return Tile(self.data.narrow(dim, start, length), self.state)

    def permute(self, order):
        return Tile(self.data.permute(order), self.state)

    def load(self, layout=None):
        refuse(self.state.arriving, "a tile is read before the wait for it")
        return Value(self.data.clone())

    def store(self, value):
        refuse(self.dtype != value.dtype, f"{value.dtype} is stored in a tile of {self.dtype}")
        self.taken()
        self.state.dirty = True
        self.data.copy_(value.x)

    def taken(self):
        refuse(self.state.arriving, "a tile is overwritten while it is on its way")
        refuse(self.state.readers, "a tile is overwritten while it is read")

    def asynchronous(self):
        refuse(self.state.dirty, "a tile was written by threads, and no fence came after")
        refuse(self.state.arriving, "a tile is used before the wait for it")

    def read_later(self):
        self.asynchronous()
        self.state.readers += 1


class Barrier:
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
        refuse(in_registers and all(self.left is not x for x in kept), "a factor is not kept")
        left = self.left.x if in_registers else self.left.data
        self.result = left.float() @ self.right.data.float()
        if self.so_far is not None:
            done = isinstance(self.so_far, Product)
            self.result = self.result + (self.so_far.result if done else self.so_far.x)
        for tile in self.tiles():
            tile.state.readers -= 1


def ptx_bfloat16(x):
    return x.to(torch.int32).view(torch.float32).to(torch.bfloat16).view(torch.int16).long() & 65535


def ptx_max(x, y):
    halves = [
        torch.maximum(*((z >> n).to(torch.int16).view(torch.bfloat16) for z in (x, y)))
        for n in (0, 16)
    ]
    low, high = (z.view(torch.int16).long() & 65535 for z in halves)
    return high << 16 | low


def ptx_permuted(x, y, order):
    both = y << 32 | x  # the selectors in use have no sign bit
    return sum((both >> (order >> 4 * n & 7) * 8 & 255) << 8 * n for n in range(4))


PTX = {
    "mov.b32": lambda x: x,
    "and.b32": lambda x, y: x & y,
    "or.b32": lambda x, y: x | y,
    "shl.b32": lambda x, n: x << n & 0xFFFFFFFF,
    "cvt.rn.bf16x2.f32": lambda high, low: ptx_bfloat16(high) << 16 | ptx_bfloat16(low),
    "max.NaN.bf16x2": ptx_max,
    "prmt.b32": ptx_permuted,
}


def inline_asm_elementwise(text, constraints, args, dtype, is_pure, pack):
    """The PTX, one instruction after another, on the registers of all pairs of elements at once."""
    args = torch.broadcast_tensors(*(raw(x) for x in args))
    first = constraints.count("=")
    given = []
    for x in args:
        bits = x.contiguous().view(torch.int32 if x.itemsize == 4 else torch.int16).long()
        even, odd = bits.view(-1, pack).T
        wide = x.itemsize == 4
        given += (
            [even & 0xFFFFFFFF, odd & 0xFFFFFFFF] if wide else [(odd & 65535) << 16 | even & 65535]
        )
    registers = {f"${first + n}": x for n, x in enumerate(given)}
    for line in text.strip(" {}\n").split(";"):
        name, *words = line.replace(",", " ").split() or [".reg"]
        if name != ".reg":
            values = [registers[x] if x in registers else int(x, 0) for x in words[1:]]
            registers[words[0]] = PTX[name](*values)
    results = torch.stack([registers[f"${n}"] for n in range(first)], -1).to(torch.int32)
    return Value(results.view(-1).view(dtype).view(args[0].shape))


class Machine:
    """What the names of Gluon stand for in a kernel, and what is on its way in a program."""

    int8, int16, int32, int64 = torch.int8, torch.int16, torch.int32, torch.int64
    bfloat16, float16, float32 = torch.bfloat16, torch.float16, torch.float32
    PropagateNan = tl.PropagateNan
    SliceLayout = DotOperandLayout = NVMMADistributedLayout = MBarrierLayout = lambda *_: None
    NAMES = "gl tl tma mbarrier barrier fence_async_shared warpgroup_mma warpgroup_mma_wait".split()
    static_range, inline_asm_elementwise = range, staticmethod(inline_asm_elementwise)

    def __init__(self):
        self.gl = self.tl = self.tma = self
        self.mbarrier = types.SimpleNamespace(
            MBarrierLayout=lambda: None, init=Barrier.init, expect=Barrier.expect, wait=Barrier.wait
        )
        self.functions, self.owners = {}, {}

    def run(self, kernel, programs, args):
        args = [Pointer(x) if isinstance(x, torch.Tensor) else x for x in args]
        for self.program in range(programs):
            self.products, self.stores, self.tiles, self.barriers = [], [], [], []
            self.copy(plain(kernel))(*args)
            refuse(self.products, "a product is not waited for")
            refuse(self.stores, "a program ends before its tiles are stored")
            refuse(any(x.loads for x in self.barriers), "a program ends before a tile is there")

    def copy(self, function):
        """The function with other globals, as are those that it calls."""
        if function not in self.functions:
            known = dict(function.__globals__)
            made = types.FunctionType(function.__code__, known, None, function.__defaults__)
            self.functions[function] = made
            for name, value in named(function).items():
                if name in self.NAMES:
                    known[name] = getattr(self, name)
                elif hasattr(value, "fn"):
                    known[name] = self.copy(plain(value))
                elif isinstance(value, tl.constexpr):
                    known[name] = value.value
        return self.functions[function]

    def program_id(self, axis):
        return Value(torch.tensor(self.program, dtype=torch.int32))

    # Registers.

    def arange(self, start, end, layout=None):
        return Value(torch.arange(start, end, dtype=torch.int32))

    def full(self, shape, value, dtype, layout=None):
        return Value(torch.full(shape, value, dtype=dtype))

    def where(self, which, x, y):
        return Value(torch.where(raw(which), *together(x, y)))

    def maximum(self, x, y, propagate_nan=None):
        f = torch.maximum if propagate_nan == tl.PropagateNan.ALL else torch.fmax
        return Value(f(*together(x, y)))

    def minimum(self, x, y):
        return Value(torch.fmin(*together(x, y)))

    def cdiv(self, x, y):
        return (x + y - 1) // y

    def exp2(self, x):
        return Value(raw(x).exp2())

    def sum(self, x, axis):
        return Value(raw(x).sum(axis, dtype=raw(x).dtype))

    def broadcast(self, x, y):
        return tuple(Value(z) for z in torch.broadcast_tensors(raw(x), raw(y)))

    def convert_layout(self, x, layout):
        return Value(raw(x))

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
            return Several(made)
        unknown = float("nan") if dtype.is_floating_point else -1
        made = [
            Tile(torch.full(shape[-2:], unknown, dtype=dtype))
            for _ in range(shape[-3:-2][0] if len(shape) == 3 else 1)
        ]
        self.tiles += made
        return Several(made) if len(shape) == 3 else made[0]

    def barrier(self):
        pass

    def fence_async_shared(self):
        for x in (*self.tiles, *self.barriers):
            getattr(x, "state", x).dirty = False

    def async_copy_global_to_shared(self, described, at, barrier, tile, pred=True):
        if not pred:
            return
        refuse(barrier.dirty, "no fence came after the barrier's init")
        tile.asynchronous()
        tile.taken()
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
            self.products.pop(0).finish(deps)
        done = [x.get() if isinstance(x, Product) else x for x in deps]
        return done[0] if len(done) == 1 else tuple(done)


class OnCPU:
    """Takes the place of a Gluon kernel, `kernel[grid](*args)`. `given`: to the last launch."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, num_warps: self.run(grid[0], args)

    def run(self, programs, args):
        self.given = dict(zip(inspect.signature(plain(self.kernel)).parameters, args, strict=True))
        Machine().run(self.kernel, programs, args)
