"""Arrays as a kernel on the CPU sees them: every index is checked before it is used.

Beyond its last element a GPU reads whatever lies behind `x`, and numba takes `x[-1]` from the end,
which a kernel rarely means. So each access goes through a wrapper that knows the shape, and both
are faults.
"""

import operator

import numpy as np

from ..faults import OutOfBounds, Unsupported


class Memory:
    """An allocation: a kernel's argument, the blocks' shared array, the threads' local one."""

    def __init__(self, name, space, data, alignment=None):
        self.name, self.space = name, space  # space: "global", "shared", "local" or "const"
        self.shape, self.strides, self.itemsize = data.shape, data.strides, data.itemsize
        self.alignment = alignment  # in bytes, of its start; None: enough for any vector
        # The tracer's numbers of the instructions that use it, and short cuts to them.
        self.sites, self.loads, self.stores = {}, {}, {}
        self.storage = self  # views of one memory name another one here

    def index_of(self, offset):
        """The index of the element `offset` bytes from the start."""
        index = [0] * len(self.shape)
        for axis in sorted(range(len(index)), key=lambda axis: -self.strides[axis]):
            if self.strides[axis] > 0:
                index[axis], offset = divmod(offset, self.strides[axis])
        return tuple(index)

    def describe(self, index):
        return f"{self.name}[{', '.join(str(i) for i in index)}]"


class GuardedArray:
    """`data` with its indices checked, at `offset` bytes from the start of its `memory`."""

    __slots__ = (
        "data memory machine offset written shape strides axes as_int length step width".split()
    )

    def __init__(self, data, memory, machine, offset=0, written=None):
        self.data, self.memory, self.machine, self.offset = data, memory, machine, offset
        self.written = written  # a flag per element of shared and local memory
        self.shape, self.strides, self.width = data.shape, data.strides, data.itemsize
        self.axes = tuple(zip(data.shape, data.strides, strict=True))
        # Of a row: most accesses are to one, and take a short cut.
        one_row = len(self.axes) == 1 and data.dtype.names is None
        self.length, self.step = self.axes[0] if one_row else (0, 0)
        # numba computes with 64-bit integers, as Python does, whatever the array's integer type.
        self.as_int = data.dtype.kind in "iu"

    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    dtype = property(lambda self: self.data.dtype)
    itemsize = property(lambda self: self.data.itemsize)
    nbytes = property(lambda self: self.data.nbytes)

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def locate(self, index):
        """The byte offset of one element, or None where `index` selects a part of the array."""
        axes = self.axes
        if type(index) is int and 0 <= index < self.length:
            return self.offset + index * self.step
        if type(index) is tuple and len(index) == 4 and len(axes) == 4:  # r[b, t, h, i]
            (a, s_a), (b, s_b), (c, s_c), (d, s_d) = axes
            i, j, k, n = index
            if type(i) is type(j) is type(k) is type(n) is int and (
                0 <= i < a and 0 <= j < b and 0 <= k < c and 0 <= n < d
            ):
                return self.offset + i * s_a + j * s_b + k * s_c + n * s_d
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(axes) or self.data.dtype.names is not None:
            return None
        offset = self.offset
        try:
            for i, (size, stride) in zip(index, axes, strict=True):
                if type(i) is not int:
                    i = operator.index(i)  # a small integer type would overflow
                if not 0 <= i < size:
                    if not (self.machine.from_the_end and -size <= i < 0):
                        self.out_of_bounds(index)
                    i += size
                offset += i * stride
        except TypeError:
            return None
        return offset

    def holds_four(self, index):
        """Whether the four from `index` on may be read and written without a look at each."""
        first = index[-1] if type(index) is tuple else index
        return self.written is None and not self.as_int and first + 4 <= self.shape[-1]

    def out_of_bounds(self, index, negative="numba counts a negative index from the end"):
        name = self.memory.describe(index)
        if self.shape != self.memory.shape:
            name = f"{name}, counted within a part of {self.memory.name},"
        reason = f"shape {self.shape}"
        if min(index) < 0 and not self.machine.from_the_end:
            reason = negative
        index = tuple(map(int, index))
        self.machine.fault(
            OutOfBounds, f"{name} is out of bounds ({reason})", array=self.memory.name, index=index
        )

    def part(self, index):
        """A row, a slice: the same memory, seen through a smaller wrapper."""
        if isinstance(index, str):
            return self.field(index)
        items = index if type(index) is tuple else (index,)
        for i, size in zip(items, self.shape, strict=False):
            if isinstance(i, slice) or 0 <= operator.index(i) < size:
                continue
            if not (self.machine.from_the_end and -size <= operator.index(i) < 0):
                self.out_of_bounds(items)
        data = self.data[index]
        if isinstance(data, np.void):
            data = self.data[(*items, None)]
            return RecordView(self.like(data, self.offset + _address(data) - _address(self.data)))
        return self.like(data, self.offset + _address(data) - _address(self.data))

    def like(self, data, offset):
        written = self.written
        if isinstance(written, Written):
            written = Written(written.flags, data.itemsize)
        return type(self)(data, self.memory, self.machine, offset, written)

    def field(self, name):
        """One field of each element of a structured array."""
        return self.like(self.data[name], self.offset + self.data.dtype.fields[name][1])

    def __getattr__(self, name):
        if name in (self.data.dtype.names or ()):
            return self.field(name)
        raise AttributeError(f"an array has no {name!r} in a kernel")

    def reshape(self, *shape):
        data = self.data.reshape(*shape)
        if data.size and not np.shares_memory(data, self.data):
            raise TypeError(f"reshape of {self.memory.name}: the array is not contiguous")
        return self.like(data, self.offset)

    def view(self, dtype):
        kind = getattr(dtype, "dtype", None) or np.dtype(getattr(dtype, "name", None) or dtype)
        return self.like(self.data.view(kind), self.offset)

    @property
    def real(self):
        return self.like(self.data.real, self.offset)

    @property
    def imag(self):
        return self.like(self.data.imag, self.offset + self.data.itemsize // 2)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        """`np.sin(x, r)` of whole arrays, as numba compiles it: element by element."""
        if method != "__call__" or options:
            raise Unsupported(f"np.{ufunc.__name__} of arrays in a kernel, with {method} {options}")
        values = [_all_of(x) if isinstance(x, GuardedArray) else x for x in inputs]
        result = ufunc(*values)
        for target, value in zip(out, [result] if ufunc.nout == 1 else result, strict=False):
            target.fill(np.broadcast_to(value, target.shape))
        return out[0] if out else result

    def get(self, index):
        return int(self.data[index]) if self.as_int else self.data[index]

    def put(self, index, value):
        try:
            self.data[index] = value
        except OverflowError:  # a GPU keeps the low bits
            bits = 8 * self.data.itemsize
            low = np.array(int(value) & ((1 << bits) - 1), f"u{self.data.itemsize}")
            self.data[index] = low.view(self.data.dtype)

    def __getitem__(self, index):
        if not (type(index) is int and 0 <= index < self.length) and self.locate(index) is None:
            return self.part(index)
        return int(self.data[index]) if self.as_int else self.data[index]

    def __setitem__(self, index, value):
        if not (type(index) is int and 0 <= index < self.length) and self.locate(index) is None:
            self.part(index).fill(value)
        elif self.as_int:
            self.put(index, value)
        else:
            self.data[index] = value

    def fill(self, value):
        """`x[…] = value` of a part, element by element, as the compiled loop does."""
        for index in np.ndindex(self.shape):
            self[index] = value[index] if hasattr(value, "shape") and value.shape else value

    def update(self, index, change):
        """An atomic: `x[index] = change(x[index])` in one piece; the value from before."""
        if self.locate(index) is None:
            raise TypeError(f"an atomic needs one element of {self.memory.name}, not a part of it")
        before = self.get(index)
        self.put(index, change(before))
        return before


class RecordView:
    """An element of a structured array: `p[i].x` and `p[i]["x"]` are accesses to one field."""

    __slots__ = ("array",)

    def __init__(self, array):
        object.__setattr__(self, "array", array)  # of one element

    def __getitem__(self, name):
        return self.array.field(self._name(name))[0]

    def __setitem__(self, name, value):
        self.array.field(self._name(name))[0] = value

    def _name(self, name):
        """A field may be given by its number, too."""
        return name if isinstance(name, str) else self.array.dtype.names[name]

    def __getattr__(self, name):
        return getattr(self.array, name)[0]

    __setattr__ = __setitem__

    def fill(self, value):
        """`p[i] = q[j]`, field by field."""
        for name in self.array.dtype.names:
            self[name] = value[name]


class Written:
    """Flags of elements, kept by byte: views of one memory may have elements of several sizes."""

    __slots__ = ("flags", "width")

    def __init__(self, flags, width):
        self.flags, self.width = flags, width

    def __getitem__(self, n):
        return 0 not in self.flags[n * self.width : (n + 1) * self.width]

    def __setitem__(self, n, flag):
        self.flags[n * self.width : (n + 1) * self.width] = bytes([flag]) * self.width


def _all_of(array):
    values = np.empty(array.shape, array.dtype)
    for index in np.ndindex(array.shape):
        values[index] = array[index]
    return values


def _address(data):
    return data.__array_interface__["data"][0]


def poisoned(shape, dtype):
    """Fresh memory: NaN, or a large odd number where there is no NaN."""
    data = np.empty(shape, dtype)
    if data.dtype.kind in "fc":
        data.fill(np.nan)
    else:
        data.view(np.uint8).fill(0xA5)
    return data
