"""Whether launches are remembered, to be made again without Triton.

A remembered launch goes straight to the machine code, past Triton's launch hooks: profilers that
use them, such as Proton, do not see it. `RWKV_LESSONS_REMEMBER_LAUNCHES=0` has Triton make every
launch. So it is with versions of Triton or torch whose private parts are not those that are known.
"""

import inspect
import os
import threading
import warnings

import torch
from triton.backends.nvidia import driver
from triton.compiler import CompiledKernel

VARIABLE = "RWKV_LESSONS_REMEMBER_LAUNCHES"
AT_FIRST = "self", "gridX", "gridY", "gridZ", "stream", "function"
AFTER = "kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook"
FORMAT_OF_3_6 = "iiiKKppOOOOOO"  # of what its launcher in C takes before a kernel's arguments

# Triton loads a kernel at its first launch, and not safely if another thread makes that, too.
first_launches = threading.RLock()
machine_code = {}  # by kernel and all that chooses it: launcher, code and metadata, as Triton's own


class UnknownTriton(UserWarning):
    """Kernels are launched by Triton alone, which takes the host longer."""


def unknown():
    """What is not there, or not as remembered launches need it."""
    names = _parameters(driver.CudaLauncher.__call__)
    as_in_3_7 = names == (*AT_FIRST, *AFTER, "args")
    as_in_3_6 = names == (*AT_FIRST, "args")
    if not as_in_3_7 and not (as_in_3_6 and driver._BASE_ARGS_FORMAT == FORMAT_OF_3_6):
        yield f"triton's CudaLauncher.__call__({', '.join(names)})"
    has = {*CompiledKernel.__init__.__code__.co_names, *vars(CompiledKernel)}
    yield from sorted(f"CompiledKernel.{x}" for x in {"run", "function", "packed_metadata"} - has)
    if tile_encoder() is None:
        yield "triton's make_tensordesc_arg"
    if torch.version.cuda and not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        yield "torch._C._cuda_getCurrentRawStream"


def tile_encoder():
    """Triton's own (description of tiles, metadata) → what a kernel gets; None if it is unknown.

    From 3.8 on it takes a third argument, which other vendors' GPUs need and this one ignores.
    """
    encode = getattr(driver, "make_tensordesc_arg", None)
    names = _parameters(encode) if encode else ()
    if names == ("arg", "metadata", "_"):
        return lambda described, metadata: encode(described, metadata, ())
    return encode if names == ("arg", "metadata") else None


def _parameters(function):
    return tuple(inspect.signature(function).parameters)


def may_remember():
    """Whether launches are to be remembered; warns if private parts are unknown."""
    if os.environ.get(VARIABLE) == "0":
        return False
    try:
        missing = ", ".join(unknown())
    except (AttributeError, TypeError, ValueError) as error:
        missing = str(error)
    if missing:
        warnings.warn(
            f"this version of Triton or torch is unknown: {missing}. Triton makes every launch, "
            "which takes longer.",
            UnknownTriton,
            stacklevel=2,
        )
    return not missing


REMEMBERS = may_remember()
