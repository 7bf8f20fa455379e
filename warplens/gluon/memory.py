"""Shared memory and what reads and writes it by itself: tiles, barriers, products."""

import types

import torch
from triton.experimental.gluon.language import DotOperandLayout

from ..wording import many
from .faults import (
    GluonFault,
    MissingFence,
    NeverEnds,
    NothingThere,
    OverwrittenInFlight,
    ReadBeforeWait,
    refuse,
)
from .registers import Value, short

FENCE = "fence_async_shared() between the two"
WAIT_FOR = {
    "copy in": "mbarrier.wait on its barrier, with its phase, before this line",
    "copy out": "tma.store_wait(0) before this line",
    "product": "warpgroup_mma_wait before this line",
    "cp.async": "async_copy.wait_group before this line",
}


class SharedTile:
    """A tile of shared memory, or a view of one; all its views share what is done to it, `state`.

    state: `filled`: whether anything was written to it; `written`: the place where threads wrote
    it, if no fence came after, and `writer`, their role; `arriving`: the flights that fill it, and
    `readers`, those that read it, each with its rows.
    """

    def __init__(self, log, name, data, state=None, rows=None):
        self.log, self.name, self.data = log, name, data
        self.shape, self.dtype = data.shape, data.dtype
        self.rows = rows or range(len(data))
        self.state = state or types.SimpleNamespace(
            filled=False, written=None, writer=None, arriving=[], readers=[]
        )

    def view(self, data, rows=None):
        return SharedTile(self.log, self.name, data, self.state, rows or self.rows)

    def index(self, i):
        whole = self.shape[0] == len(self.rows)
        return self.view(self.data[int(i)], self.rows[int(i) : int(i) + 1] if whole else self.rows)

    def slice(self, start, length, dim=0):
        """Rows or columns; some rows of a tile may be read while others are overwritten."""
        whole = dim == 0 and self.shape[0] == len(self.rows)  # not of a tile on its side
        rows = self.rows[start : start + length] if whole else self.rows
        return self.view(self.data.narrow(dim, start, length), rows)

    def of_these_rows(self, flights):
        """The first of some flights and their rows that is on its way to, or from, these rows."""
        a = self.rows
        both = (x for x, b in flights if max(a.start, b.start) < min(a.stop, b.stop))
        return next(both, None)

    def starts(self, flight):
        for x in each(self.state):
            x.arriving.append((flight, self.rows))

    def arrives(self, flight):
        for x in each(self.state):
            x.arriving = [y for y in x.arriving if y[0] is not flight]
        self.state.filled = True

    def is_read(self, flight):
        for x in each(self.state):
            x.readers.append((flight, self.rows))

    def was_read(self, flight):
        for x in each(self.state):
            x.readers = [y for y in x.readers if y[0] is not flight]

    def permute(self, order):
        return self.view(self.data.permute(order))

    def _reinterpret(self, dtype=None, shape=None, layout=None):
        """The same bytes; in another order, but nothing is read as what it was not written."""
        shape = self.data.shape if shape is None else shape
        return self.view(self.data.view(-1).view(dtype or self.dtype).view(shape))

    reinterpret = _reinterpret  # of Triton 3.9 on

    def load(self, layout=None):
        self.refuse_on_its_way("read")
        self.log.step("read", self.name)
        return Value(self.data.clone(), layout)

    def store(self, value):
        refuse(
            self.dtype != value.dtype,
            f"{value.dtype} is stored in {self.name}, a tile of {self.dtype}",
        )
        refuse(
            self.shape != value.shape,
            f"{list(value.shape)} is stored in {self.name}, a tile of {list(self.shape)}",
        )
        self.refuse_overwriting()
        self.log.step("write", self.name)
        self.wrote()
        self.data.copy_(value.x)

    def wrote(self):
        self.state.written, self.state.filled = self.log.here(), True
        self.state.writer = self.log.role

    def refuse_on_its_way(self, verb):
        if flight := self.of_these_rows(self.state.arriving):
            why, at_once = f"{flight} is still on its way", getattr(flight, "at_once", None)
            if at_once:
                why += f"; {at_once}"
            message = f"{self.name}: a tile is {verb} before the wait for it"
            raise ReadBeforeWait(message, None, why, WAIT_FOR[getattr(flight, "way", flight.kind)])
        if not self.state.filled:
            why = "no copy was started to it, and no thread wrote it"
            raise NothingThere(f"{self.name}: a tile is {verb} that has nothing in it", None, why)

    def refuse_overwriting(self):
        if flight := self.of_these_rows(self.state.arriving):
            message = f"{self.name}: a tile is overwritten while it is on its way"
            do = WAIT_FOR[getattr(flight, "way", flight.kind)]
            raise OverwrittenInFlight(message, None, f"{flight} has not been waited for", do)
        if flight := self.of_these_rows(self.state.readers):
            message = f"{self.name}: a tile is overwritten while it is read"
            why = f"{flight} reads it, and has not been waited for"
            raise OverwrittenInFlight(message, None, why, WAIT_FOR[flight.kind])

    def refuse_using(self, by):
        """What reads shared memory by itself sees neither threads' writes nor copies."""
        self.refuse_written(by)
        self.refuse_on_its_way("used")

    def refuse_written(self, by):
        if self.state.written:
            message = f"{self.name}: a tile was written by threads, and no fence came after"
            why = f"threads wrote it in line {self.state.written.line}, and {by} reads "
            raise MissingFence(
                message,
                None,
                why + "shared memory through another path: it may find old values",
                FENCE,
            )


class JoinedState:
    """The `state` of a tile that several others make."""

    def __init__(self, states):
        object.__setattr__(self, "states", states)

    filled = property(lambda self: all(x.filled for x in self.states))
    written = property(lambda self: next((x.written for x in self.states if x.written), None))
    arriving = property(lambda self: [y for x in self.states for y in x.arriving])
    readers = property(lambda self: [y for x in self.states for y in x.readers])

    def __setattr__(self, name, value):
        for x in self.states:
            setattr(x, name, value)


def each(state):
    """The states that a tile's state is made of."""
    return state.states if isinstance(state, JoinedState) else [state]


def name_of(part):
    """What several tiles are called together: "s_do_v" of "s_do_v[0]"."""
    return part.name.partition("[")[0]


class Barrier:
    """An mbarrier: counts arrivals and bytes of a phase; `phase` is how many are over."""

    def __init__(self, log, name):
        self.log, self.name, self.dirty, self.left = log, name, None, None
        self.phase, self.bytes, self.loads, self.announced = 0, 0, [], None
        self.used, self.initialised = False, None

    def init(self, count):
        self.initialised = self.dirty = self.log.here()
        self.count, self.left = count, count

    def refuse_unready(self):
        if self.left is None:
            raise GluonFault(
                f"{self.name}: a barrier is used without mbarrier.init", None, None,
                "mbarrier.init(…, count=1), then a fence",
            )  # fmt: skip

    def arrive(self, bytes, together=False):
        """together: among roles, of which any may wait; with the last the phase is over."""
        self.refuse_unready()
        self.used = True
        if self.left == 0:
            self.refuse_second_announcement()
        self.left, self.bytes, self.announced = self.left - 1, self.bytes + bytes, self.log.here()
        if together and not (self.left or self.bytes or self.loads):
            self.phase, self.left = self.phase + 1, self.count

    def runs(self, phase):
        """Whether a wait for this phase would wait."""
        over = not self.left and self.bytes == sum(flight.bytes for flight, *_ in self.loads)
        return self.phase % 2 == phase and not over

    def refuse_second_announcement(self):
        raise GluonFault(
            f"{self.name}: a tile is announced twice",
            None,
            f"line {self.announced.line} announced phase {self.phase % 2}, and nobody has waited "
            "for it",
            "wait for the tile before the next one is announced on its barrier",
        )

    def wait(self, phase):
        """Ends the phase, if it is this one; the wait for the one before returns at once."""
        self.refuse_unready()
        self.used = True
        if self.phase % 2 != int(phase):
            message = (
                f"the wait of line {self.log.here().line} returned at once: it named phase "
                f"{int(phase)} of {self.name}, whose current phase is {self.phase % 2}"
            )
            for flight, *_ in self.loads:
                flight.at_once = message
            self.log.step("wait", self.name)
            return
        arrived = sum(flight.bytes for flight, *_ in self.loads)
        if self.left or self.bytes != arrived:
            self.refuse_endless(arrived)
        for flight, tile, block in self.loads:
            tile.data.copy_(block)
            tile.arrives(flight)
            if getattr(flight, "way", None) == "cp.async":
                tile.wrote()
        self.log.wait(self.name, [flight for flight, *_ in self.loads])
        self.phase, self.left, self.bytes, self.loads = self.phase + 1, self.count, 0, []

    def refuse_endless(self, arrived):
        do = "mbarrier.expect with the bytes of the tiles, before their copies are waited for"
        if self.left and self.loads:
            why = f"{self.loads[0][0]} was never announced"
        elif self.left:
            why = f"nothing was announced for phase {self.phase % 2}, and no copy started"
            do = "announce and start the copy before this line, or wait for the other phase"
        else:
            why = f"line {self.announced.line} announced {self.bytes:,} bytes, and the copies that "
            why += f"were started bring {arrived:,}"
            do = "announce as many bytes as are copied, and start what is announced"
        message = f"{self.name}: the wait for a tile never ends; a GPU hangs here"
        raise NeverEnds(message, None, why, do)


class Several:
    """Tiles or barriers with one name."""

    def __init__(self, parts):
        self.parts = parts

    def index(self, i):
        refuse(
            not 0 <= int(i) < len(self.parts),
            f"there is no such tile: index({int(i)}) of {len(self.parts)}",
        )
        return self.parts[int(i)]

    def _reinterpret(self, dtype, shape, layout=None):
        """The bytes of all parts as one tile, of which what is done to it is done to each."""
        first = self.parts[0]
        flat = first.data.as_strided((sum(x.data.numel() for x in self.parts),), (1,))
        state = JoinedState([x.state for x in self.parts])
        all_rows = range(max(flat.numel(), 1))  # of each part
        return SharedTile(first.log, name_of(first), flat.view(dtype).view(shape), state, all_rows)

    reinterpret = _reinterpret

    def __getattr__(self, name):
        raise GluonFault(
            f"{self.parts[0].name.partition('[')[0]} is {len(self.parts)} tiles or barriers",
            None,
            f"only one of them has .{name}",
            ".index(i) names one",
        )


def _shape(x):
    return list(x.shape)


def _dtype(x):
    return str(x.dtype).removeprefix("torch.")


def _multiplied(x):
    """What tensor cores take of a tile: of float32 11 bits, TF32; the other 13 are cut off."""
    if x.dtype != torch.float32:
        return x.float()
    return (x.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)


def product_in_registers(a, b, acc):
    """`mma_v2`: a b + acc in the registers of a program, at once; of tiles [n, …] n products."""
    for x, n, side in ((a, 0, "left"), (b, 1, "right")):
        refuse(
            isinstance(x, SharedTile), f"the {side} factor of mma_v2 is in shared memory: load it"
        )
        laid_out = isinstance(x.layout, DotOperandLayout) and x.layout.operand_index == n
        has_layouts = x.layout is not None and acc.layout is not None
        refuse(
            has_layouts and not (laid_out and x.layout.parent == acc.layout),
            f"the {side} factor of mma_v2 is laid out as {short(x.layout)}, and not as "
            f"DotOperandLayout({n}, layout of the sums, …)",
        )
    return Value(_multiplied(a.x) @ _multiplied(b.x) + acc.x, acc.layout)


def refuse_layout(name, left):
    """The threads that hold a left factor in registers have to be those that multiply it."""
    if not isinstance(left, Value) or left.layout is None:
        return
    if not isinstance(left.layout, DotOperandLayout):
        raise GluonFault(
            f"{name}: the left factor is not laid out as a product takes it",
            None,
            f"it is {short(left.layout)}",
            "gl.convert_layout(…, gl.DotOperandLayout(0, layout of the sums, 2)), or from a tile",
        )


class FlyingProduct(Value):
    """A product on its way: its operands are read at the end of it. No number before."""

    def __init__(self, log, name, left, right, so_far):
        self.left, self.right, self.so_far, self.result = left, right, so_far, None
        self.log, self.layout = log, None if so_far is None else so_far.layout
        refuse_layout(name, left)
        shapes, types = ([str(get(x)) for x in (left, right)] for get in (_shape, _dtype))
        refuse(left.shape[1] != right.shape[0], f"a product of {' and '.join(shapes)}")
        refuse(
            left.dtype != right.dtype,
            f"a product of {' and '.join(types)}: its factors have one type",
        )
        for tile in self.tiles():
            tile.refuse_using("a product")
        flops = 2 * left.shape[0] * left.shape[1] * right.shape[1]
        self.flight = log.start("product", name, flops=flops)
        for tile in self.tiles():
            tile.is_read(self.flight)

    shape = property(lambda self: (self.left.shape[0], self.right.shape[1]))

    @property
    def x(self):
        if self.result is None:
            why, do = f"{self.flight} is on its way", WAIT_FOR["product"]
        else:
            why = f"{self.flight} is done, but this is its name from before the wait"
            do = f"{self.flight.name} = warpgroup_mma_wait(…, deps=({self.flight.name},))"
        message = f"{self.flight.name}: a product is used before the wait for it"
        raise ReadBeforeWait(message, None, why, do)

    def tiles(self):
        return [x for x in (self.left, self.right) if isinstance(x, SharedTile)]

    def get(self, outstanding=0):
        if self.result is None:
            lets = f"this wait lets the last {many(outstanding, 'product')} go on, and "
            raise ReadBeforeWait(
                f"{self.flight.name}: a product is taken before the wait for it",
                None,
                f"{lets}{self.flight} is among them",
                "a smaller number, or fewer products after it before the wait",
            )
        return Value(self.result, self.layout)

    def not_kept(self, deps):
        """The fault if its left factor is in registers, and not among those that are kept."""
        if not isinstance(self.left, Value) or any(self.left is x for x in deps):
            return None
        return GluonFault(
            f"{self.flight.name}: a factor is not kept until the wait",
            self.log.here(),
            f"the left factor of {self.flight} is in registers, which the compiler may give "
            "away once nothing names them any more",
            "name the factor among the deps of this wait",
        )

    def finish(self):
        in_registers = isinstance(self.left, Value)
        left = self.left.x if in_registers else self.left.data
        self.result = _multiplied(left) @ _multiplied(self.right.data)
        if self.so_far is not None:
            is_product = isinstance(self.so_far, FlyingProduct)
            self.result = self.result + (self.so_far.result if is_product else self.so_far.x)
        for tile in self.tiles():
            tile.was_read(self.flight)
