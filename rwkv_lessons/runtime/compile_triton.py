"""Compiling this library's Triton kernels: with its own assembler, and several at the same time.

A kernel takes one to three seconds to compile, most of them outside of Python's lock. An operation
of several kernels hands over all of its launches before it makes the first: the first call then
waits for the longest compilation, not for their sum.
"""

import dataclasses
import functools
import os
import subprocess
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
        known = ptx_get_version(assembler(self.target.arch).release)
        return dataclasses.replace(options, ptx_version=known)

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
    create = kernel.create_binder

    def create_binder():
        made = create()
        compile = kernel.compile

        def compile_for_own_target(src, target, **options):
            return compile(src, target=own_target(target), **options)

        kernel.compile = compile_for_own_target
        return made

    kernel.device_caches = defaultdict(create_binder)
    return kernel


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
        done = subprocess.run(
            [*command, source, "-o", result], capture_output=True, text=True, close_fds=False
        )
        if knobs.nvidia.dump_ptxas_log:
            print(done.stderr)
        if done.returncode:
            raise PTXASError(
                f"{with_assembler} failed with error code {done.returncode}\n"
                f"`ptxas` stderr:\n{done.stderr}\ncommand: {' '.join(map(os.fspath, command))}"
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
    _compiled.add(kind)
    if not isinstance(launches[0][0], triton.runtime.JITFunction):
        return  # in the interpreter nothing is compiled
    # What fails here fails again at its launch, which says so.
    with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
        for kernel, _, num_warps, tensors, numbers, constants, options in launches:
            given = (*tensors, *numbers, *constants)
            kernel.warmup(*given, grid=(1,), num_warps=num_warps, **options)
