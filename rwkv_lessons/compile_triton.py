"""Compiling the Triton kernels of an operation at the same time, not one after the other.

A kernel takes one to three seconds to compile, most of them outside of Python's lock. An operation
of several kernels hands over all of its launches before it makes the first: the first call then
waits for the longest compilation, not for their sum.
"""

from concurrent.futures import ThreadPoolExecutor

import triton

_compiled = set()


def compile_together(kind, launches):
    """Compiles the kernels of `launches`, unless it did so before for the same `kind`.

    Args:
        kind: all that chooses the machine code: device, dtypes, constants, which tensors are None.
        launches: arguments of `launch_triton.launch`, its options as a dict at the end.
    """
    if kind in _compiled:
        return
    _compiled.add(kind)
    if not isinstance(launches[0][0], triton.runtime.JITFunction):
        return  # in the interpreter nothing is compiled
    with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads):
        for kernel, _, num_warps, tensors, numbers, constants, options in launches:
            given = (*tensors, *numbers, *constants)
            kernel.warmup(*given, grid=(1,), num_warps=num_warps, **options)
