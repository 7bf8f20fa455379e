"""From a numba kernel to a cubin, with no GPU, by the steps that numba.cuda takes for a launch."""

import builtins
import contextlib
import dis
import inspect
import re
import traceback
import types
import warnings

from . import cubin
from .functions import plain, rebuild

OPTIONS = ("fastmath", "max_registers", "launch_bounds", "opt", "debug", "lto")
# Decorator options of a device function that its copy with other constants keeps.
KEPT = ("fastmath", "opt", "inline", "forceinline")
INSTALL = "pip install 'warplens[machine-code]', or numba-cuda[cu13]"


def missing():
    """None, or what is missing here, in one sentence."""
    try:
        from numba import cuda
    except ImportError:
        return f"numba is missing: {INSTALL}"
    if "simulator" in getattr(cuda.jit, "__module__", ""):
        return "numba's simulator is on (NUMBA_ENABLE_CUDASIM), and it compiles nothing"
    try:
        import cuda.core  # noqa: F401
        from numba.cuda.cudadrv import driver, nvvm
    except ImportError:
        return f"the CUDA compiler parts are missing: {INSTALL} (Linux or Windows)"
    try:
        nvvm.NVVM()
    except Exception:
        return f"NVVM is missing: {INSTALL}"
    if not getattr(driver, "_have_nvjitlink", bool)():  # numba's own driver has no such function
        return f"nvJitLink is missing: {INSTALL}"
    return None


def prepare(kernel, args, constants, options):
    """(signature, constants, options), checked, with the options of the kernel's own decorator."""
    function = plain(kernel)
    if unknown := set(options) - set(OPTIONS):
        raise TypeError(f"unknown option {min(unknown)!r}, needs one of {', '.join(OPTIONS)}")
    own = getattr(kernel, "targetoptions", {})
    if own.get("link"):
        raise ValueError("kernel has link=…: files to link are not supported here")
    names = list(inspect.signature(function).parameters)
    if len(args) != len(names):
        raise TypeError(
            f"args are {len(args)}, {function.__name__} needs {len(names)}: {', '.join(names)}"
        )
    options = {"lto": True} | {k: own[k] for k in OPTIONS if k in own} | options
    return tuple(_type(a) for a in args), constants, options


def _type(value):
    import numba
    from numba.cuda import types as cuda_types

    if isinstance(value, numba.types.Type | cuda_types.Type):
        return value
    if type(value).__module__.startswith("torch"):
        dtype = numba.np.numpy_support.from_dtype(_numpy_dtype(value.dtype))
        return cuda_types.Array(dtype, value.dim(), "C" if value.is_contiguous() else "A")
    return numba.typeof(value)


def _numpy_dtype(dtype):
    import numpy

    try:
        return numpy.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        raise TypeError(f"numpy has no {dtype}: give the numba type of the argument") from None


def build(kernel, signature, arch, constants, options, lineinfo=False):
    """The Cubin of a kernel for a signature of numba types."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba import cuda

    # numba asks for the chip's own features ("sm_90a") from Hopper on.
    major, minor = int(arch[3:-1]), int(arch[-1])
    cc = (major, minor, "a") if major >= 9 else (major, minor)
    lto = options["lto"] and not options.get("debug")
    compiler = {k: options.get(k) for k in ("launch_bounds", "opt", "debug")}
    function = _rebuild(plain(kernel), constants, lineinfo)
    _find_undefined(function)
    try:
        with _compiling_for(cc), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _ = cuda.compile(
                function,
                signature,
                device=False,
                abi="numba",
                cc=cc,
                lineinfo=lineinfo,
                fastmath=bool(options.get("fastmath")),
                output="ltoir" if lto else "ptx",
                **compiler,
            )
        code = ObjectCode.from_ltoir(code) if lto else ObjectCode.from_ptx(code.encode())
        link = {
            "arch": "sm_" + "".join(map(str, cc)),
            "max_register_count": options.get("max_registers"),
            "link_time_optimization": lto or None,
            "lineinfo": lineinfo or None,
        }
        linker = Linker(code, options=LinkerOptions(verbose=True, **link))
        machine = bytes(linker.link("cubin").code)
        if lto:
            code = Linker(code, options=LinkerOptions(ptx=True, **link)).link("ptx")
    except Exception as error:
        raise _explain(error, function) from None
    return cubin.Cubin(machine, bytes(code.code).decode().strip("\0\n"), linker.get_info_log())


@contextlib.contextmanager
def _compiling_for(cc):
    """numba asks the current device for its architecture when it compiles a device function.

    The answer is replaced for the whole process, so numba's compiler lock is held until it is put
    back: no other thread compiles for the wrong architecture meanwhile.
    """
    from numba.cuda import dispatcher
    from numba.cuda.core.compiler_lock import global_compiler_lock

    device = types.SimpleNamespace(compute_capability=cc)
    with global_compiler_lock:
        real, dispatcher.get_current_device = dispatcher.get_current_device, lambda: device
        try:
            yield
        finally:
            dispatcher.get_current_device = real


def _rebuild(function, constants, lineinfo):
    """A fresh copy: what is compiled for one architecture must not stay in the learner's kernel."""
    from numba import cuda

    def convert(value, copy):
        options = {k: value.targetoptions[k] for k in KEPT if k in value.targetoptions}
        return cuda.jit(device=True, lineinfo=lineinfo, **options)(copy)

    return rebuild(function, constants, convert)


def _find_undefined(function):
    """Says so where the code names a global that is not there: numba's own words hide it."""
    defined = function.__globals__.keys() | vars(builtins).keys()
    for step in dis.get_instructions(function):
        if step.opname == "LOAD_GLOBAL" and step.argval not in defined:
            raise cubin.refuse(function, f"{step.argval!r} is not defined", step.positions.lineno)


def _explain(error, function):
    """The first useful line of a compiler's error, and the line of the kernel that it is about."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    ptxas = re.search(r"ptxas error\s*:\s*(.*)", text)
    reasons = re.findall(r"^\s*(?:\w+Error|\w+Exception): (.*)", text, re.M)
    call = re.search(r">>> (.*)", text)
    if ptxas:
        why = re.sub(r"\b_Z\w+", function.__name__, ptxas[1])
    elif reasons:
        why = reasons[-1]
    elif call and re.match(r"array\((Tuple\(.*)?\bint64\b", call[1]):
        why = "the size of an array has to be a number or a global name, such as PADDED = N + 1"
    elif call:
        why = f"numba has no {call[1]}"
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("Failed in cuda mode")]
        why = [*lines, type(error).__name__][0]
    place = re.search(r'File "[^"]*", line (\d+)', text)
    return cubin.refuse(function, why, int(place[1]) if place else _blamed_line(error))


def _blamed_line(error):
    """The line that numba was busy with, from the frames of its compiler."""
    line = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("self", "inst"):
            loc = getattr(frame.f_locals.get(name), "loc", None)
            line = getattr(loc, "line", None) or line
    return line
