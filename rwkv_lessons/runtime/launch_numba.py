"""What numba.cuda needs in order to run on torch tensors, and does not bring."""

import contextlib
import re
import threading
from functools import cache
from types import SimpleNamespace

import llvmlite.ir as ir
import numpy as np
from numba import cuda
from numba.cuda.extending import intrinsic

try:
    from numba.cuda import cgutils, types
except ImportError:  # the numba.cuda inside numba itself, all there is on macOS
    from numba.core import cgutils, types

from .bounded import remembered

_thread = threading.local()


def as_array(x):
    """A numba view of a CUDA tensor, without a copy; a numpy view of a CPU tensor."""
    return cuda.as_cuda_array(x.detach()) if x.is_cuda else x.detach().numpy()


def stream():
    """torch's current stream, as numba wants it."""
    import torch

    return cuda.external_stream(torch.cuda.current_stream().cuda_stream)


def ceil_div(a, b):
    """a / b rounded up: how many blocks of b cover a."""
    return -(-a // b)


@intrinsic
def load4(typingctx, array, index):
    """array[…, i], …, array[…, i + 3] as a tuple, in one load.

    Args:
        array: C-contiguous, of a 4-byte type, in global, shared or local memory.
        index: a tuple with one integer per dimension; the last is a multiple of 4, and so is the
            size of the last dimension (16-byte alignment is assumed, not checked).
    """
    signature = types.UniTuple(array.dtype, 4)(array, index)

    def codegen(context, builder, signature, args):
        pointer = _pointer4(context, builder, signature, args)
        vector = builder.load(pointer, align=16)
        lanes = [builder.extract_element(vector, ir.Constant(ir.IntType(32), n)) for n in range(4)]
        return cgutils.pack_array(builder, lanes)

    return signature, codegen


@intrinsic
def store4(typingctx, array, index, values):
    """Writes the four `values` to array[…, i], …, array[…, i + 3] in one store; see `load4`."""
    signature = types.void(array, index, types.UniTuple(array.dtype, 4))

    def codegen(context, builder, signature, args):
        pointer = _pointer4(context, builder, signature, args)
        vector = ir.Constant(pointer.type.pointee, ir.Undefined)
        for n, lane in enumerate(cgutils.unpack_tuple(builder, args[2], 4)):
            vector = builder.insert_element(vector, lane, ir.Constant(ir.IntType(32), n))
        builder.store(vector, pointer, align=16)
        return context.get_dummy_value()

    return signature, codegen


def _pointer4(context, builder, signature, args):
    """The address of array[index], as a pointer to a vector of four."""
    array_type, index_type = signature.args[:2]
    array = context.make_array(array_type)(context, builder, args[0])
    index = [
        context.cast(builder, i, t, types.intp)
        for i, t in zip(cgutils.unpack_tuple(builder, args[1]), index_type.types, strict=True)
    ]
    pointer = cgutils.get_item_pointer(context, builder, array_type, array, index)
    vector = ir.VectorType(pointer.type.pointee, 4)
    return builder.bitcast(pointer, vector.as_pointer(pointer.type.addrspace))


@intrinsic
def bfloat16_to_float32(typingctx, bits):
    """The float32 whose upper half is `bits`, a bfloat16 seen as uint16: numba has no bfloat16."""

    def codegen(context, builder, signature, args):
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, wide.type(16)), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def float32_to_bfloat16(typingctx, x):
    """The bfloat16 nearest to x, ties to even, as uint16."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], ir.IntType(32))
        word = bits.type
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        rounded = builder.add(bits, builder.add(odd, word(0x7FFF)))
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        rounded = builder.select(nan, word(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(rounded, word(16)), ir.IntType(16))

    return types.uint16(types.float32), codegen


def _load4_in_python(array, index):
    *rest, i = index
    return tuple(array[(*rest, i + n)] for n in range(4))


def _store4_in_python(array, index, values):
    *rest, i = index
    for n in range(4):
        array[(*rest, i + n)] = values[n]


def _bfloat16_to_float32_in_python(bits):
    return np.array(int(bits) << 16, np.uint32).view(np.float32)[()]


def _float32_to_bfloat16_in_python(x):
    bits = int(np.array(x, np.float32).view(np.uint32))
    return 0x7FC0 if np.isnan(x) else bits + 0x7FFF + (bits >> 16 & 1) >> 16


# What the lessons' simulator calls instead of the intrinsics.
load4.in_python = _load4_in_python
store4.in_python = _store4_in_python
bfloat16_to_float32.in_python = _bfloat16_to_float32_in_python
float32_to_bfloat16.in_python = _float32_to_bfloat16_in_python


@cache
def compiled(kernel, types, block, capability):
    """`kernel` as machine code for arguments of these numba types, ready for `launch`.

    numba's own launch looks at every array at every call, which costs more than a short kernel.
    A kernel whose arrays are `types.CPointer` takes plain addresses, and needs no looking at.
    Told the size of a block, the compiler may give a thread up to 255 registers.
    """
    code, name, _ = linked(kernel, types, block, capability)
    return code.get_kernel(name)


def linked(kernel, types, block, capability, verbose=False):
    """A cubin, the kernel's name in it, and what the linker says of it if it is to be `verbose`.

    Needs no GPU; arguments as of `compiled`.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    with _compiling_for(capability):
        ptx, _ = cuda.compile_ptx(kernel.py_func, types, cc=capability, launch_bounds=(block, 1))
    name = re.search(r"\.entry\s+([\w$]+)", ptx)[1]
    options = LinkerOptions(arch="sm_{}{}".format(*capability), verbose=verbose)
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    return linker.link("cubin"), name, linker.get_info_log()


@contextlib.contextmanager
def _compiling_for(capability):
    """numba compiles device functions for this capability, too, as it does a kernel told its own.

    It would ask the current device, which opens a context on one, and fails without a GPU. The
    lock is numba's own: no other thread compiles meanwhile. warplens, which this package does not
    need, has the same few lines; the lock keeps the two apart as well.
    """
    from numba.cuda import dispatcher
    from numba.cuda.core.compiler_lock import global_compiler_lock

    device = SimpleNamespace(compute_capability=capability)
    with global_compiler_lock:
        own, dispatcher.get_current_device = dispatcher.get_current_device, lambda: device
        try:
            yield
        finally:
            dispatcher.get_current_device = own


@remembered
def _configuration(grid, block):
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block)


@remembered
def _stream(address, device):  # address 0, the default stream, is another one on each device
    from cuda.core import Stream

    return Stream.from_handle(address)


def launch(kernel, grid, block, *args):
    """Runs a `compiled` kernel on the current device and torch's current stream.

    Args:
        args: addresses of arrays (`x.data_ptr()`) and 8-byte integers.
    """
    import torch
    from cuda.core import Device
    from cuda.core import launch as launch_on

    # As Triton asks for it: torch.cuda.current_stream() costs as much as the whole launch.
    device = torch.cuda.current_device()
    if getattr(_thread, "device", None) != device:  # torch binds a device when it first needs it,
        Device(device).set_current()  # and the threads of its backward pass may not have yet
        _thread.device = device
    current_stream = _stream(torch._C._cuda_getCurrentRawStream(device), device)
    launch_on(current_stream, _configuration(grid, block), kernel, *args)
