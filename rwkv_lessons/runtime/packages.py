"""Which packages with a compiler for kernels are installed; to look does not import them."""

import re
import warnings
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

TRITON = find_spec("triton") is not None  # there are no wheels for macOS and Windows
NUMBA = find_spec("numba_cuda") is not None  # of the extra [cuda]
NEWEST_TRITON = 3, 9  # with which `verify` found every kernel right
WRONG_TRITON = 3, 8  # not with this one: docs/compilers.md
FOR_NUMBA = "pip install 'numba>=0.68' 'numba-cuda[cu13]>=0.30.4' 'numpy<2.5'"  # as [cuda] has it
IN_CLONE = "it is in the repository only, so clone that"
INSTALL = {
    **dict.fromkeys(("numba", "numba_cuda", "llvmlite"), FOR_NUMBA),
    "triton": "pip install triton (there are wheels for Linux)",
    **{name: f"pip install {name}" for name in ("matplotlib", "transformers", "greenlet", "rich")},
    "fla": "pip install flash-linear-attention",
    **dict.fromkeys(("rwkv_lessons.lab", "warplens"), IN_CLONE),
}


@contextmanager
def needed_by(what):
    """A block that imports: an error for a package that is not there says how to install it.

    Raises:
        ModuleNotFoundError: "`what` needs triton, which is not installed: pip install triton".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = error.name if error.name in INSTALL else (error.name or "").partition(".")[0]
        if package not in INSTALL or find_spec(package) is not None:  # there, but not as it should
            raise
        text = f"{what} needs {package}, which is not installed: {INSTALL[package]}"
        raise ModuleNotFoundError(text, name=package) from None


def minor(version):
    """(3, 7) of "3.7.1"."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


@cache  # the version is read once
def refuse_wrong_triton(call, version):
    """Raises a RuntimeError if this Triton is known to compile a kernel of `call` wrong."""
    if minor(version) == WRONG_TRITON:
        raise RuntimeError(
            f"Triton {version} compiles {call} wrong on Hopper: take 3.7 or 3.9 (docs/compilers.md)"
        )


def warn_of_untried_triton(version):
    """Says once that this Triton is newer than those the kernels were tested with."""
    if minor(version) == WRONG_TRITON:
        warnings.warn(
            f"Triton {version} compiles two kernels wrong, whose calls raise an error here "
            "(docs/compilers.md), and is slower with RWKV-6: 3.7 and 3.9 are right",
            stacklevel=2,
        )
    elif minor(version) > NEWEST_TRITON:
        tried = ".".join(map(str, NEWEST_TRITON))
        warnings.warn(
            f"Triton is {version}, and these kernels were tested up to {tried}; before you rely on "
            "them, compare them with float64 on your GPU: python -m rwkv_lessons.verify",
            stacklevel=2,
        )
