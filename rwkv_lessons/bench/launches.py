"""What the library launches on a GPU that is not there: recorded from its own host code.

An operation's entry names the calls, `calls`. Their host code runs on tensors without memory, with
a GPU pretended. Nothing is compiled or launched: of each kernel it is written down what Triton, or
numba, would compile.
"""

import contextlib
import sys
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget

from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import loaded
from rwkv_lessons.runtime import compile_triton, devices, launch_numba, launch_tiles, launch_triton
from rwkv_lessons.runtime.architectures import number_of


class Nothing(dict):
    """A cache that never has what is asked for, or a set that has everything."""

    def get(self, key, default=None):
        return None

    def __contains__(self, key):
        return True

    def add(self, key):
        pass


class CompilingDriver:
    """As much of Triton's driver as choosing the machine code takes."""

    def __init__(self, architecture):
        self.target = GPUTarget("cuda", number_of(architecture), 32)

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target


@contextlib.contextmanager
def recorded(architecture):
    """A list that fills with what is launched meanwhile, as if on a GPU of this architecture."""
    launches, driver = [], CompilingDriver(architecture)

    def in_triton(kernel, key, signature, device, constants, options, attributes, warmup):
        launches.append((kernel, signature, constants, options, attributes))

    def run(kernel, *args, grid, warmup, **options):
        return real_run(kernel, *args, grid=grid, warmup=True, **options)

    def in_numba(kernel, signature, threads, capability):
        launches.append((kernel, signature, threads, capability))

    real_run = triton.JITFunction.run
    active = triton.runtime.driver._active
    triton.runtime.driver.set_active(driver)
    patches = [
        mock.patch.object(triton.JITFunction, "_do_compile", in_triton),
        mock.patch.object(triton.JITFunction, "run", run),
        mock.patch.object(devices, "gpu_of", lambda device: devices.gpu_like(architecture)),
        mock.patch.object(torch.cuda, "current_device", lambda: None),
        mock.patch.object(compile_triton, "_compiled", Nothing()),
        mock.patch.object(launch_triton, "machine_code", Nothing()),
        mock.patch.object(launch_tiles, "machine_code", Nothing()),
    ]
    patches += _numba_patches(in_numba)
    try:
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield launches
    finally:
        triton.runtime.driver._active = active


def _numba_patches(in_numba):
    """Of every module that launches kernels of numba."""
    for module in [m for name, m in sys.modules.items() if name.startswith("rwkv_lessons.")]:
        if getattr(module, "compiled", None) is not launch_numba.compiled:
            continue
        yield mock.patch.object(module, "compiled", in_numba)
        yield mock.patch.object(module, "launch", lambda *_: None)
        for name in [name for name in vars(module) if name.startswith("compiled_kernel")]:
            yield mock.patch.object(module, name, getattr(module, name).__wrapped__)


def calls(gpu):
    """(name, function) of each call that reaches kernels on this GPU, of all operations."""
    for function in dict.fromkeys(entry.calls for entry in OPERATIONS.values() if entry.calls):
        yield from loaded(function)(gpu)
