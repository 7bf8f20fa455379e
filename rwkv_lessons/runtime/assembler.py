"""Which `ptxas` turns the PTX of this library's Triton kernels into machine code.

Triton 3.6 and 3.7 assemble for GPUs before Blackwell with the ptxas 12.8 that they bring, which
makes some kernels wrong without a warning (docs/designs_wkv6.md tells how it was found). Beside it
they bring a newer one, for Blackwell, that knows the older GPUs too. This library's kernels take
the first of these that is at least `OLDEST` and that the driver can load:

1. the one Triton is told to use (`TRITON_PTXAS_PATH`), or brings
2. the one it brings for Blackwell
3. the CUDA toolkit's, and that of a wheel `nvidia-cuda-nvcc`

`RWKV_LESSONS_PTXAS` names another, which is then used whatever its version; "default" is Triton's.
Other packages' kernels compile as they did.

No version is safe. 12.9, 13.0 and 13.1 made an earlier kernel of this library wrong, which spilled
registers and lost one (docs/designs_wkv7.md). So the choice is of a version that makes no kernel of
today wrong as far as is known: `python -m rwkv_lessons.bench matrix` reads the machine code of
every launch for such faults, and `python -m rwkv_lessons.verify` holds the kernels against float64.
"""

import ctypes
import os
import re
import shutil
import site
import subprocess
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from .operators import constant_when_compiled

OLDEST = 12, 9  # 12.8 makes kernels of today wrong; of 12.9 to 13.1 none is known
CHOICE = "RWKV_LESSONS_PTXAS"
SECONDS_TO_ANSWER = 20  # for its version; a disk in a network may be slow


@dataclass(frozen=True)
class Assembler:
    """A `ptxas`: its path, its version as "12.9.86", and who brings it."""

    path: str
    version: str
    source: str

    @property
    def known_wrong(self) -> bool:
        """Whether it makes some kernels of today wrong. False is not a promise: no version is."""
        return _numbers(self.version) < OLDEST

    @property
    def major(self) -> int:
        return _numbers(self.version)[0]

    @property
    def release(self) -> str:
        """The release of CUDA that it is of, "12.9"."""
        return "{}.{}".format(*_numbers(self.version))

    @property
    def distrusted(self) -> bool:
        """Whether methods that it makes wrong are to be avoided: not where somebody chose it."""
        return self.known_wrong and self.source != CHOICE

    def __str__(self):
        return f"ptxas {self.version} ({self.source})"


@cache
def assembler(capability: int = 90) -> Assembler:
    """The assembler of this library's Triton kernels, for GPUs of a compute capability such as 90.

    If only one can be had that is known to be wrong, that one; `WrongAssembler` warns, once.

    Raises:
        ValueError: `RWKV_LESSONS_PTXAS` names nothing that says it is a ptxas.
    """
    if chosen := os.environ.get(CHOICE):
        path = triton_assembler(capability).path if chosen == "default" else chosen
        if candidate := _look_at(path, CHOICE):
            return candidate
        raise ValueError(f"{CHOICE} is {chosen!r}, which is not a ptxas")
    for candidate in candidates(capability):
        if not candidate.known_wrong and _loads(candidate):
            return candidate
    candidate = triton_assembler(capability)
    warnings.warn(
        f"{candidate} makes some float32 kernels wrong, and no newer one was found that this "
        "driver can load: wkv6 takes slower methods in float32. "
        "`pip install nvidia-cuda-nvcc-cu12==12.9.86` brings one.",
        WrongAssembler,
        stacklevel=2,
    )
    return candidate


@constant_when_compiled
def distrusted(capability: tuple[int, int]) -> bool:
    """Whether kernels for a GPU of this capability come from an assembler known to be wrong."""
    major, minor = capability
    return torch.cuda.is_available() and assembler(10 * major + minor).distrusted


class WrongAssembler(UserWarning):
    """Only an assembler is there that is known to make some kernels wrong."""


def triton_assembler(capability: int = 90) -> Assembler:
    """The one that Triton takes for other packages' kernels."""
    from triton.backends.nvidia.compiler import get_ptxas

    return _look_at(get_ptxas(capability).path, "Triton's own")


def candidates(capability: int = 90) -> Iterator[Assembler]:
    """All that are there, the one to be preferred first."""
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    yield triton_assembler(capability)
    places = [(bundled / "ptxas-blackwell", "Triton's for Blackwell")]
    if home := os.environ.get("CUDA_HOME"):
        places.append((Path(home) / "bin" / "ptxas", "CUDA_HOME"))
    if on_path := shutil.which("ptxas"):
        places.append((on_path, "CUDA toolkit"))
    places.append(("/usr/local/cuda/bin/ptxas", "CUDA toolkit"))
    for folder in package_folders():
        wheels = sorted(folder.glob("nvidia/*/bin/ptxas"), reverse=True)
        places += [(file, "nvidia-cuda-nvcc") for file in wheels]
    for path, source in places:
        if Path(path).is_absolute() and (candidate := _look_at(str(path), source)):
            yield candidate


def package_folders() -> list[Path]:
    """Where packages are installed: not all of sys.path, on which a working directory may be."""
    places = sysconfig.get_paths()
    folders = [Path(torch.__file__).parents[1], places["purelib"], places["platlib"]]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(map(Path, folders)))


@cache
def _look_at(path, source):
    """The Assembler at `path`, or None."""
    try:
        command, output = [path, "--version"], {"capture_output": True, "text": True}
        answer = subprocess.run(command, **output, check=True, timeout=SECONDS_TO_ANSWER)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"ptxas.*, V([\d.]+)", answer.stdout, re.DOTALL)
    return Assembler(path, version[1], source) if version else None


def _loads(candidate):
    """Whether the driver can load what it makes: it knows its own major version, not the next."""
    driver = _driver_cuda()
    return driver is None or candidate.major <= driver


def _driver_cuda():
    """The major version of CUDA that the driver knows; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value // 1000 if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def _numbers(version):
    return tuple(int(n) for n in version.split(".")[:2])
