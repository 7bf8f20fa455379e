"""Compiling this library's Triton kernels: with its own assembler, and several at the same time.

A kernel takes one to three seconds to compile, most of them outside of Python's lock. An operation
of several kernels hands over all of its launches before it makes the first: the first call then
waits for the longest compilation, not for their sum. A forward pass of which gradients are wanted
hands over those of the backward pass, too.
"""

import contextlib
import contextvars
import copy
import dataclasses
import functools
import os
import subprocess
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import triton
from triton import knobs
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import (
    CUDABackend,
    ptx_get_version,
    sm_arch_from_capability,
)
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.errors import PTXASError

from .assembler import assembler

WORKERS = 16  # threads; some wait for compilers and assemblers outside of this process
NAME = "rwkv_lessons"  # of the target that means: NVIDIA's, and the assembler of assembler.py
_compiled = set()


class OwnBackend(CUDABackend):
    """Triton's backend for NVIDIA, of which the last step is taken by another assembler.

    Which one is part of Triton's cache key. Kernels of other packages do not come here: their
    target is "cuda".
    """

    @staticmethod
    def supports_target(target):
        return target.backend == NAME

    @functools.lru_cache  # noqa: B019  as Triton's; a backend lives as long as the process
    def hash(self):
        return f"{super().hash()}-{assembler(self.target.arch)}"

    def parse_options(self, opts):
        """With PTX that the assembler knows, which may be older than the one Triton writes for."""
        options = super().parse_options(opts)
        if options.ptx_version is not None:
            return options
        newest = ptx_get_version(assembler(self.target.arch).release)
        return dataclasses.replace(options, ptx_version=newest)

    def make_cubin(self, src, metadata, opt, capability):
        return assemble(src, opt, capability, assembler(capability))


class NoDriver(CudaDriver):
    """Triton asks each backend's driver whether it is the one; Triton's own is."""

    @staticmethod
    def is_active():
        return False


backends.setdefault(NAME, Backend(OwnBackend, NoDriver))


def own_target(target):
    """The same GPU, for kernels that this library's assembler is to assemble."""
    return GPUTarget(NAME, target.arch, target.warp_size)


def assembled(kernel):
    """Decorates a kernel of Triton or Gluon: `OwnBackend` compiles it.

    In Triton's interpreter, where nothing is compiled, it is left as it is.
    """
    if not isinstance(kernel, triton.runtime.JITFunction):
        return kernel

    def create_binder():
        # Triton puts its own `compile` on the kernel first: on a copy, no other thread meets it.
        model = copy.copy(kernel)
        binder = type(kernel).create_binder(model)

        def compile_for_own_target(src, target, **options):
            compiled = model.compile(src, target=own_target(target), **options)
            build_launcher(compiled)
            return compiled

        kernel.CompiledKernel, kernel.ASTSource = model.CompiledKernel, model.ASTSource
        kernel.compile = compile_for_own_target
        return binder

    kernel.device_caches = defaultdict(create_binder)
    return kernel


def build_launcher(compiled):
    """Has Triton build what launches a kernel.

    Triton 3.6 would do so at the first launch, one kernel after the other: it is a program in C, a
    third of a second for the compiler. It stays in Triton's cache.
    """
    if launcher := getattr(triton.runtime.driver.active, "launcher_cls", None):
        launcher(compiled.src, compiled.metadata)


def assemble(ptx, options, capability, with_assembler):
    """PTX as a cubin.

    Args:
        options: Triton's `CUDAOptions`.
        with_assembler: an `Assembler`.

    Raises:
        PTXASError: it does not assemble; the message has what ptxas said.
    """
    command = [with_assembler.path, "-lineinfo", "-v"]
    command += ["-suppress-debug-info"] * bool(knobs.compilation.disable_line_info)
    command += ["--opt-level", "0"] * bool(knobs.nvidia.disable_ptxas_opt)
    command += ["--fmad=false"] * (not options.enable_fp_fusion)
    command += options.ptx_options.split() if options.ptx_options else []
    command.append(f"--gpu-name={sm_arch_from_capability(capability)}")
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        process = subprocess.run(
            [*command, source, "-o", result], capture_output=True, text=True, close_fds=False
        )
        if knobs.nvidia.dump_ptxas_log:
            print(process.stderr)
        if process.returncode:
            raise PTXASError(
                f"{with_assembler} failed with error code {process.returncode}\n"
                f"`ptxas` stderr:\n{process.stderr}\ncommand: {' '.join(map(os.fspath, command))}"
            )
        return result.read_bytes()


def compile_together(kind, launches):
    """Compiles the kernels of `launches`, unless it did so before for the same `kind`.

    Args:
        kind: all that chooses the machine code: device, dtypes, constants, which tensors are None.
        launches: arguments of `launch_triton.launch`, its options as a dict at the end.
    """
    if kind in _compiled:
        return
    if isinstance(launches[0][0], triton.runtime.JITFunction):  # an interpreter compiles nothing
        # In a context of its own: an interrupt would leave Triton's mode set for all that follows.
        contextvars.Context().run(_compile, launches)
    _compiled.add(kind)


def _compile(launches):
    try:
        with ThreadPoolExecutor(WORKERS) as threads:
            with triton.AsyncCompileMode(threads, ignore_errors=True):
                for kernel, _, num_warps, tensors, numbers, constants, options in launches:
                    args = (*tensors, *numbers, *constants)
                    kernel.warmup(*args, grid=(1,), num_warps=num_warps, **options)
    finally:
        for kernel, *_ in launches:
            forget_failures(kernel)


def forget_failures(kernel):
    """Has a kernel that did not compile be compiled again at its launch, which says why it cannot.

    Triton 3.7 keeps the failure, and would raise it at every launch: also that of a ptxas which an
    interrupt ended.
    """
    for compiled, *_ in list(kernel.device_caches.values()):  # a thread may add another device
        for key, code in list(compiled.items()):
            future = vars(code).get("future")
            if future is not None and future.done() and future.exception() is not None:
                compiled.pop(key, None)


class Launches:
    """The launches of a call: each at once or, if their kind is new, when all are compiled.

    Args:
        kind: as of `compile_together`.
        ahead: only to be compiled, now, for a later call.
    """

    def __init__(self, kind, ahead=False):
        self.kind, self.ahead = kind, ahead
        self.kernels, self.waiting = [], [] if ahead or kind not in _compiled else None
        self.ran, self.scratch = [], []  # for `Replay`

    def __call__(self, launch, *args, **options):
        """launch(kernel, …), with arguments as `launch_triton.launch` takes them."""
        if self.waiting is None:
            self.ran.append((launch(*args, **options), *args))
        else:
            self.kernels.append((*args, options))
            self.waiting.append(partial(launch, *args, **options))

    def empty(self, shape, device, dtype=torch.float32):
        """A tensor for these launches alone, as `torch.empty` makes it."""
        x = torch.empty(shape, dtype=dtype, device=device)
        self.scratch.append(x)
        return x

    def then(self, function, *args, **named):
        """Calls what is no launch in its turn."""
        self.ran.append((None,))
        if self.waiting is None:
            function(*args, **named)
        else:
            self.waiting.append(partial(function, *args, **named))

    def finish(self, others=list):
        """Compiles and launches what waits.

        Args:
            others: () → launches, as of `compile_together`, that are compiled with these.
        """
        if self.waiting is None or self.ahead:
            return
        kernels = self.kernels
        if isinstance(kernels[0][0], triton.runtime.JITFunction):
            with contextlib.suppress(torch.OutOfMemoryError):  # it compiles them at its turn, then
                kernels = kernels + others()
        compile_together(self.kind, kernels)
        for start in self.waiting:
            start()
