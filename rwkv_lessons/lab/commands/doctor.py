"""Looks at this machine and says what is wrong, each problem with its exact fix."""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import Version

from ..course import progress
from ..course.exercises import ROOT
from .lock import locked, requirements

OK, NOTE, PROBLEM = "ok", "note", "problem"
LENS = "./warplens[numba,triton,pictures]"
INSTALL = (
    f"pip install --constraint requirements.lock --editable '{LENS}'"
    " --editable '.[cuda,lessons,jupyter]'"
)
REINSTALL = f"make setup  (or, in your own environment: {INSTALL})"
FREE = 1e9  # bytes; below that pip and Jupyter begin to fail


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """One thing looked at. A `problem` keeps a lesson from running; a `note` does not."""

    level: str
    text: str
    fix: str = ""


def examine() -> list[Diagnosis]:
    """Everything that was looked at, in the order in which it should be mended."""
    return [finding for look in LOOKS for finding in _safely(look)]


def _safely(look):
    """A look that breaks is itself a finding: the doctor must outlive the patient."""
    try:
        return list(look())
    except Exception as error:
        name = look.__name__.strip("_").replace("_", " ")
        return [Diagnosis(PROBLEM, f"{name}: {type(error).__name__}: {error}", REINSTALL)]


def python(version: tuple = sys.version_info) -> Iterator[Diagnosis]:
    running = ".".join(map(str, version[:3]))
    if not (3, 11) <= tuple(version[:2]) < (3, 15):
        needed = f"Python {running}; 3.11 to 3.14 is needed (torch has no wheels for 3.15 yet)"
        yield Diagnosis(PROBLEM, needed, "make lab PYTHON=python3.11")
    else:
        yield Diagnosis(OK, f"Python {running}, {platform.platform(terse=True)}")


def packages() -> Iterator[Diagnosis]:
    """What the lessons ask for on this system, at the release of requirements.lock."""
    required = requirements(["cuda", "lessons", "jupyter"], ["numba", "triton", "pictures"])
    names = {r.name for r in required if r.marker is None or r.marker.evaluate()}
    tested, exact = locked(), 0
    for name in sorted(names):
        version = installed(name)
        if version is None:
            yield Diagnosis(PROBLEM, f"{name} is not installed", REINSTALL)
        elif Version(version).public != str(tested[name]):  # a local part, as +cpu, is a build's
            text = f"{name} {version}; the lessons were tested with {tested[name]}"
            yield Diagnosis(NOTE, text, _install(name))
        else:
            exact += 1
    yield Diagnosis(OK, f"{exact} of {len(names)} packages are at the tested version")


def warplens() -> Iterator[Diagnosis]:
    """What looks into kernels is a package of its own, installed from this repository."""
    version = installed("warplens")
    spec = importlib.util.find_spec("warplens")
    if version is None or spec is None:
        yield Diagnosis(PROBLEM, "warplens is not installed", REINSTALL)
    elif (place := Path(spec.origin).parent) != ROOT / "warplens":
        yield Diagnosis(PROBLEM, f"warplens is another one's: {place}", REINSTALL)
    else:
        yield Diagnosis(OK, f"warplens {version} is the one of this repository")


def _install(name):
    return f'pip install "{name}=={locked()[name]}"'


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numpy_for_numba() -> Iterator[Diagnosis]:
    """numba-cuda 0.30 calls np.row_stack, which numpy 2.5 no longer has."""
    numpy = installed("numpy")
    if numpy and installed("numba-cuda") and _numbers(numpy) >= (2, 5):
        text = f"numpy {numpy} breaks numba-cuda, which needs numpy below 2.5"
        yield Diagnosis(PROBLEM, text, _install("numpy"))


def switches() -> Iterator[Diagnosis]:
    """Environment variables that quietly change what the lessons' kernels do."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        text = "NUMBA_ENABLE_CUDASIM is set: numba can neither compile nor use a GPU"
        yield Diagnosis(PROBLEM, text, "unset NUMBA_ENABLE_CUDASIM")
    if os.environ.get("TRITON_INTERPRET") == "1" and _gpu_listed():
        text = "TRITON_INTERPRET is set: Triton kernels do not run on your GPU"
        yield Diagnosis(NOTE, text, "unset TRITON_INTERPRET")
    hook = sys.modules.get("warplens.programs.hook")  # what warplens.pth imports
    if os.environ.get("WARPLENS", "0") not in ("", "0") and not (hook and hook.STARTED):
        text = "WARPLENS is set and has no effect: only a wheel of warplens installs warplens.pth"
        yield Diagnosis(NOTE, text, "python -m warplens run SCRIPT")


def numba() -> Iterator[Diagnosis]:
    importlib.import_module("numba.cuda")
    version = installed("numba-cuda")
    kind = f"numba-cuda {version}" if version else "numba's own numba.cuda"
    yield Diagnosis(OK, f"numba kernels run on the CPU ({kind})")


def machine_code() -> Iterator[Diagnosis]:
    """PTX and SASS need no GPU, but they do need the compiler's parts."""
    missing = importlib.import_module("warplens.compiled.assembly").what_is_missing()
    if not missing:
        yield Diagnosis(OK, "kernels compile to an H200's machine code")
        return
    mac = sys.platform == "darwin"
    fix = "none on macOS; a Codespace or any Linux machine has it" if mac else REINSTALL
    text = f"no machine code: {missing}. That row of a check says 'not available here'"
    yield Diagnosis(NOTE, text, fix)


def triton() -> Iterator[Diagnosis]:
    if installed("triton") or installed("triton-windows"):
        importlib.import_module("triton")
        yield Diagnosis(OK, "Triton kernels run, without a GPU in Triton's interpreter")
    elif sys.platform == "linux":
        yield Diagnosis(PROBLEM, "Triton is not installed", REINSTALL)
    else:
        text = f"no Triton wheels for {platform.system()}: its lessons can be read, not run"
        yield Diagnosis(NOTE, text, "use WSL, a Codespace or any Linux machine for those")


def assembler() -> Iterator[Diagnosis]:
    """Which ptxas makes the library's Triton kernels; an old one makes some of them wrong."""
    if not installed("triton"):
        return
    tool = importlib.import_module("rwkv_lessons.runtime.assembler").assembler()
    if tool.known_wrong:
        text = f"{tool} makes some Triton kernels wrong; float32 takes slower methods"
        yield Diagnosis(NOTE, text, "pip install nvidia-cuda-nvcc-cu12==12.9.86")
    else:
        yield Diagnosis(OK, f"the library's Triton kernels are assembled by {tool}")


def gpu() -> Iterator[Diagnosis]:
    """Does what nvidia-smi lists reach torch and numba?"""
    torch = importlib.import_module("torch")
    listed = _gpu_listed()
    if torch.cuda.is_available():
        yield Diagnosis(
            OK, f"torch sees {torch.cuda.get_device_name()} (driver: {listed or 'unknown'})"
        )
        yield from _numba_gpu()
        text = "python -m rwkv_lessons.verify tells whether every kernel is right on it"
        yield Diagnosis(OK, text)
    elif not listed:
        yield Diagnosis(OK, "no NVIDIA GPU: times come from the record, everything else runs")
    elif torch.version.cuda is None:
        text = f"there is a GPU ({listed}), but torch {torch.__version__} is the CPU build"
        yield Diagnosis(NOTE, text, "pip install --force-reinstall torch, from an index with CUDA")
    else:
        built = f"torch, built for CUDA {torch.version.cuda},"
        text = f"there is a GPU ({listed}), but {built} cannot use it"
        yield Diagnosis(NOTE, text, "install a driver for that CUDA: 580 or newer for CUDA 13")


def _numba_gpu():
    cuda = importlib.import_module("numba.cuda")
    if cuda.is_available():
        yield Diagnosis(OK, "numba sees it too")
    else:
        fix = 'pip install "numba-cuda[cu13]", or [cu12] with a driver below 580'
        yield Diagnosis(NOTE, "numba does not see the GPU that torch sees", fix)


@functools.cache
def _gpu_listed() -> str:
    """Name and driver of the first GPU as nvidia-smi has it, or an empty string."""
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    lines = answer.stdout.strip().splitlines() if answer.returncode == 0 else []
    return lines[0] if lines else ""


def kernel() -> Iterator[Diagnosis]:
    """The notebooks' kernel must be this Python, or else they miss the packages above."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    fix = f"{sys.executable} -m ipykernel install --sys-prefix"
    try:
        first = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Diagnosis(PROBLEM, "Jupyter has no kernel named python3", fix)
        return
    here = [sys.executable, "python", "python3", f"python3.{sys.version_info[1]}"]
    if first in here or Path(first).parent == Path(sys.executable).parent:
        yield Diagnosis(OK, "notebooks run in this Python")
    else:
        yield Diagnosis(PROBLEM, f"notebooks run in another Python: {first}", fix)


def disk() -> Iterator[Diagnosis]:
    free = shutil.disk_usage(ROOT).free
    if free < FREE:
        yield Diagnosis(PROBLEM, f"{free / 1e9:.1f} GB left on the disk", "free at least 1 GB")
    else:
        yield Diagnosis(OK, f"{free / 1e9:.0f} GB left on the disk")


def folders() -> Iterator[Diagnosis]:
    """Where the learner works, and whether progress can be kept."""
    if not (ROOT / "notebooks").is_dir():
        yield Diagnosis(PROBLEM, f"no notebooks in {ROOT}", "work in a clone of the repository")
    if (ROOT / "work").is_dir():
        yield Diagnosis(OK, "your copies of the lessons are in work/")
    else:
        yield Diagnosis(NOTE, "you have no copies of the lessons in work/ yet", "make lab")
    if not os.access(ROOT, os.W_OK) and progress.path() == progress.DEFAULT:
        fix = f"export {progress.VARIABLE}=~/rwkv-lessons.json"
        yield Diagnosis(NOTE, f"{ROOT} cannot be written to: progress is lost at the end", fix)


def _numbers(version):
    """(2, 5) of '2.5.0rc1'."""
    return tuple(int(part) for part in version.split(".")[:2])


LOOKS: tuple[Callable[[], Iterator[Diagnosis]], ...] = (
    python,
    packages,
    warplens,
    numpy_for_numba,
    switches,
    numba,
    machine_code,
    triton,
    assembler,
    gpu,
    kernel,
    disk,
    folders,
)
