"""What this machine can do, found out once and said in one line."""

import os
import platform

from .language import say, say_lines


def setup() -> None:
    """Prepares a lesson: the first call of every notebook. Prints one line about this machine.

    Without a GPU, numba kernels run on the CPU one thread at a time, Triton kernels run in Triton's
    interpreter, both are compiled to an H200's machine code, and times come from the record.
    """
    gpu = gpu_name()
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a Triton kernel is decorated
    _quiet()
    _speak()
    print(say(describe(gpu)))


def gpu_name() -> str | None:
    """The name of the GPU that torch sees, or None."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def describe(gpu: str | None) -> str:
    """One honest line: what runs where."""
    from warplens.compiled.assembly import what_is_missing

    missing = what_is_missing()
    code = "machine code for sm_90" if not missing else f"no machine code ({missing})"
    if gpu:
        return f"{gpu}: kernels run on it, and on the CPU to be analysed · {code}"
    where = platform.system().replace("Darwin", "macOS")
    triton = "Triton in its interpreter" if has_triton() else "no Triton (it has no wheels here)"
    return f"No GPU ({where}): kernels run on the CPU · {code} · {triton} · times from the record"


def has_triton() -> bool:
    import importlib.util

    return importlib.util.find_spec("triton") is not None


def _speak():
    """Pictures say what they show in the learner's language."""
    from warplens.wording import Speech

    Speech.say = staticmethod(say_lines)


def _quiet():
    """Small launches are meant here, so numba need not warn about occupancy.

    Torch's profiler writes a line with the time to stderr whenever it starts: not in a lesson.
    """
    import warnings

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    try:
        from numba.cuda.core.errors import NumbaPerformanceWarning
    except ImportError:
        from numba.core.errors import NumbaPerformanceWarning
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
