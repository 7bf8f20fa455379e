"""What Gluon kernels do in registers, on the CPU, with torch: arithmetic, addresses, PTX.

A tile or a number in registers is a `Value`, an address a `Pointer`. `RegisterArithmetic` has
Gluon's names for what is computed with them. Of PTX only the instructions in `PTX` are known, those
that the library's kernels use on pairs of elements.
"""

import re
import types

import torch
from triton import language as tl
from triton.experimental.gluon import language as gl

from .faults import GluonFault, refuse


def raw(x):
    """The tensor or number of a `Value`; a product that is still on its way has none."""
    return x.x if isinstance(x, Value) else x


def of_one_dtype(*values):
    """Tensors of one dtype; a number takes that of the others."""
    values = [raw(x) for x in values]
    dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor)] or [torch.int64]
    for dtype in dtypes[1:]:
        dtypes[0] = torch.promote_types(dtypes[0], dtype)
    fits = all(dtypes[0].is_floating_point or not isinstance(x, float) for x in values)
    dtype = dtypes[0] if fits else torch.float32
    return [torch.as_tensor(x).to(dtype) for x in values]


def operator(f, swapped=False):
    """A method of `Value` that applies `f` to two of them; with Pointers those know better."""

    def apply(self, other):
        if isinstance(other, Pointer):
            return NotImplemented
        a, b = of_one_dtype(self, other)
        return Value(f(b, a) if swapped else f(a, b), met(self, other))

    return apply


def met(*values):
    """The one layout of tiles that meet in an operation; None where it is not known.

    Numbers have none. It follows what keeps layouts, not what makes new ones: reshape, join, split.
    """
    layouts = [x.layout for x in values if isinstance(x, Value) and x.layout is not None]
    for other in layouts[1:]:
        if other != layouts[0]:
            raise GluonFault(
                "two tiles meet whose layouts differ",
                None,
                f"one is {short(layouts[0])}, the other one {short(other)}",
                "gl.convert_layout(…) of one of them",
            )
    return layouts[0] if layouts else None


def short(layout):
    """A layout as a kernel names it, without what is as always."""
    return re.sub(r", cga_layout=\[\]", "", str(layout))


class Value:
    """A tile or a number in registers. `created` counts the tiles, all kernels together.

    layout: of a tile, where it is known, else None.
    """

    type, created = property(lambda self: self), 0
    shape, dtype = property(lambda self: self.x.shape), property(lambda self: self.x.dtype)

    def __init__(self, x, layout=None):
        self.x, self.layout = x, layout
        Value.created += isinstance(x, torch.Tensor) and x.dim() > 0

    def to(self, dtype, bitcast=False):
        return Value(self.x.view(dtype) if bitcast else self.x.to(dtype), self.layout)

    def __getitem__(self, at):
        return Value(self.x[at], expanded(self.layout, at))

    def reshape(self, shape):
        return Value(self.x.reshape(shape))

    def __index__(self):
        return int(self.x)

    def __bool__(self):
        return bool(self.x)

    def __neg__(self):
        return Value(-self.x, self.layout)

    __hash__ = None
    __add__ = __radd__ = operator(torch.add)
    __mul__ = __rmul__ = operator(torch.mul)
    __lshift__, __rshift__ = operator(torch.bitwise_left_shift), operator(torch.bitwise_right_shift)
    __and__ = __rand__ = operator(torch.bitwise_and)
    __xor__ = __rxor__ = operator(torch.bitwise_xor)
    __or__ = __ror__ = operator(torch.bitwise_or)
    __sub__, __rsub__ = operator(torch.sub), operator(torch.sub, True)
    __truediv__, __rtruediv__ = operator(torch.div), operator(torch.div, True)
    # Integers are divided as in C: towards 0.
    __floordiv__ = operator(lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    __rfloordiv__ = operator(lambda a, b: torch.div(a, b, rounding_mode="trunc"), True)
    __mod__, __rmod__ = operator(torch.fmod), operator(torch.fmod, True)
    __lt__, __le__, __gt__ = operator(torch.lt), operator(torch.le), operator(torch.gt)
    __ge__, __eq__, __ne__ = operator(torch.ge), operator(torch.eq), operator(torch.ne)


def expanded(layout, at):
    """Of x[:, None], or None."""
    at = at if isinstance(at, tuple) else (at,)
    if layout is None or at.count(None) != 1:
        return None
    if not isinstance(layout, gl.SliceLayout) or layout.dim != at.index(None):
        axis = at.index(None)
        raise GluonFault(
            f"a tile gets an axis {axis}, and its layout is no slice of another along it",
            None,
            f"it is {short(layout)}",
            f"gl.arange(…, gl.SliceLayout({axis}, layout of the larger tile)), or convert_layout",
        )
    return layout.parent


def sliced(layout, axis):
    """Of a sum along an axis."""
    return None if layout is None else gl.SliceLayout(axis, layout)


class Pointer:
    """Addresses of elements of a tensor: `at`, in the flat `memory` behind it."""

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
        refuse((mask & ~inside).any(), "an address outside of its tensor", "mask")
        return at.long(), mask, *like


def as_argument(x):
    """What an argument is for a kernel: an address, a number in a register, or as it is."""
    if isinstance(x, torch.Tensor):
        extent = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) + 1
        return Pointer(x.as_strided((extent if x.numel() else 0,), (1,)))
    if isinstance(x, int):
        return Value(torch.tensor(x, dtype=torch.int32))
    return Value(torch.tensor(x, dtype=torch.float32)) if isinstance(x, float) else x


# PTX: registers are int64 tensors that hold 32 bits without a sign.


def ptx_rounded(x, dtype):
    """A float32's bits as those of the nearest number of 16 bits."""
    return x.to(torch.int32).view(torch.float32).to(dtype).view(torch.int16).long() & 65535


def ptx_pair(dtype):
    """The conversion of two float32 to one register of this dtype."""
    return lambda high, low: ptx_rounded(high, dtype) << 16 | ptx_rounded(low, dtype)


def ptx_of_halves(operation, dtype):
    """`operation` of two numbers of 16 bits in either half of a register."""

    def f(x, y):
        halves = [
            operation(*((z >> n).to(torch.int16).view(dtype) for z in (x, y))) for n in (0, 16)
        ]
        low, high = (z.view(torch.int16).long() & 65535 for z in halves)
        return high << 16 | low

    return f


def ptx_permuted(x, y, order):
    """Four bytes of the eight of x and y; where `order` says so, the sign of one, eight times."""
    both, result = y << 32 | x, 0
    for n in range(4):
        chosen = order >> 4 * n
        byte = both >> (chosen & 7) * 8 & 255
        result = result | ((byte >> 7) * 255 if chosen & 8 else byte) << 8 * n
    return result


def ptx_difference(x, y):
    """x - y of two float32."""
    x, y = (z.to(torch.int32).view(torch.float32) for z in (x, y))
    return (x - y).view(torch.int32).long() & 0xFFFFFFFF


def ptx_halves(x):
    """Two e4m3 in 16 bits as two float16."""
    low, high = (
        (x >> n & 255).to(torch.uint8).view(torch.float8_e4m3fn).half().view(torch.int16).long()
        for n in (0, 8)
    )
    return (high & 65535) << 16 | low & 65535


def ptx_float(x):
    """A float16's bits as those of the same float32."""
    return x.to(torch.int16).view(torch.float16).float().view(torch.int32).long() & 0xFFFFFFFF


def signed(x):
    """A register as an integer that may be negative."""
    return torch.as_tensor(x).int().long()


PTX = {
    "mov.b32": lambda x: x,
    "and.b32": lambda x, y: x & y,
    "xor.b32": torch.bitwise_xor,
    "or.b32": lambda x, y: x | y,
    "shr.u32": lambda x, n: torch.where(n < 32, x >> n.clamp(max=31), 0),
    "shl.b32": lambda x, n: x << n & 0xFFFFFFFF,
    "shr.b32": lambda x, n: x >> n,
    "cvt.u16.u32": lambda x: x & 65535,
    "cvt.f32.f16": ptx_float,
    "cvt.rn.f16x2.e4m3x2": ptx_halves,
    "cvt.rn.bf16x2.f32": ptx_pair(torch.bfloat16),
    "cvt.rn.f16x2.f32": ptx_pair(torch.float16),
    "max.NaN.bf16x2": ptx_of_halves(torch.maximum, torch.bfloat16),
    "max.NaN.f16x2": ptx_of_halves(torch.maximum, torch.float16),
    "mul.rn.bf16x2": ptx_of_halves(torch.mul, torch.bfloat16),
    "add.s32": lambda x, y: x + y & 0xFFFFFFFF,
    "max.s32": lambda x, y: torch.maximum(signed(x), signed(y)) & 0xFFFFFFFF,
    "sub.f32": ptx_difference,
    "prmt.b32": ptx_permuted,
}


def registers_of(x, pack):
    """Of all pairs of elements at once: a register for each of 32 bits, or one for both of 16.

    pack: 1: of all elements, which have 32 bits.
    """
    if pack == 1:
        return [x.contiguous().view(torch.int32).long().view(-1) & 0xFFFFFFFF]
    bits = x.contiguous().view({4: torch.int32, 2: torch.int16}[x.itemsize]).long().view(-1, 2)
    even, odd = (bits & (1 << 8 * x.itemsize) - 1).T
    return [even, odd] if x.itemsize == 4 else [odd << 16 | even]


def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """The PTX, one instruction after another."""
    if asm.startswith("cp.async.bulk.prefetch"):
        return Value(torch.zeros_like(args[0].elements(True)[0]))
    args = torch.broadcast_tensors(*(raw(x) for x in args))
    words = pack == 1 and all(x.itemsize == 4 for x in args)
    refuse(
        pack != 2 and not words, "only pairs of elements, or elements of 32 bits, are known here"
    )
    first, inputs = constraints.count("="), [y for x in args for y in registers_of(x, pack)]
    registers = {f"${first + n}": x for n, x in enumerate(inputs)}
    for line in asm.strip(" {}\n").split(";"):
        name, *words = line.replace(",", " ").split() or [".reg"]
        if name != ".reg":
            values = [registers[x] if x in registers else int(x, 0) for x in words[1:]]
            registers[words[0]] = PTX[name](*values)
    outputs, several = [registers[f"${n}"] for n in range(first)], isinstance(dtype, tuple)
    outputs = [[x] for x in outputs] if several else [outputs]
    outputs = [torch.stack(x, -1).to(torch.int32).view(-1) for x in outputs]
    dtypes = dtype if several else [dtype]
    tiles = [Value(x.view(y).view(args[0].shape)) for x, y in zip(outputs, dtypes, strict=True)]
    return tuple(tiles) if several else tiles[0]


class SharedLayout:
    """A layout in shared memory, of which nothing is looked at here."""

    def __init__(self, *_, **__):
        pass

    get_default_for = staticmethod(lambda *_, **__: None)


class RegisterArithmetic:
    """Gluon's names for types, and for what is computed in registers."""

    int8, int16, int32, int64 = torch.int8, torch.int16, torch.int32, torch.int64
    bfloat16, float16, float32 = torch.bfloat16, torch.float16, torch.float32
    PropagateNan = tl.PropagateNan
    SliceLayout, DotOperandLayout = gl.SliceLayout, gl.DotOperandLayout
    NVMMADistributedLayout, BlockedLayout = gl.NVMMADistributedLayout, gl.BlockedLayout
    DistributedLinearLayout = gl.DistributedLinearLayout
    SwizzledSharedLayout = NVMMASharedLayout = SharedLayout
    static_range, inline_asm_elementwise = range, staticmethod(inline_asm_elementwise)

    def arange(self, start, end, layout=None):
        return Value(torch.arange(start, end, dtype=torch.int32), layout)

    def full(self, shape, value, dtype, layout=None):
        value = value.x.item() if isinstance(value, Value) else value
        return Value(torch.full(shape, value, dtype=dtype), layout)

    def zeros(self, shape, dtype, layout=None):
        return self.full(shape, 0, dtype, layout)

    def where(self, condition, x, y):
        return Value(torch.where(raw(condition), *of_one_dtype(x, y)), met(condition, x, y))

    def maximum(self, x, y, propagate_nan=None):
        f = torch.maximum if propagate_nan == tl.PropagateNan.ALL else torch.fmax
        return Value(f(*of_one_dtype(x, y)), met(x, y))

    def minimum(self, x, y, propagate_nan=None):
        f = torch.minimum if propagate_nan == tl.PropagateNan.ALL else torch.fmin
        return Value(f(*of_one_dtype(x, y)), met(x, y))

    def cdiv(self, x, div):
        return (x + div - 1) // div

    def cast(self, input, dtype, fp_downcast_rounding=None, bitcast=False):
        return input.to(dtype, bitcast=bitcast)

    def fma(self, x, y, z):
        return x * y + z

    def static_assert(self, cond, msg=""):
        refuse(not cond, f"static_assert: {msg or 'it is not so'}")

    def assume(self, cond):
        refuse(not cond, "an assume that is not so", "programs")

    def multiple_of(self, input, values):
        return input

    max_contiguous = max_constancy = multiple_of

    def max(self, input, axis=None, return_indices=False, return_indices_tie_break_left=True,
            keep_dims=False):  # fmt: skip
        refuse(return_indices, "return_indices=True is not simulated")
        return self.reduced(torch.amax, input, axis, keep_dims)

    def min(self, input, axis=None, return_indices=False, return_indices_tie_break_left=True,
            keep_dims=False):  # fmt: skip
        refuse(return_indices, "return_indices=True is not simulated")
        return self.reduced(torch.amin, input, axis, keep_dims)

    def sum(self, input, axis=None, keep_dims=False, dtype=None):
        kind = dtype or input.dtype
        return self.reduced(lambda *x, **y: torch.sum(*x, **y, dtype=kind), input, axis, keep_dims)

    def reduced(self, f, x, axis, keep_dims):
        axes = tuple(range(len(x.shape))) if axis is None else axis
        if keep_dims:
            layout = x.layout
        else:  # a number has none
            layout = None if axis is None or len(x.shape) == 1 else sliced(x.layout, axis)
        return Value(f(raw(x), dim=axes, keepdim=keep_dims), layout)

    def expand_dims(self, input, axis):
        at = [slice(None)] * len(input.shape)
        at.insert(axis if axis >= 0 else len(at) + 1 + axis, None)
        return input[tuple(at)]

    def broadcast(self, input, other):
        layout = met(input, other)
        return tuple(Value(z, layout) for z in torch.broadcast_tensors(raw(input), raw(other)))

    def join(self, a, b):
        return Value(torch.stack([raw(a), raw(b)], -1))

    def split(self, a):
        return tuple(map(Value, raw(a).unbind(-1)))

    def permute(self, input, *dims):
        return Value(raw(input).permute(*dims))

    def reshape(self, input, *shape, can_reorder=False):
        refuse(can_reorder, "can_reorder=True is nothing that Gluon takes")
        return Value(raw(input).reshape(*shape))

    def convert_layout(self, value, layout, assert_trivial=False):
        return Value(raw(value), layout)


def elementwise(f):
    """A function of one tile, as a method."""
    return lambda self, x: Value(f(raw(x)), met(x))


for _name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "abs", "floor"):
    setattr(RegisterArithmetic, _name, elementwise(getattr(torch, _name)))
RegisterArithmetic.ceil = elementwise(torch.ceil)
