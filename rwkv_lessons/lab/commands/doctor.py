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
class Finding:
    """One thing looked at. A `problem` keeps a lesson from running; a `note` does not."""

    level: str
    text: str
    fix: str = ""


def examine() -> list[Finding]:
    """Everything that was looked at, in the order in which it should be mended."""
    return [finding for look in LOOKS for finding in _safely(look)]


def _safely(look):
    """A look that breaks is itself a finding: the doctor must outlive the patient."""
    try:
        return list(look())
    except Exception as error:
        name = look.__name__.strip("_").replace("_", " ")
        return [Finding(PROBLEM, f"{name}: {type(error).__name__}: {error}", REINSTALL)]


def python(version: tuple = sys.version_info) -> Iterator[Finding]:
    running = ".".join(map(str, version[:3]))
    if not (3, 11) <= tuple(version[:2]) < (3, 15):
        needed = f"Python {running}; 3.11 to 3.14 is needed (torch has no wheels for 3.15 yet)"
        yield Finding(PROBLEM, needed, "make lab PYTHON=python3.11")
    else:
        yield Finding(OK, f"Python {running}, {platform.platform(terse=True)}")


def packages() -> Iterator[Finding]:
    """What the lessons ask for on this system, at the release of requirements.lock."""
    wanted = requirements(["cuda", "lessons", "jupyter"], ["numba", "triton", "pictures"])
    names = {r.name for r in wanted if r.marker is None or r.marker.evaluate()}
    tested, exact = locked(), 0
    for name in sorted(names):
        version = installed(name)
        if version is None:
            yield Finding(PROBLEM, f"{name} is not installed", REINSTALL)
        elif Version(version).public != str(tested[name]):  # a local part, as +cpu, is a build's
            text = f"{name} {version}; the lessons were tested with {tested[name]}"
            yield Finding(NOTE, text, _install(name))
        else:
            exact += 1
    yield Finding(OK, f"{exact} of {len(names)} packages are at the tested version")


def warplens() -> Iterator[Finding]:
    """What looks into kernels is a package of its own, installed from this repository."""
    version = installed("warplens")
    spec = importlib.util.find_spec("warplens")
    if version is None or spec is None:
        yield Finding(PROBLEM, "warplens is not installed", REINSTALL)
    elif (place := Path(spec.origin).parent) != ROOT / "warplens":
        yield Finding(PROBLEM, f"warplens is another one's: {place}", REINSTALL)
    else:
        yield Finding(OK, f"warplens {version} is the one of this repository")


def _install(name):
    return f'pip install "{name}=={locked()[name]}"'


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numpy_for_numba() -> Iterator[Finding]:
    """numba-cuda 0.30 calls np.row_stack, which numpy 2.5 no longer has."""
    numpy = installed("numpy")
    if numpy and installed("numba-cuda") and _numbers(numpy) >= (2, 5):
        text = f"numpy {numpy} breaks numba-cuda, which needs numpy below 2.5"
        yield Finding(PROBLEM, text, _install("numpy"))


def switches() -> Iterator[Finding]:
    """Environment variables that quietly change what the lessons' kernels do."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        text = "NUMBA_ENABLE_CUDASIM is set: numba can neither compile nor use a GPU"
        yield Finding(PROBLEM, text, "unset NUMBA_ENABLE_CUDASIM")
    if os.environ.get("TRITON_INTERPRET") == "1" and _gpu_listed():
        text = "TRITON_INTERPRET is set: Triton kernels do not run on your GPU"
        yield Finding(NOTE, text, "unset TRITON_INTERPRET")


def numba() -> Iterator[Finding]:
    importlib.import_module("numba.cuda")
    version = installed("numba-cuda")
    kind = f"numba-cuda {version}" if version else "numba's own numba.cuda"
    yield Finding(OK, f"numba kernels run on the CPU ({kind})")


def machine_code() -> Iterator[Finding]:
    """PTX and SASS need no GPU, but they do need the compiler's parts."""
    missing = importlib.import_module("warplens.compiled.assembly").what_is_missing()
    if not missing:
        yield Finding(OK, "kernels compile to an H200's machine code")
        return
    mac = sys.platform == "darwin"
    fix = "none on macOS; a Codespace or any Linux machine has it" if mac else REINSTALL
    text = f"no machine code: {missing}. That row of a check says 'not available here'"
    yield Finding(NOTE, text, fix)


def triton() -> Iterator[Finding]:
    if installed("triton") or installed("triton-windows"):
        importlib.import_module("triton")
        yield Finding(OK, "Triton kernels run, without a GPU in Triton's interpreter")
    elif sys.platform == "linux":
        yield Finding(PROBLEM, "Triton is not installed", REINSTALL)
    else:
        text = f"no Triton wheels for {platform.system()}: its lessons can be read, not run"
        yield Finding(NOTE, text, "use WSL, a Codespace or any Linux machine for those")


def assembler() -> Iterator[Finding]:
    """Which ptxas makes the library's Triton kernels; an old one makes some of them wrong."""
    if not installed("triton"):
        return
    tool = importlib.import_module("rwkv_lessons.runtime.assembler").assembler()
    if tool.known_wrong:
        text = f"{tool} makes some Triton kernels wrong; float32 takes slower methods"
        yield Finding(NOTE, text, "pip install nvidia-cuda-nvcc-cu12==12.9.86")
    else:
        yield Finding(OK, f"the library's Triton kernels are assembled by {tool}")


def gpu() -> Iterator[Finding]:
    """Does what nvidia-smi lists reach torch and numba?"""
    torch = importlib.import_module("torch")
    listed = _gpu_listed()
    if torch.cuda.is_available():
        yield Finding(
            OK, f"torch sees {torch.cuda.get_device_name()} (driver: {listed or 'unknown'})"
        )
        yield from _numba_gpu()
        text = "python -m rwkv_lessons.verify tells whether every kernel is right on it"
        yield Finding(OK, text)
    elif not listed:
        yield Finding(OK, "no NVIDIA GPU: times come from the record, everything else runs")
    elif torch.version.cuda is None:
        text = f"there is a GPU ({listed}), but torch {torch.__version__} is the CPU build"
        yield Finding(NOTE, text, "pip install --force-reinstall torch, from an index with CUDA")
    else:
        built = f"torch, built for CUDA {torch.version.cuda},"
        text = f"there is a GPU ({listed}), but {built} cannot use it"
        yield Finding(NOTE, text, "install a driver for that CUDA: 580 or newer for CUDA 13")


def _numba_gpu():
    cuda = importlib.import_module("numba.cuda")
    if cuda.is_available():
        yield Finding(OK, "numba sees it too")
    else:
        fix = 'pip install "numba-cuda[cu13]", or [cu12] with a driver below 580'
        yield Finding(NOTE, "numba does not see the GPU that torch sees", fix)


@functools.cache
def _gpu_listed() -> str:
    """Name and driver of the first GPU as nvidia-smi has it, or an empty string."""
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    lines = answer.stdout.strip().splitlines() if answer.returncode == 0 else []
    return lines[0] if lines else ""


def kernel() -> Iterator[Finding]:
    """The notebooks' kernel must be this Python, or else they miss the packages above."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    fix = f"{sys.executable} -m ipykernel install --sys-prefix"
    try:
        first = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding(PROBLEM, "Jupyter has no kernel named python3", fix)
        return
    here = [sys.executable, "python", "python3", f"python3.{sys.version_info[1]}"]
    if first in here or Path(first).parent == Path(sys.executable).parent:
        yield Finding(OK, "notebooks run in this Python")
    else:
        yield Finding(PROBLEM, f"notebooks run in another Python: {first}", fix)


def disk() -> Iterator[Finding]:
    free = shutil.disk_usage(ROOT).free
    if free < FREE:
        yield Finding(PROBLEM, f"{free / 1e9:.1f} GB left on the disk", "free at least 1 GB")
    else:
        yield Finding(OK, f"{free / 1e9:.0f} GB left on the disk")


def folders() -> Iterator[Finding]:
    """Where the learner works, and whether progress can be kept."""
    if not (ROOT / "notebooks").is_dir():
        yield Finding(PROBLEM, f"no notebooks in {ROOT}", "work in a clone of the repository")
    if (ROOT / "work").is_dir():
        yield Finding(OK, "your copies of the lessons are in work/")
    else:
        yield Finding(NOTE, "you have no copies of the lessons in work/ yet", "make lab")
    if not os.access(ROOT, os.W_OK) and progress.path() == progress.DEFAULT:
        fix = f"export {progress.VARIABLE}=~/rwkv-lessons.json"
        yield Finding(NOTE, f"{ROOT} cannot be written to: progress is lost at the end", fix)


def _numbers(version):
    """(2, 5) of '2.5.0rc1'."""
    return tuple(int(part) for part in version.split(".")[:2])


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
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
