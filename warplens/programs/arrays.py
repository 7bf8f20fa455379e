"""Arrays on a GPU that is not there: the CPU's memory, reached by the host as a GPU's would be."""

import contextlib

import numpy as np

from ..cuda.checked_array import Written, poisoned

NOT_CONTIGUOUS = (
    "Array contains non-contiguous buffer and cannot be transferred as a single memory region. "
    "Please ensure contiguous buffer with numpy .ascontiguousarray()"
)


class DeviceArray:
    """What `cuda.to_device` returns. The host copies from it and to it; kernels compute with it."""

    __cuda_ndarray__ = True

    def __init__(self, data, written=None, stream=0):
        # `written`: a flag per byte of fresh memory, None where all of it holds something.
        self.data, self.written, self.stream = data, written, stream

    shape = property(lambda self: self.data.shape)
    strides = property(lambda self: self.data.strides)
    dtype = property(lambda self: self.data.dtype)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    nbytes = alloc_size = property(lambda self: self.data.nbytes)
    itemsize = property(lambda self: self.data.itemsize)
    flags = property(lambda self: self.data.flags)
    T = property(lambda self: self.transpose())

    @property
    def device_ctypes_pointer(self):
        return self.data.ctypes.data_as(__import__("ctypes").c_void_p)

    @property
    def __cuda_array_interface__(self):
        interface = dict(self.data.__array_interface__)
        return interface | {"version": 3, "stream": None}

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError(
                "an array on a GPU has to be copied to the host: copy=False is not possible"
            )
        return self.data.astype(dtype or self.dtype, copy=True)

    def __len__(self):
        return len(self.data)

    def __repr__(self):
        return f"<array on the GPU that is not there: {self.dtype}, shape {self.shape}>"

    # Copies.
    def copy_to_host(self, ary=None, stream=0):
        if ary is None:
            ary = np.empty_like(self.data)
        else:
            _check_alike(self.data, ary)
        np.copyto(ary, self.data)
        return ary

    def copy_to_device(self, ary, stream=0):
        mine, source = _core(self.data), _core(ary.data if isinstance(ary, DeviceArray) else ary)
        if isinstance(ary, DeviceArray):
            _contiguous(ary.data)
        else:  # of the host, it is first laid out as this one
            order = "C" if mine.flags.c_contiguous else "F"
            source = np.array(source, order=order, ndmin=mine.ndim)
        _contiguous(mine)
        _check_alike(mine, source)
        np.copyto(mine, source.reshape(mine.shape))
        self.written = None

    def fill(self, value):
        self._view(self.data).data.fill(value)

    def bind(self, stream=0):
        return DeviceArray(self.data, self.written, stream)

    # Views.
    def _view(self, data):
        if self.written is not None:  # flags are kept of whole arrays
            self.written[:] = b"\1" * len(self.written)
            self.written = None
        return DeviceArray(data, stream=self.stream)

    def __getitem__(self, index):
        value = self.data[index]
        return self._view(value) if isinstance(value, np.ndarray | np.void) else value

    getitem = __getitem__

    def __setitem__(self, index, value):
        self._view(self.data)
        self.data[index] = value.data if isinstance(value, DeviceArray) else value

    def setitem(self, index, value, stream=0):
        self[index] = value

    def __iter__(self):
        return (self[n] for n in range(len(self)))

    def transpose(self, axes=None):
        return self._view(self.data.transpose(axes))

    def reshape(self, *shape, **options):
        return self._view(self.data.reshape(*shape, **options))

    def ravel(self, order="C", stream=0):
        if not (self.data.flags.c_contiguous or self.data.flags.f_contiguous):
            raise NotImplementedError("ravel of an array that is not contiguous")
        return self._view(self.data.ravel(order))

    def squeeze(self, axis=None, stream=0):
        return self._view(self.data.squeeze(axis))

    def view(self, dtype):
        return self._view(self.data.view(dtype))

    def split(self, section, stream=0):
        return [self[n : n + section] for n in range(0, len(self), section)]

    def is_c_contiguous(self):
        return self.data.flags.c_contiguous

    def is_f_contiguous(self):
        return self.data.flags.f_contiguous

    def __getattr__(self, name):
        if name in (vars(self)["data"].dtype.names or ()):
            return self[name]
        raise AttributeError(f"an array on a GPU has no {name!r}: copy_to_host() first")


def flags_of(array):
    """Which elements of a device array were written, as a `GuardedArray` keeps it."""
    written = array.written
    return None if written is None else Written(written, array.itemsize)


def _core(array):
    """The array without its repeated axes, which have stride 0."""
    array = np.asarray(array)
    if not array.size:
        return array
    return array[tuple(slice(None) if stride else 0 for stride in array.strides)]


def _contiguous(array):
    core = _core(array)
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(NOT_CONTIGUOUS)


def _check_alike(mine, other):
    """As numba: the same dtype, and, but for axes of length one, shape and strides."""
    if mine.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {mine.dtype} vs. {other.dtype}")
    a, b = mine.squeeze(), np.asarray(other).squeeze()
    if a.shape != b.shape:
        raise ValueError(f"incompatible shape: {mine.shape} vs. {other.shape}")
    if a.size and a.strides != b.strides:
        raise ValueError(f"incompatible strides: {mine.strides} vs. {other.strides}")


# Making them.
def to_device(obj, stream=0, copy=True, to=None):
    if to is not None:
        to.copy_to_device(obj, stream)
        return to
    if isinstance(obj, DeviceArray):
        return obj
    array = obj if isinstance(obj, np.void) else np.asarray(obj)
    if isinstance(array, np.void):
        return DeviceArray(np.array(array))
    _contiguous(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if 0 in array.strides and array.size:  # broadcast: the copy keeps its strides
        core = array[tuple(slice(None) if s else slice(0, 1) for s in array.strides)]
        core = np.array(core, order=order)
        strides = [s if t else 0 for s, t in zip(core.strides, array.strides, strict=True)]
        return DeviceArray(np.lib.stride_tricks.as_strided(core, array.shape, strides))
    return DeviceArray(np.array(array, order=order))


def auto_device(obj, stream=0, copy=True, user_explicit=False):
    return (obj, False) if isinstance(obj, DeviceArray) else (to_device(obj, stream, copy), True)


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    """Fresh memory holds NaN, or a large odd number: a GPU's holds anything."""
    dtype = np.dtype(dtype) if not hasattr(dtype, "bitwidth") else np.dtype(str(dtype))
    fresh = poisoned(shape, dtype)
    if strides is not None:
        data = np.ndarray(shape, dtype, strides=strides, order=order)
        data[...] = fresh
        return DeviceArray(data, stream=stream)
    data = np.asarray(fresh, order=order)
    return DeviceArray(data, bytearray(data.nbytes), stream)


def device_array_like(ary, stream=0):
    return device_array(ary.shape, ary.dtype, _strides_like(ary), _order(ary), stream)


def _order(ary):
    return "F" if ary.flags["F_CONTIGUOUS"] and not ary.flags["C_CONTIGUOUS"] else "C"


def _strides_like(ary):
    """Those of fresh memory in the order of the axes of one that is not contiguous; else None."""
    if ary.ndim <= 1 or ary.flags["C_CONTIGUOUS"] or ary.flags["F_CONTIGUOUS"]:
        return None
    strides, step = [0] * ary.ndim, ary.dtype.itemsize
    for axis in sorted(range(ary.ndim), key=lambda n: ary.strides[n]):
        strides[axis], step = step, step * ary.shape[axis]
    return tuple(strides)


class HostArray(np.ndarray):
    """Pinned, mapped or managed memory: an array of numpy, on which both sides compute."""

    def copy_to_host(self, ary=None, stream=0):
        if ary is None:
            return np.array(self)
        ary[...] = self
        return ary

    def copy_to_device(self, ary, stream=0):
        self[...] = ary.data if isinstance(ary, DeviceArray) else ary


def host_array(
    shape, dtype=np.float64, strides=None, order="C", stream=0, portable=False, wc=False, **options
):
    """`pinned_array`, `mapped_array` and `managed_array`."""
    data = np.ndarray(shape, dtype, strides=strides, order=order).view(HostArray)
    data[...] = poisoned(shape, dtype)
    return data


def host_array_like(ary, stream=0, portable=False, wc=False):
    return host_array(ary.shape, ary.dtype, _strides_like(ary), _order(ary))


@contextlib.contextmanager
def pinned(*arrays):
    yield


@contextlib.contextmanager
def mapped(*arrays, **options):
    """The arrays as kernels reach them: the same memory."""
    device_arrays = [DeviceArray(array) for array in arrays]
    yield device_arrays[0] if len(device_arrays) == 1 else device_arrays


def as_cuda_array(obj, sync=True):
    """The array of an object that has `__cuda_array_interface__`, or the array that it is."""
    if isinstance(obj, DeviceArray | np.ndarray):
        return obj
    return from_interface(obj.__cuda_array_interface__, owner=obj, sync=sync)


def from_interface(desc, owner=None, sync=True):
    class Holder:
        __array_interface__ = {k: v for k, v in desc.items() if k not in ("stream", "mask")}

    holder = Holder()
    holder.owner = owner
    return DeviceArray(np.asarray(holder))


def is_cuda_array(obj):
    return hasattr(obj, "__cuda_array_interface__")


def is_cuda_ndarray(obj):
    return getattr(obj, "__cuda_ndarray__", False)


# How an argument is copied before and after a launch; here both sides have one memory.
class ArgHint:
    def __init__(self, value):
        self.value = value


class In(ArgHint):
    """Copied to the GPU: what the kernel writes there does not come back."""


class Out(ArgHint):
    """Copied back: what the host's array held does not reach the kernel."""


class InOut(ArgHint):
    """Copied both ways."""
