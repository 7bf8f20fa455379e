"""Launching a Triton kernel for less than `kernel[grid](…)` costs the host.

Triton's own launch looks at every argument at every call, to find the machine code that was made
for such arguments. Whoever launches the same kernel again and again knows what can differ, says so
in a key, and goes from there straight to the machine code.
"""

import torch
import triton

from .gluon_names import restore_older_names
from .packages import warn_of_untried_triton
from .remembered_launches import REMEMBERS, first_launches, machine_code

warn_of_untried_triton(triton.__version__)
restore_older_names()


def launch(kernel, programs, num_warps, tensors, numbers, constants, **options):
    """kernel[programs,](*tensors, *numbers, *constants), on torch's current device and stream.

    Args:
        tensors: the kernel's first arguments, on that device, contiguous, or None; not the first.
        numbers: the next ones, all of which are in its `do_not_specialize`.
        constants: the last ones, its `tl.constexpr`.
        options: more of Triton's, the same whenever the constants are.

    Returns:
        What it ran, for `Replay`: Triton's launcher, the machine code and its metadata. None where
        Triton launched it, as it does at first.
    """
    addresses, dtypes, bits = [], [], 0
    for x in tensors:
        if x is None:
            addresses.append(None)
            dtypes.append(None)
        else:
            address = x.data_ptr()
            bits |= address
            addresses.append(address)
            dtypes.append(x.dtype)
    device = tensors[0].get_device()
    key = (id(kernel), device, num_warps, constants, *dtypes)
    if bits % 16:  # Triton makes wider loads for addresses that are multiples of 16
        key = (*key, *[address is not None and address % 16 == 0 for address in addresses])
    cached = machine_code.get(key)
    if cached is not None:  # what compiled[programs, 1, 1](…) does, without its hooks for profilers
        run, function, metadata = cached
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(
            programs, 1, 1, stream, function, metadata, None, None, None,
            *addresses, *numbers, *constants,
        )  # fmt: skip
        return cached
    with first_launches:
        args = (*tensors, *numbers, *constants)
        compiled = kernel[(programs,)](*args, num_warps=num_warps, **options)
        if REMEMBERS and compiled is not None and isinstance(kernel, triton.runtime.JITFunction):
            machine_code[key] = compiled.run, compiled.function, compiled.packed_metadata
    return None
