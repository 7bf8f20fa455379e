"""Which names of which modules become those of the GPU that is not there."""

import os
import sys

from ..command_line import seconds
from . import arrays, host, launches
from .elementwise import Reduce, vectorize

ARRAYS = {
    "to_device": arrays.to_device,
    "auto_device": arrays.auto_device,
    "_auto_device": arrays.auto_device,
    "device_array": arrays.device_array,
    "device_array_like": arrays.device_array_like,
    "pinned": arrays.pinned,
    "mapped": arrays.mapped,
    "as_cuda_array": arrays.as_cuda_array,
    "from_cuda_array_interface": arrays.from_interface,
    "is_cuda_array": arrays.is_cuda_array,
    **{f"{kind}_array": arrays.host_array for kind in ("pinned", "mapped", "managed")},
    **{f"{kind}_array_like": arrays.host_array_like for kind in ("pinned", "mapped")},
    "In": arrays.In,
    "Out": arrays.Out,
    "InOut": arrays.InOut,
}
CUDA = host.NAMES | ARRAYS | {"jit": launches.jit, "Reduce": Reduce, "reduce": Reduce}

# Modules below `cuda` from which programs import, too; only the names that they have are replaced.
BELOW = {
    "api": host.NAMES | ARRAYS,
    "args": {name: ARRAYS[name] for name in ("In", "Out", "InOut")} | {"ArgHint": arrays.ArgHint},
    "decorators": {"jit": launches.jit},
    "cudadrv.devices": {
        "gpus": host.GPUS,
        "get_context": lambda device=0: host.GPUS[0],
        "require_context": lambda function: function,
        "reset": host.nothing,
    },
    "cudadrv.devicearray": ARRAYS
    | {
        "DeviceNDArray": arrays.DeviceArray,
        "is_cuda_ndarray": arrays.is_cuda_ndarray,
        "require_cuda_ndarray": lambda obj: arrays.is_cuda_ndarray(obj) or _no_array(obj),
        "auto_device": arrays.auto_device,
    },
    "kernels.reduction": {"Reduce": Reduce},
}


def _no_array(obj):
    raise ValueError("require an cuda ndarray object")


def cuda(module):
    """`numba.cuda`, or that of numba-cuda-mlir."""
    _settings()
    for changed, names in replacements(module):
        vars(changed).update(names)


def replacements(module):
    """(module, {name: what it becomes}) for a `cuda` module and the modules below it."""
    names = dict(CUDA)
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        names["is_bfloat16_supported"] = lambda: False  # its `bf16` is empty
    if hasattr(module, "DeviceNDArray"):
        names["DeviceNDArray"] = arrays.DeviceArray
    own = getattr(module, "vectorize", None)
    if own is not None:
        names["vectorize"] = vectorize(own, default="cuda")
    yield module, names
    for below, names in BELOW.items():
        part = sys.modules.get(f"{module.__name__}.{below}")
        if part is not None:
            yield part, {n: value for n, value in names.items() if hasattr(part, n)}


def numba(module):
    """`numba.vectorize(…, target="cuda")`."""
    vars(module).update(of_numba(module))


def of_numba(module):
    """{name: what it becomes} for `numba` itself."""
    return {
        "vectorize": vectorize(module.vectorize),
        "guvectorize": _without_cuda(module.guvectorize),
    }


def _without_cuda(own):
    def guvectorize(*args, **options):
        if options.get("target") == "cuda":
            return host.NAMES["guvectorize"]()
        return own(*args, **options)

    return guvectorize


def mlir(module):
    """`numba_cuda_mlir` itself."""
    vars(module).update(of_mlir(module))


def of_mlir(module):
    """{name: what it becomes} for `numba_cuda_mlir` itself, which has some names of its `cuda`."""
    return {name: value for name, value in CUDA.items() if name in vars(module)}


def _settings():
    launches.SETTINGS.races = os.environ.get("WARPLENS") != "no-races"
    limit = os.environ.get("WARPLENS_SECONDS", "60")
    try:
        launches.SETTINGS.seconds = seconds(limit)
    except ValueError:
        text = f"WARPLENS_SECONDS must be a number of seconds above 0, got {limit!r}"
        raise ValueError(text) from None
