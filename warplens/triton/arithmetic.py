"""The arithmetic of an interpreted Triton kernel: counted, and bfloat16 as a GPU rounds it.

Triton's interpreter keeps bfloat16 as the integers that its bits are, and adds and multiplies
those. Here such operands are widened to float32 first, and results rounded to the nearest bfloat16.
A product whose sums are float16 is added up in steps, and rounded after each, as tensor cores do.
What a kernel does in more or less than float32 is noted with its line: float64, products of float32
operands, which a GPU may cut off to TF32, and products whose sums are float16.
"""

import ctypes
from collections import Counter

import numpy as np

from .. import libdevice


class Arithmetic:
    """What a launch computes.

    Args:
        place: () → the `Place` in the kernel that is running.
        cut: whether operands of products in TF32 lose the bits that tensor cores do not take.

    Attributes:
        dots: {(M, N, K, type of the operands): how often}.
        exps: elements of which `tl.exp` or `tl.exp2` was taken; exp_lines: the same per line.
        tf32: the first `Place` whose `tl.dot` of float32 operands leaves them 11 bits, or None.
        float32: the first `Place` whose `tl.dot` has float32 operands, or None.
        float16: the first `Place` whose `tl.dot` adds up in float16, or None.
        float64: the first `Place` that makes a float64, or None.
    """

    HOOKS = ("create_dot", "create_exp", "create_exp2", "cast_impl", "create_fp_to_fp")
    HOOKS = (*HOOKS, "binary_op", "unary_op", "create_fma", "create_extern_elementwise")
    HOOKS = (*HOOKS, "get_bf16")

    def __init__(self, place, cut=False):
        self.place, self.cut = place, cut
        self.dots, self.exps, self.exp_lines = Counter(), 0, Counter()
        self.tf32 = self.float32 = self.float16 = self.float64 = None

    def create_dot(self, own, a, b, d, precision, *options):
        *batch, M, K = a.data.shape
        kind = str(a.dtype.scalar)
        self.dots[M, b.data.shape[-1], K, kind] += int(np.prod(batch, dtype=int))
        if kind == "fp32":
            self.float32 = self.float32 or self.place()
        if kind == "fp32" and self.tf32 is None and _name(precision) in ("TF32", "BF16", "BF16x3"):
            self.tf32 = self.place()
        if self.cut and kind == "fp32" and _name(precision) == "TF32":
            a, b = _cut(a), _cut(b)
        if kind == str(d.dtype.scalar) == "fp16":
            self.float16 = self.float16 or self.place()
            return _summed_in_float16(a, b, d)
        return own(_wide(a), _wide(b), d, precision, *options)

    def create_exp(self, own, x):
        self.exps += x.data.size
        place = self.place()
        self.exp_lines[place.line if place else 0] += x.data.size
        return own(x)

    create_exp2 = create_exp

    def cast_impl(self, own, x, dtype):
        import triton.language as tl

        kind = dtype.scalar
        if kind == tl.float64 and self.float64 is None:
            self.float64 = self.place()
        x = _wide(x)
        if kind == tl.bfloat16:
            return _narrow(x if x.dtype.scalar == tl.float32 else own(x, tl.float32))
        return x if x.dtype.scalar == kind == tl.float32 else own(x, dtype)

    def create_fp_to_fp(self, own, x, dtype, rounding):
        import triton.language as tl

        if dtype.scalar == tl.bfloat16 and x.dtype.scalar == tl.float32:
            return _narrow(x)
        return own(x, dtype, rounding)

    def binary_op(self, own, x, y, op):
        if not _is_bfloat16(x):
            return own(x, y, op)
        result = own(_wide(x), _wide(y), op)
        return result if op in COMPARISONS else _narrow(result)

    def unary_op(self, own, x, op):
        return _narrow(own(_wide(x), op)) if _is_bfloat16(x) else own(x, op)

    def create_fma(self, own, x, y, z):
        return _narrow(own(_wide(x), _wide(y), _wide(z))) if _is_bfloat16(z) else own(x, y, z)

    def get_bf16(self, own, value):
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return _narrow(TensorHandle(np.array([value], np.float32), tl.float32))

    def create_extern_elementwise(self, own, library, path, symbol, args, kind, pure):
        from triton.runtime.interpreter import TensorHandle, _get_np_dtype

        name = symbol.removeprefix("__nv_")
        if name.removeprefix("fast_").startswith("exp"):
            self.create_exp(lambda x: None, args[0])
        data = libdevice.function(name)(*(x.data for x in args))
        return TensorHandle(np.asarray(data).astype(_get_np_dtype(kind)), kind.scalar)


COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)


def _name(precision):
    return str(precision).rsplit(".", 1)[-1]


def _is_bfloat16(x):
    return x.dtype.scalar.name == "bf16"


def _wide(x):
    """A bfloat16 tile as float32; any other as it is."""
    import triton.language as tl

    if not _is_bfloat16(x):
        return x
    return type(x)((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _cut(x):
    """A float32 tile as tensor cores read it: 10 bits after the point, the other 13 left out."""
    bits = np.ascontiguousarray(x.data, np.float32).view(np.uint32).reshape(x.data.shape)
    return type(x)((bits & np.uint32(0xFFFFE000)).view(np.float32), x.dtype)


AT_ONCE = 16  # numbers that an instruction of the tensor cores adds up before it rounds


def _summed_in_float16(a, b, d):
    """a @ b + d of float16 tiles, rounded to float16 after every `AT_ONCE` of the sum."""
    left, right, total = a.data.astype(np.float32), b.data.astype(np.float32), d.data
    for k in range(0, left.shape[-1], AT_ONCE):
        some = left[..., k : k + AT_ONCE] @ right[..., k : k + AT_ONCE, :]
        total = (total.astype(np.float32) + some).astype(np.float16)
    return type(d)(total, d.dtype.scalar)


def _narrow(x):
    """A float32 tile rounded to the nearest bfloat16, ties to even."""
    import triton.language as tl

    bits = np.ascontiguousarray(x.data, np.float32).view(np.uint32).reshape(x.data.shape)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    upper = np.where(np.isnan(x.data), bits >> 16 | 0x40, rounded)
    return type(x)(upper.astype(np.uint16), tl.bfloat16)


def atomic_bfloat16(kind, addresses, value, mask):
    """An atomic that adds or exchanges, on bfloat16 at real addresses: one lane after another."""
    name, values = _name(kind), _wide(value)
    if name not in ("FADD", "XCHG"):
        raise libdevice.NotSimulated(f"tl.atomic_{name.lower()} of bfloat16 is not simulated")
    shape = addresses.data.shape
    active = np.broadcast_to(mask.data, shape)
    before = np.zeros(shape, np.uint16)
    for lane in zip(*np.nonzero(active), strict=True):
        cell = ctypes.c_uint16.from_address(int(addresses.data[lane]))
        before[lane] = cell.value
        old = _wide(type(value)(before[lane], value.dtype))
        new = values.data[lane] + (old.data if name == "FADD" else 0)
        cell.value = int(_narrow(type(value)(np.asarray(new, np.float32), old.dtype)).data)
    return type(value)(before, value.dtype)
