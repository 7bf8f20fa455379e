"""Instructions that numba has no function for: addresses, wide stores, powers of two."""

import llvmlite.ir as ir
import numpy as np
from numba.cuda.extending import intrinsic

try:
    from numba.cuda import cgutils, types
except ImportError:  # the numba.cuda inside numba itself, all there is on macOS
    from numba.core import cgutils, types


@intrinsic
def row_at(typingctx, array, index):
    """The array, an address, from array[index] on.

    An index of 32 bits from there on then costs one or two instructions; one from the start, four.
    LLVM would add both up first, so it does not see what the instruction in between does: nothing.
    """

    def codegen(context, builder, signature, args):
        i = context.cast(builder, args[1], signature.args[1], types.intp)
        pointer = builder.gep(args[0], [i])
        in_global = pointer.type.pointee.as_pointer(1)  # or its loads would be of any memory
        kind = ir.FunctionType(in_global, [pointer.type])
        same = ir.InlineAsm(kind, "cvta.to.global.u64 $0, $1;", "=l,l", side_effect=False)
        return builder.addrspacecast(builder.call(same, [pointer]), pointer.type)

    return array(array, index), codegen


@intrinsic
def store4_at(typingctx, array, index, values):
    """Writes `values` to array[i], …, array[i + 3] in one store.

    Args:
        array: an address of a 4-byte type, a multiple of 16.
        index: (i,), a multiple of 4.
    """

    def codegen(context, builder, signature, args):
        i = cgutils.unpack_tuple(builder, args[1])[0]
        i = context.cast(builder, i, signature.args[1][0], types.intp)
        pointer = builder.gep(args[0], [i])
        vector = ir.VectorType(pointer.type.pointee, 4)
        four = ir.Constant(vector, ir.Undefined)
        for n, lane in enumerate(cgutils.unpack_tuple(builder, args[2], 4)):
            four = builder.insert_element(four, lane, ir.Constant(ir.IntType(32), n))
        builder.store(four, builder.bitcast(pointer, vector.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, index, types.UniTuple(array.dtype, 4)), codegen


@intrinsic
def exp2(typingctx, x):
    """2 to the power of a float32, right to 2^-22; 0 below 2^-126."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        power = ir.InlineAsm(kind, "ex2.approx.ftz.f32 $0, $1;", "=f,f", side_effect=False)
        return builder.call(power, args)

    return types.float32(types.float32), codegen


def _store4_at_in_python(array, index, values):
    for n in range(4):
        array[index[0] + n] = values[n]


def _exp2_in_python(x):
    return np.exp2(np.float32(x))


# What the simulator calls instead of the intrinsics; `row_at` it takes apart like any function.
row_at.py_func = lambda array, index: array[index:]
store4_at.in_python = _store4_at_in_python
exp2.in_python = _exp2_in_python
