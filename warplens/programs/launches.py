"""`cuda.jit` of a program without a GPU: launches run on the CPU, and what is wrong is kept."""

import functools
import inspect
import numbers
import threading
from dataclasses import dataclass

import numpy as np

from ..cuda import dialects
from ..cuda.access_log import Recorder, WatchedArray
from ..cuda.events import events_of
from ..cuda.fake_cuda import PretendInteger
from ..cuda.grid_barrier import MOST_THREADS
from ..cuda.races import races
from ..cuda.run import CudaMachine
from ..faults import STILL, EndlessLoop, KernelFault, Unsupported
from ..time_limit import StillRunning
from . import arrays
from .findings import FOUND
from .watch import watched

NOT_CONFIGURED = (
    "Kernel launch configuration was not specified. Use the syntax:\n\n"
    "kernel_function[blockspergrid, threadsperblock](arg0, arg1, ..., argn)"
)
MOST_LOGGED = 3_000_000  # accesses that are kept at once for the search for races: 72 MB
PLAIN, DEBUG = {"all": "ignore"}, {"all": "ignore", "divide": "raise"}  # of numpy's arithmetic
TOO_MANY = 20_000_000  # that a block may make without an end
RUNNING = threading.RLock()  # launches of several host threads run one after the other


@dataclass
class Settings:
    """How the program runs. `races`: whether every access is kept, to find races."""

    races: bool = True
    seconds: float = 60.0  # of processor time that a launch may take


SETTINGS = Settings()


class InPlace:
    """What both kinds of launches of a program do with arrays."""

    array_type, from_the_end = WatchedArray, True

    def wrapped(self, name, value):
        if isinstance(value, arrays.DeviceArray):
            inside = super().wrapped(name, value.data if value.ndim else value.data[()])
            if value.written is not None:
                inside.written = arrays.flags_of(value)
            return inside
        return super().wrapped(name, value)

    def raised(self, error):
        """An exception that the kernel raises reaches the program as it would from numba."""
        thread, block = list(self.coordinates(self.thread)), list(self.block())
        message = f": {error}" if str(error) else ""
        return _again(error, f"tid={thread} ctaid={block}{message}")


def _again(error, text):
    try:
        return type(error)(text)
    except TypeError:
        return KernelFault(f"{type(error).__name__}: {text}")


class Checked(InPlace, CudaMachine):
    """A launch that checks every access and keeps none."""

    def prepare(self, *sizes):
        super().prepare(*sizes)
        self.unwritten = {}

    uninitialised = Recorder.uninitialised

    def races(self):
        return []

    def crowded(self):
        return False


class Logged(InPlace, Recorder):
    """A launch that keeps its accesses, and finds the races among them."""

    array_type = Recorder.array_type

    def prepare(self, *sizes):
        super().prepare(*sizes)
        self.pairs, self.cut = [], False

    def adopt(self, array):
        return array

    def passed_block(self):
        if len(self.log) > 3 * MOST_LOGGED and "sync" not in self.meets:
            self.pairs += self._races()
            del self.log[:]
            self.segments.clear()
            self.fences.clear()
            self.cut = True

    def races(self):
        return self.pairs + self._races()

    def _races(self):
        if not any(site.op != "load" for site in self.sites):
            return []
        name = lambda block, thread: (  # noqa: E731
            f"block {self.block_of(block)}, thread {self.coordinates(thread)}"
        )
        order = list(self.lock_sets), self.fences
        pairs, _ = races(events_of(self), self.sites, *order, name)
        return pairs

    def crowded(self):
        return len(self.log) > 3 * TOO_MANY

    def block_of(self, number):
        across, rows = self.grid_dim.x, self.grid_dim.y
        return number % across, number // across % rows, number // (across * rows)


class ProgramKernel:
    """What `cuda.jit` makes of a function."""

    def __init__(self, function, device=False, signature=None, **options):
        self.py_func = self.__wrapped__ = function
        functools.update_wrapper(self, function)
        self.device, self.options, self.extensions = device, options, []
        self.casts = _casts(signature)
        self.machines, self.signatures, self.specialized = {}, [], False
        self.targetoptions = options | {"device": device}

    # Launching.
    def __getitem__(self, sizes):
        if not isinstance(sizes, tuple) or not 2 <= len(sizes) <= 5:
            raise ValueError(f"launch configuration is [{sizes}], needs [blocks, threads]")
        return GridLaunch(self, *sizes)

    configure = lambda self, *sizes: self[sizes]  # noqa: E731

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        tpb = tpb or 128
        return ForAll(self, ntasks, tpb, stream, sharedmem)

    def __call__(self, *args):
        if self.device:
            return self.py_func(*args)
        raise ValueError(NOT_CONFIGURED)

    def launch(self, grid, block, sharedmem, args):
        names = self.py_func.__code__.co_argcount
        args = [self._argument(arg) for arg in args]
        if len(args) != names and not self.py_func.__code__.co_flags & inspect.CO_VARARGS:
            required = names - len(self.py_func.__defaults__ or ())
            if not required <= len(args) <= names:
                raise TypeError(f"{self.__name__} takes {names} arguments, got {len(args)}")
        for n, cast in enumerate(self.casts[: len(args)]):
            if cast is not None and isinstance(args[n], numbers.Number | np.generic):
                args[n] = cast(args[n])
        with RUNNING:
            self._run(grid, block, sharedmem, args)

    def _argument(self, arg):
        for extension in self.extensions:
            _, arg = extension.prepare_args(None, arg, stream=0, retr=[])
        if type(arg).__name__ in ("In", "Out", "InOut") and hasattr(arg, "value"):
            kind, arg = type(arg).__name__, arg.value
            if kind == "In" and isinstance(arg, np.ndarray):
                return arg.copy()
        if isinstance(arg, np.bool_ | np.integer) and not isinstance(arg, np.timedelta64):
            return arg.item()
        if hasattr(arg, "__cuda_array_interface__") and not isinstance(arg, arrays.DeviceArray):
            return arrays.as_cuda_array(arg)
        if isinstance(arg, str | dict | set) or arg is None:
            raise TypeError(f"an argument of {self.__name__} is a {type(arg).__name__}: {arg!r}")
        return arg

    def _run(self, grid, block, sharedmem, args):
        kind = Logged if SETTINGS.races else Checked
        machine = self.machines.get(kind)
        if machine is None:
            machine = self.machines[kind] = kind(self.py_func, grid, block, None, sharedmem)
        else:
            machine.prepare(grid, block, sharedmem)
        machine.errors = DEBUG if self.options.get("debug") else PLAIN
        wrapped = [machine.argument(n, arg) for n, arg in enumerate(args)]
        FOUND.launches += 1
        try:
            with watched(SETTINGS.seconds, machine.crowded):
                machine.run_all(machine.all_blocks(), wrapped)
        except StillRunning as error:
            after = f"{STILL} after {SETTINGS.seconds:g} s of processor time"
            hint = "; WARPLENS_SECONDS=600 in the environment lets a launch take 600"
            if machine.crowded():
                after, hint = f"{STILL} after {TOO_MANY:,} accesses", "; --no-races keeps none"
                machine.shorten()
            fault = machine.explain(error, EndlessLoop, after + hint)
            self._keep(machine, fault)
            raise fault from None
        except Exception as error:
            self._keep(machine, error)
            raise
        self._keep(machine)

    def _keep(self, machine, error=None):
        for race in machine.races():
            FOUND.add(race, self.py_func)
        for fault in machine.unwritten.values():
            FOUND.add(fault, self.py_func)
        if isinstance(error, Unsupported):
            FOUND.refused.add(self.__name__)
        elif isinstance(error, KernelFault):
            FOUND.add(error, self.py_func, raised=True)
        if getattr(machine, "cut", False):
            FOUND.cut.add(self.__name__)

    # What numba's own has, too.
    def bind(self):
        """Nothing is to be compiled."""

    def specialize(self, *args):
        return self

    compile = disable_compile = lambda self, *args: self  # noqa: E731

    @property
    def overloads(self):
        return Overloads(self)

    def max_cooperative_grid_blocks(self, block, dynsmemsize=0):
        threads = int(np.prod(block))
        return max(1, MOST_THREADS // threads)

    def __getattr__(self, name):
        if name.startswith("inspect_") or name.startswith("get_"):
            message = f"{name} is not simulated: warplens.machine_code(kernel, ...) compiles"
            raise Unsupported(message)
        raise AttributeError(f"a kernel has no {name!r}")

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)


class Overloads(dict):
    """Of every signature the kernel itself; it is asked how many blocks may meet."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, signature):
        return self.kernel

    def values(self):
        return [self.kernel]


class GridLaunch:
    """`kernel[blocks, threads]`."""

    def __init__(self, kernel, grid, block, stream=0, sharedmem=0, cluster=None):
        if cluster not in (None, 1, (1, 1, 1)):
            raise Unsupported(f"a launch with clusters of {cluster} blocks is not simulated")
        self.kernel, self.sharedmem, self.stream = kernel, int(sharedmem), stream
        self.griddim, self.blockdim = _sizes("griddim", grid), _sizes("blockdim", block)

    def __call__(self, *args):
        self.kernel.launch(self.griddim, self.blockdim, self.sharedmem, args)


class ForAll:
    """`kernel.forall(n)`: as many threads as there are tasks, or some more."""

    def __init__(self, kernel, ntasks, tpb, stream, sharedmem):
        self.kernel, self.ntasks, self.thread_per_block = kernel, ntasks, tpb
        self.sharedmem = sharedmem

    def __call__(self, *args):
        if self.ntasks:
            blocks = -(-self.ntasks // self.thread_per_block)
            self.kernel.launch((blocks, 1, 1), (self.thread_per_block, 1, 1), self.sharedmem, args)


def _sizes(name, sizes):
    """(x, y, z), or numba's error of a wrong one."""
    dimensions = list(sizes) if isinstance(sizes, tuple | list) else [sizes]
    if len(dimensions) > 3:
        raise ValueError(f"{name} must be a sequence of 1, 2 or 3 integers, got {dimensions!r}")
    for size in dimensions:
        if not isinstance(size, numbers.Integral):
            raise TypeError(f"{name} must be a sequence of integers, got {dimensions!r}")
        if size < 1:
            raise ValueError(
                f"{name} is {dimensions!r}: a launch has at least one block and one thread"
            )
    return tuple(int(n) for n in dimensions) + (1,) * (3 - len(dimensions))


def jit(func_or_sig=None, device=False, link=None, boundscheck=None, **options):
    """`cuda.jit`, with and without signatures and options."""
    if link:
        raise Unsupported("cuda.jit(link=…) is not simulated: machine code does not run on a CPU")
    if boundscheck:
        raise NotImplementedError("bounds checking is not supported for CUDA")
    if inspect.isfunction(func_or_sig):
        return ProgramKernel(func_or_sig, device, **options)
    if isinstance(func_or_sig, ProgramKernel):
        raise TypeError("A jit decorator was called on an already jitted function")
    if callable(getattr(func_or_sig, "py_func", None)):
        return ProgramKernel(func_or_sig.py_func, device, **options)

    def decorated(function):
        return ProgramKernel(function, device, func_or_sig, **options)

    return decorated


def _casts(signature):
    """What each scalar argument is converted to by an explicit signature; None of arrays."""
    if isinstance(signature, list | tuple) and signature and not hasattr(signature[0], "bitwidth"):
        signature = signature[0] if len(signature) == 1 else None
    if signature is None:
        return []
    try:
        kinds, _ = dialects.submodule("core.sigutils").normalize_signature(signature)
    except Exception:
        return []
    return [_cast(kind) for kind in kinds]


def _cast(kind):
    name = type(kind).__name__
    if name == "Float" and kind.bitwidth < 64:
        return np.dtype(str(kind)).type
    if name == "Float":
        return np.float64
    if name == "Integer":
        return PretendInteger(str(kind))
    if name == "Boolean":
        return bool
    return None
