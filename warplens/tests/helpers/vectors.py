"""Two intrinsics of a user: four neighbours in one load or store, and what they are in Python."""

import llvmlite.ir as ir
from numba.cuda.extending import intrinsic

try:
    from numba.cuda import cgutils, types
except ImportError:  # the numba.cuda inside numba itself, all there is on macOS
    from numba.core import cgutils, types


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


def _load4_in_python(array, index):
    *rest, i = index
    return tuple(array[(*rest, i + n)] for n in range(4))


def _store4_in_python(array, index, values):
    *rest, i = index
    for n in range(4):
        array[(*rest, i + n)] = values[n]


load4.in_python = _load4_in_python
store4.in_python = _store4_in_python
