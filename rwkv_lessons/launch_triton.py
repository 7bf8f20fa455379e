"""Launching a Triton kernel for less than `kernel[grid](…)` costs the host.

Triton's own launch looks at every argument at every call, to find the machine code that was made
for such arguments. Whoever launches the same kernel again and again knows what can differ, says so
in a key, and goes from there straight to the machine code.
"""

import triton

_compiled = {}


def launch(kernel, grid, key, tensors, *rest, num_warps):
    """Runs kernel[grid,](*tensors, *rest) on torch's current stream, for tensors on its device.

    Args:
        grid: number of programs.
        key: of what makes other machine code, besides the tensors: the device and constants.
            Equal keys must mean equal machine code.
        tensors: the first arguments of the kernel, in its order, None where there is none.
        rest: its other arguments: numbers that it does not specialise on, and constants.
    """
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    key = (id(kernel), key, *[None if x is None else x.dtype for x in tensors])
    bits = 0
    for address in addresses:
        bits |= address or 0
    if bits % 16:  # Triton makes wider loads for addresses that are multiples of 16
        key = (*key, *[address is not None and address % 16 == 0 for address in addresses])
    found = _compiled.get(key)
    if found is not None:
        found[grid, 1, 1](*addresses, *rest)
        return
    made = kernel[(grid,)](*tensors, *rest, num_warps=num_warps)
    if isinstance(kernel, triton.runtime.JITFunction):  # in the interpreter nothing is made
        _compiled[key] = made
