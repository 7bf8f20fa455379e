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


# numba.
class Here(np.ndarray):
    """Stands for an array of numba on a GPU."""

    def copy_to_host(self, ary=None, stream=0):
        if ary is None:
            return np.array(self)
        ary[...] = self
        return ary

    def copy_to_device(self, ary, stream=0):
        self[...] = ary


def _to_device(obj, stream=0, copy=True, to=None):
    if to is None:
        return np.array(obj).view(Here)
    to[...] = obj
    return to


def _device_array(shape, dtype=np.float64, strides=None, order="C", stream=0, **options):
    size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    fresh = np.full(size, 0xFF, np.uint8)  # NaN: a GPU's fresh memory holds anything
    return np.ndarray(shape, dtype, fresh, order=order).view(Here)


def _device_array_like(ary, stream=0):
    return _device_array(ary.shape, ary.dtype)


DEVICE = types.SimpleNamespace(
    name=NAME.encode(),
    compute_capability=(9, 0),
    id=0,
    MULTIPROCESSOR_COUNT=H200.sms,
    WARP_SIZE=32,
    MAX_THREADS_PER_BLOCK=1024,
    MAX_THREADS_PER_MULTI_PROCESSOR=32 * H200.warps,
    MAX_SHARED_MEMORY_PER_BLOCK=48 * 1024,
    MAX_REGISTERS_PER_BLOCK=H200.registers,
    MAX_GRID_DIM_X=2**31 - 1,
    MAX_BLOCK_DIM_X=1024,
)

OF_NUMBA = {
    "to_device": _to_device,
    "as_cuda_array": lambda obj, sync=True: np.asarray(obj).view(Here),
    "is_available": lambda: True,
    "get_current_device": lambda: DEVICE,
    "select_device": lambda device: DEVICE,
    "pinned": lambda *arrays: contextlib.nullcontext(),
    "defer_cleanup": contextlib.nullcontext,
    "stream": Stream,
    "default_stream": Stream,
    "event": Event,
    "event_elapsed_time": lambda start, end: start.elapsed_time(end),
    "synchronize": _nothing,
    "close": _nothing,
    "profile_start": _nothing,
    "profile_stop": _nothing,
}
OF_NUMBA |= {f"{kind}_array": _device_array for kind in ("device", "pinned", "mapped", "managed")}
OF_NUMBA |= {f"{kind}_array_like": _device_array_like for kind in ("device", "pinned", "mapped")}


def _pretend_numba(stack):
    from numba import cuda
    from numba.cuda.dispatcher import ForAll

    for name, value in OF_NUMBA.items():
        stack.enter_context(patch.object(cuda, name, value, create=True))
    threads = lambda self, dispatcher: self.thread_per_block or 128  # noqa: E731
    stack.enter_context(patch.object(ForAll, "_compute_thread_per_block", threads))
