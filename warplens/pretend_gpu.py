"""A GPU that is not there, for scripts written for one: "cuda" means the CPU while it lasts.

Tensors lie in the CPU's memory and say that they are on "cuda:0"; torch, Triton and numba answer
questions about the GPU as an H200 would; streams and events do nothing, since all is in order.
"""

import contextlib
import functools
import sys
import time
import types
from unittest.mock import patch

import numpy as np

from .architectures import ARCHITECTURES
from .compiled.assembly import assembly

ARCH, NAME, GIB = "sm_90", "an H200 that is not there", 1024**3
H200 = ARCHITECTURES[ARCH]


@contextlib.contextmanager
def pretend_gpu():
    """While it lasts, a script may ask for a GPU, and gets the CPU.

    `launched` and `run` of launched.py stand where kernels are launched; here is all the rest.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            _pretend_torch(stack)
        with contextlib.suppress(ImportError):
            _pretend_triton(stack)
        with contextlib.suppress(ImportError):
            _pretend_numba(stack)
        with contextlib.suppress(ImportError):
            _pretend_mlir(stack)
        yield


def real_devices():
    """A context in which tensors say where they are."""
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    return sys.modules["torch"]._C.DisableTorchFunction()


# Of all three.
class Stream:
    """Everything on it is done."""

    cuda_stream = handle = device = 0

    def __init__(self, *args, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def nothing(self, *args, **options):
        """Waiting for what is done, or telling it to wait."""

    synchronize = wait_stream = wait_event = auto_synchronize = nothing

    def query(self):
        return True

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event


class Event(Stream):
    """A moment of the CPU's clock."""

    when = 0.0
    wait = Stream.nothing

    def record(self, stream=None):
        self.when = time.perf_counter()

    def elapsed_time(self, later):
        return max(1e-6, 1000 * (later.when - self.when))


def _nothing(*args, **options):
    """A call that has nothing to do without a GPU."""


# torch.
def _pretend_torch(stack):
    import torch

    properties = types.SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        multi_processor_count=H200.sms,
        total_memory=141 * GIB,
        warp_size=32,
        max_threads_per_multi_processor=32 * H200.warps,
        regs_per_multiprocessor=H200.registers,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=H200.shared_bytes_block,
        shared_memory_per_multiprocessor=H200.shared_bytes,
        L2_cache_size=50 * 1024**2,
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_name": NAME,
        "get_device_properties": properties,
        "mem_get_info": (141 * GIB, 141 * GIB),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
    }
    names = "synchronize set_device empty_cache set_stream reset_peak_memory_stats init _lazy_init"
    stands = {name: _nothing for name in names.split()}
    stands |= {name: functools.partial(_answer, value) for name, value in answers.items()}
    stands |= {name: Stream for name in ("Stream", "current_stream", "default_stream", "stream")}
    stands |= {"Event": Event, "device": lambda *args: contextlib.nullcontext()}
    for name, value in stands.items():
        stack.enter_context(patch.object(torch.cuda, name, value))
    for name in ("range_push", "range_pop", "mark"):
        stack.enter_context(patch.object(torch.cuda.nvtx, name, _nothing))
    generator = torch.Generator
    stack.enter_context(patch.object(torch, "Generator", lambda device=None: generator()))
    stack.enter_context(patch.object(torch, "set_default_device", _nothing))
    stack.enter_context(_cuda_is_cpu())


def _answer(value, *args, **options):
    return value


def _cuda_is_cpu():
    """A mode of torch: "cuda" as an argument is the CPU, and tensors say that they are on it."""
    import torch
    from torch.overrides import TorchFunctionMode

    tensor, gpu = torch.Tensor, torch.device("cuda", 0)
    answers = {
        tensor.device.__get__: lambda x: gpu,
        tensor.is_cuda.__get__: lambda x: True,
        tensor.get_device: lambda x: 0,
        tensor.cuda: lambda x, *args, **options: x,
        tensor.pin_memory: lambda x, *args: x,
        tensor.cpu: lambda x, *args, **options: x.clone(),
        torch.device: torch.device,
    }

    def on_cpu(value):
        kind = value if isinstance(value, str) else getattr(value, "type", None)
        if isinstance(value, str | torch.device) and kind.split(":")[0] == "cuda":
            return torch.device("cpu")
        return value

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), options=None):
            options = dict(options or {})
            if function in answers:
                return answers[function](*args, **options)
            if isinstance(options.get("device"), int):
                options["device"] = "cpu"
            options.pop("pin_memory", None)
            args = [on_cpu(x) for x in args]
            if function is tensor.to and isinstance(args[1:2] and args[1], int):
                args[1] = torch.device("cpu")
            return function(*args, **{name: on_cpu(x) for name, x in options.items()})

    return CudaIsCpu()


# Triton.
def _pretend_triton(stack):
    import triton
    from triton.runtime.driver import driver

    for name in ("_active", "_default"):
        stack.enter_context(patch.object(driver, name, Driver()))
    for name in ("do_bench", "do_bench_cudagraph"):
        stack.enter_context(patch.object(triton.testing, name, bench_once))
    stack.enter_context(patch.object(triton.testing.Mark, "run", _nothing))


class Driver:
    """What Triton's own driver says about a GPU."""

    def __init__(self):
        properties = {
            "max_shared_mem": H200.shared_bytes_block,
            "max_num_regs": H200.registers,
            "multiprocessor_count": H200.sms,
            "warpSize": 32,
            "max_threads_per_sm": 32 * H200.warps,
            "sm_clock_rate": 1_980_000,  # kHz, as are memory's
            "mem_clock_rate": 3_201_000,
            "mem_bus_width": 6144,
        }
        self.utils = types.SimpleNamespace(get_device_properties=lambda device: properties)
        self.get_device_capability = lambda device=None: (9, 0)
        self.get_current_device = self.get_current_stream = lambda *device: 0
        self.set_current_device = self.clear_cache = _nothing
        self.get_benchmarker = lambda: bench_once

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self):
        import torch

        return torch.cuda

    def get_empty_cache_for_benchmark(self):
        return None


def bench_once(function, *args, quantiles=None, **options):
    """In place of `do_bench`: one call, and the milliseconds that a CPU took for it."""
    start = time.perf_counter()
    function()
    ms = 1000 * (time.perf_counter() - start)
    return [ms] * len(quantiles) if quantiles else ms


class Compiled:
    """What a launch or a `warmup` of a Triton kernel returns; its numbers are compiled for.

    Args:
        kernel, args, named: of the launch.
    """

    def __init__(self, kernel, args, named):
        self.kernel, self.args, self.named = kernel, args, named
        self.name, self._init_handles = kernel.fn.__name__, _nothing

    @functools.cached_property
    def code(self):
        with real_devices():
            return assembly(self.kernel, *self.args, arch=ARCH, **self.named)

    n_regs = property(lambda self: self.code.registers)
    n_spills = property(lambda self: self.code.spill_stores // 4)
    n_max_threads = 1024

    @property
    def metadata(self):
        defaults = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
        options = {name: self.named.get(name, value) for name, value in defaults.items()}
        return types.SimpleNamespace(name=self.name, shared=self.code.shared_bytes, **options)

    @property
    def asm(self):
        return {"ttgir": self.code.ttgir, "ptx": self.code.ptx, "sass": self.code.sass}

    def __getitem__(self, grid):
        def launch(*args, stream=None):
            names = [p.name for p in self.kernel.params]
            if len(args) < len(names):
                names = [p.name for p in self.kernel.params if not p.is_constexpr]
            arguments = dict(zip(self.kernel.arg_names, self.args, strict=False)) | self.named
            arguments |= dict(zip(names, args, strict=True))
            self.kernel.run(grid=grid, warmup=False, **arguments)

        return launch


# numba-cuda and numba-cuda-mlir.
def _pretend_numba(stack):
    """The names of `warplens run`, but numba's own `jit`: its kernels can be compiled, too."""
    import numba
    from numba import cuda
    from numba.cuda.dispatcher import ForAll

    from .programs import patch as programs

    _replace(stack, numba, programs.of_numba(numba))
    for module, names in programs.replacements(cuda):
        own = {"jit": _without_signature(module.jit)} if "jit" in names else {}
        _replace(stack, module, names | own)
    _replace(stack, cuda, {"as_cuda_array": _as_cuda_array})
    _replace(stack, ForAll, {"__call__": _for_all})


def _pretend_mlir(stack):
    import numba_cuda_mlir
    from numba_cuda_mlir import cuda, numba_cuda

    from .programs import patch as programs

    _replace(stack, numba_cuda_mlir, programs.of_mlir(numba_cuda_mlir))
    for module in (numba_cuda, cuda):
        for part, names in programs.replacements(module):
            _replace(stack, part, names)
        _replace(stack, module, {"as_cuda_array": _as_cuda_array})


def _replace(stack, module, names):
    for name, value in names.items():
        stack.enter_context(patch.object(module, name, value, create=True))


def _without_signature(jit):
    """`cuda.jit` that compiles nothing yet: a signature would need a GPU at once."""

    def lazy(func_or_sig=None, *args, **options):
        function = callable(getattr(func_or_sig, "py_func", func_or_sig))
        function = function and not hasattr(
            func_or_sig, "return_type"
        )  # numba's types are callable
        return jit(func_or_sig if function else None, *args, **options)

    return lazy


def _for_all(self, *args):
    """In place of numba's `ForAll.__call__`, which compiles first."""
    threads = self.thread_per_block or 128
    if blocks := -(-self.ntasks // threads):
        self.dispatcher[blocks, threads, self.stream, self.sharedmem](*args)


def _as_cuda_array(obj, sync=True):
    from .programs import arrays

    if hasattr(obj, "data_ptr"):  # a tensor, which lies in the CPU's memory
        return arrays.DeviceArray(np.asarray(obj))
    return arrays.as_cuda_array(obj, sync)
