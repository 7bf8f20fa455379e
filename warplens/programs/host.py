"""Streams, events, devices and contexts of a GPU that is not there: all is done at once."""

import collections
import contextlib
import time
import types

import numpy as np

from ..architectures import ARCHITECTURES
from ..cuda import half
from ..faults import Unsupported

CAPABILITY, GIB = (9, 0), 1024**3
H200 = ARCHITECTURES["sm_90"]
MemoryInfo = collections.namedtuple("MemoryInfo", "free total")


class HostStream:
    """Everything on it is done."""

    handle = types.SimpleNamespace(value=0)
    external = False

    def __init__(self, *args, **options):
        pass

    def synchronize(self):
        """Waits for what is done."""

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield self

    def add_callback(self, callback, arg=None):
        callback(self, 0, arg)

    def async_done(self):
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def __int__(self):
        return 0

    def __bool__(self):
        return False


class HostEvent:
    """A moment of the CPU's clock."""

    when = None

    def __init__(self, timing=True):
        self.timing = timing

    def record(self, stream=0):
        self.when = time.perf_counter()

    def wait(self, stream=0):
        """Waits for what is done."""

    synchronize = wait

    def query(self):
        return True

    def elapsed_time(self, later):
        """Milliseconds that the CPU took, which say nothing of a GPU."""
        if self.when is None or later.when is None:
            raise RuntimeError("elapsed_time needs two events that were recorded")
        return 1000 * (later.when - self.when)


class Device:
    """The one GPU, which answers as an H200 would."""

    id, name, uuid = 0, "an H200 that is not there", "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = CAPABILITY
    MULTIPROCESSOR_COUNT, WARP_SIZE, MAX_THREADS_PER_BLOCK = H200.sms, 32, 1024
    MAX_THREADS_PER_MULTI_PROCESSOR = 32 * H200.warps
    MAX_SHARED_MEMORY_PER_BLOCK, MAX_REGISTERS_PER_BLOCK = 48 * 1024, H200.registers
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, 65535, 65535
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    COOPERATIVE_LAUNCH = UNIFIED_ADDRESSING = MANAGED_MEMORY = 1
    supports_float16 = supports_bfloat16 = True
    supports_fp8 = False

    def reset(self):
        """Nothing is kept."""

    def get_primary_context(self):
        return GPUS[0]

    def get_device_identity(self):
        return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}


class Context:
    """`cuda.current_context()`, `cuda.gpus[0]`; with `with`, nothing changes."""

    id, compute_capability = 0, CAPABILITY

    def __init__(self):
        self.device, self.deallocations = Device(), []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __str__(self):
        return "<Managed Device 0>"

    def get_memory_info(self):
        return MemoryInfo(141 * GIB, 141 * GIB)

    def nothing(self, *args, **options):
        """A call that has nothing to do without a GPU."""

    push = reset = synchronize = close = nothing
    pop = nothing

    def memalloc(self, size):
        return np.zeros(size, np.uint8)

    def memhostalloc(self, size, mapped=False, portable=False, wc=False):
        return self.memalloc(size)

    @contextlib.contextmanager
    def defer_cleanup(self):
        yield

    def create_stream(self):
        return HostStream()

    def create_event(self, timing=True):
        return HostEvent(timing)

    def get_max_potential_block_size(self, func, b2d_func, memsize, blocksizelimit, flags=None):
        return H200.sms, 256

    def __getattr__(self, name):
        if name in vars(Device):
            return getattr(self.device, name)
        raise Unsupported(f"current_context().{name} is not simulated: no driver is behind it")


class DeviceList:
    """`cuda.gpus`: the one."""

    def __init__(self):
        self.lst = (Context(),)

    def __getitem__(self, number):
        return self.lst[number]

    def __iter__(self):
        return iter(self.lst)

    def __len__(self):
        return 1

    def __str__(self):
        return str(self.lst[0])

    @property
    def current(self):
        return self.lst[0]


GPUS = DeviceList()


class Runtime:
    """`cuda.runtime`."""

    supported_versions = ((13, 0),)

    def get_version(self):
        return (13, 0)

    def is_supported_version(self):
        return True


def select_device(device_id=0):
    if device_id != 0:
        raise ValueError(f"select_device({device_id}): there is one device, 0")
    return GPUS[0].device


def detect():
    print("Found 1 CUDA devices\nid 0    warplens: a GPU that is not there    [SUPPORTED]")
    print(f"{'compute capability':>40}: {CAPABILITY[0]}.{CAPABILITY[1]}")
    return True


class Refused:
    """Stands for a function of `cuda` that is not simulated, and says so when it is called."""

    def __init__(self, name, why):
        self.__name__, self.why = name, why

    def __call__(self, *args, **options):
        raise Unsupported(f"cuda.{self.__name__} is not simulated: {self.why}")


def nothing(*args, **options):
    """A call that has nothing to do without a GPU."""


def declare_device(name, *signature, **options):
    """A function that is machine code: a kernel may name it, and may not call it."""
    return Refused(f"declare_device({name!r})", "its function is machine code, not Python")


REFUSED = {
    "external_stream": "a stream of a driver needs one",
    "open_ipc_array": "it opens memory of another process on a GPU",
    "set_memory_manager": "memory is the CPU's",
    "guvectorize": "write a kernel, or use target='parallel'",
}

NAMES = {
    "is_available": lambda: True,
    "is_supported_version": lambda: True,
    "is_float16_supported": lambda: True,
    "is_bfloat16_supported": half.has_bfloat16,
    "is_fp8_supported": lambda: False,
    "cuda_error": lambda: None,
    "detect": detect,
    "declare_device": declare_device,
    "gpus": GPUS,
    "list_devices": lambda: GPUS,
    "current_context": lambda device=0: GPUS[0],
    "get_current_device": lambda: GPUS[0].device,
    "select_device": select_device,
    "require_context": lambda function: function,
    "runtime": Runtime(),
    "stream": HostStream,
    "default_stream": HostStream,
    "legacy_default_stream": HostStream,
    "per_thread_default_stream": HostStream,
    "event": HostEvent,
    "Event": HostEvent,
    "event_elapsed_time": lambda start, end: start.elapsed_time(end),
    "defer_cleanup": contextlib.nullcontext,
    "profiling": contextlib.nullcontext,
    **{name: nothing for name in "synchronize close reset profile_start profile_stop".split()},
    **{name: Refused(name, why) for name, why in REFUSED.items()},
}
