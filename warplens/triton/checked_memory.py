"""The memory of an interpreted Triton kernel: made-up addresses, so that none leads astray.

Every tensor gets a range of addresses for itself, far from the others'. An index that leaves its
tensor cannot end in another one, and whatever is accessed, its range says whose element it is.
"""

import contextlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiled.from_triton import pointer_type
from ..faults import OutOfBounds, Place
from .arithmetic import Arithmetic, atomic_bfloat16

SPACING = 40  # bits: a terabyte from one tensor's range to the next
SECTOR = 32  # bytes
NOBODY, MANY = -1, -2


@dataclass(frozen=True)
class Access:
    """One `tl.load`, `tl.store` or atomic of one program: the elements of its unmasked lanes."""

    array: str
    op: str
    place: Place | None
    program: tuple[int, ...]
    offsets: np.ndarray[Any, Any]  # bytes from the start of the tensor, one per lane
    width: int  # bytes of an element


@dataclass(frozen=True)
class ProgramRace:
    """Two programs, one element, and no order between them."""

    array: str
    element: int
    programs: tuple[Any, Any]  # (the later one, the other or None if there are several)
    place: Place | None

    def __str__(self) -> str:
        first, second = self.programs
        second = "by several others" if second is None else f"by program {second}"
        message = (
            f"element {self.element} of {self.array}: touched by program {first} and {second}, "
        )
        lines = [message + "and written by at least one of them"]
        return "\n".join([*lines, str(self.place)] if self.place else lines)


class Region:
    """One tensor: where it is, where the kernel thinks it is, and who has been at its elements."""

    def __init__(self, number, name, tensor):
        self.name, self.tensor, self.width = name, tensor, tensor.element_size()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        self.elements = last + 1 if tensor.numel() else 0
        self.start = ((number + 1) << SPACING) + (1 << SPACING - 1)
        self.writer, self.reader = np.full((2, self.elements), NOBODY)
        self.lock = np.full(self.elements, NOBODY)  # the number of what all held who came so far
        self.written = np.zeros(self.elements, bool)

    def never_written(self):
        """In the shape of the tensor: which elements no store and no atomic has touched."""
        import torch

        return ~torch.from_numpy(self.written).as_strided(self.tensor.shape, self.tensor.stride())


@dataclass(frozen=True)
class PretendPointer:
    """What the kernel gets for a tensor: Triton's type of it ("*fp32") and a made-up address."""

    kind: str
    address: int


class Watched:
    """Stands between a kernel and its tensors.

    Args:
        given: {parameter: argument}.
        files: of the kernel's source; a line of theirs is the place of an access.
        keep: whether to keep every access, to count.
        tf32: whether products of float32 operands lose the bits that a GPU's would.

    Attributes:
        regions: a `Region` per tensor.
        undefined: the first `Place` of a load whose masked lanes hold anything, as it does not say
            what; here they hold NaN. None if there is none.
        arithmetic: an `Arithmetic`.
    """

    def __init__(self, arguments, files, keep=False, tf32=False):
        tensors = [(name, _tensor(x)) for name, x in arguments.items() if _tensor(x) is not None]
        for name, x in tensors:
            if x.device.type != "cpu":
                raise TypeError(f"{name} is on {x.device}, needs a tensor on the CPU")
        self.regions = [Region(n, name, x) for n, (name, x) in enumerate(tensors)]
        self.stand_ins = {
            x.name: PretendPointer(pointer_type(x.tensor), x.start) for x in self.regions
        }
        self.files, self.keep, self.program = files, keep, (0, 0, 0)
        self.accesses, self.races, self.undefined = [], {}, None
        self.locks, self.lock_sets = {}, {frozenset(): 0}
        self.arithmetic = Arithmetic(self.place, tf32)

    @contextlib.contextmanager
    def between(self, builder):
        """Takes the place of the builder's operations while it lasts."""
        memory = ("masked_load", "masked_store", "atomic_rmw", "atomic_cas")
        hooks = {f"create_{name}": getattr(self, name) for name in memory}
        hooks |= {name: getattr(self.arithmetic, name) for name in Arithmetic.HOOKS}
        for name, hook in hooks.items():
            setattr(builder, name, _bound(hook, getattr(builder, name, None)))
        try:
            yield
        finally:
            for name in hooks:
                delattr(builder, name)

    # The builder's operations; `own` is its.
    def masked_load(self, own, ptrs, mask, other, *options, **named):
        real = self.real(ptrs, mask.data, "load")
        if other is None and not np.all(mask.data):
            self.undefined = self.undefined or self.place()
            other = _anything(ptrs)
        return own(real, mask, other, *options, **named)

    def masked_store(self, own, ptrs, value, mask, *options, **named):
        return own(self.real(ptrs, mask.data, "store"), value, mask, *options, **named)

    def atomic_rmw(self, own, kind, ptrs, value, mask, *options):
        real = self.real(ptrs, mask.data, "atomic")
        for address in [a for a in self.locks if a in real.data]:
            del self.locks[address]
        if value.dtype.scalar.name == "bf16":
            return atomic_bfloat16(kind, real, value, mask)
        return own(kind, real, value, mask, *options)

    def atomic_cas(self, own, ptrs, compare, value, *options):
        real = self.real(ptrs, True, "atomic")
        before = own(real, compare, value, *options)
        if real.data.size == 1 and before.data == compare.data != value.data:
            self.locks[int(real.data.item())] = self.program
        return before

    def lock_set(self):
        """The number of the set of locks that the program holds: what its atomic_cas has taken."""
        locks = frozenset(a for a, program in self.locks.items() if program == self.program)
        return self.lock_sets.setdefault(locks, len(self.lock_sets))

    # Addresses.
    def real(self, ptrs, mask, op):
        """`ptrs` with the tensors' true addresses; what is masked off keeps its own, unused."""
        address = np.asarray(ptrs.data).astype(np.int64)
        # Masks that were put together may be numbers, 0 and 1, which would index.
        mask = np.broadcast_to(mask, address.shape).astype(bool)
        lanes, width = address[mask], max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        true = address.copy()
        numbers = (lanes >> SPACING) - 1
        addresses = np.empty_like(lanes)
        for n in np.unique(numbers):
            if not 0 <= n < len(self.regions):
                raise OutOfBounds(
                    f"program {self.program} uses no tensor's address; addresses that a kernel "
                    "reads from memory are not simulated: give it the tensors",
                    self.place(),
                )
            region, mine = self.regions[n], numbers == n
            offsets = lanes[mine] - region.start
            self._guard(region, offsets, width, op)
            self._note(region, offsets, width, op)
            addresses[mine] = offsets + region.tensor.data_ptr()
        true[mask] = addresses
        return type(ptrs)(true.astype(np.uint64), ptrs.dtype)

    def place(self):
        """The innermost line of the kernel's own files that is running."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename in self.files:
                return Place(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None

    def _guard(self, region, offsets, width, op):
        outside = (offsets < 0) | (offsets + width > region.elements * region.width)
        if not outside.any():
            return
        element = int(offsets[outside][0]) // region.width
        verb = {"load": "reads", "store": "writes"}.get(op, "updates")
        count = f"{outside.sum()} of its {len(offsets)} unmasked lanes"
        shape = ", ".join(map(str, region.tensor.shape))
        fault = OutOfBounds(
            f"program {self.program} {verb} element {element} of {region.name}, which has "
            f"{region.elements} (shape [{shape}]); out of bounds: {count}",
            self.place(),
            array=region.name,
            index=element,
        )
        fault.symptom = "origin" if outside.all() else None
        raise fault

    def _note(self, region, offsets, width, op):
        if op != "load":
            region.written[offsets // region.width] = True
        if not self.keep:
            return
        place = self.place()
        self.accesses.append(Access(region.name, op, place, self.program, offsets, width))
        if op == "atomic":
            return
        elements, (x, y, z) = offsets // region.width, self.program
        me = x + (y << 20) + (z << 40)
        owners = region.writer[elements]
        meets = (owners != NOBODY) & (owners != me)
        if op == "store":
            readers = region.reader[elements]
            owners = np.where(meets, owners, readers)
            meets |= (readers != NOBODY) & (readers != me)
            region.writer[elements] = me
        else:
            readers = region.reader[elements]
            region.reader[elements] = np.where((readers == NOBODY) | (readers == me), me, MANY)
        lock_set, locks = self.lock_set(), region.lock[elements]
        region.lock[elements] = np.where((locks == NOBODY) | (locks == lock_set), lock_set, 0)
        meets &= region.lock[elements] == 0
        if meets.any() and region.name not in self.races:
            n = int(np.flatnonzero(meets)[0])
            pair = (self.program, _program(int(owners[n])))
            self.races[region.name] = ProgramRace(region.name, int(elements[n]), pair, place)


def _tensor(x):
    """The tensor of an argument: its own, or a descriptor's; None where there is none."""
    x = x.base if hasattr(x, "block_shape") else x
    return x if hasattr(x, "data_ptr") else None


def _bound(method, own):
    return lambda *args, **named: method(own, *args, **named)


def _program(number):
    if number == MANY:
        return None
    return (number & 0xFFFFF, number >> 20 & 0xFFFFF, number >> 40)


def _anything(ptrs):
    """What masked lanes of a load hold that does not say what: NaN, or the largest integer."""
    import triton.language as tl

    kind, bits = ptrs.get_element_ty(), ptrs.get_element_ty().primitive_bitwidth
    if kind == tl.bfloat16:
        values = np.full(ptrs.data.shape, 0x7FC0, np.uint16)
    elif kind in (tl.float16, tl.float32, tl.float64):
        values = np.full(ptrs.data.shape, np.nan, f"float{bits}")
    elif kind.is_int() and bits >= 8:
        values = np.full(ptrs.data.shape, 2 ** (bits - 1) - 1, f"int{bits}")
    else:
        return None
    return type(ptrs)(values, kind)
