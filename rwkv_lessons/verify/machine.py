"""Where and with what this process computes."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

from rwkv_lessons.bench.source import ROOT, fingerprint, kernel_code

COMMIT = "RWKV_LESSONS_COMMIT"  # for a machine that has the files and not the history
SAME = ("gpu", "torch", "triton", "numba_cuda", "assembler", "sha256")  # as makes a result hold


def machine(commit=None):
    """GPU, driver, versions, assembler, date, commit and fingerprint of the kernels, as text.

    What is not here is None; the commit is, where neither given nor known to git.
    """
    import torch

    gpu = torch.cuda.is_available()
    asked = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i=0")
    return {
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "driver": _output(*asked) if gpu else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "triton": _version("triton"),
        "numba": _version("numba"),
        "numba_cuda": _version("numba-cuda"),
        "assembler": assembler(),
        "date": datetime.date.today().isoformat(),
        "commit": commit
        or os.environ.get(COMMIT)
        or _output("git", "describe", "--always", "--dirty"),
        "sha256": fingerprint(*kernel_code()),
    }


def assembler():
    """The version of the ptxas that Triton's kernels go through, or "unknown"."""
    import torch

    try:
        from rwkv_lessons.assembler import assembler
    except ImportError:
        return "unknown"
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return str(assembler(10 * major + minor).version)


def said(here):
    """`machine` in a line."""
    gpu = f"{here['gpu']}, driver {here['driver']}" if here["gpu"] else "no NVIDIA GPU"
    names = ("python", "torch", "triton", "numba_cuda", "assembler")
    versions = ", ".join(f"{n.replace('_', '-')} {here[n]}" for n in names if here[n])
    return f"{gpu}; {versions}; {here['date']}, commit {here['commit'] or 'unknown'}"


def _version(distribution):
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _output(*command):
    """What `command` prints, or None if it is not there or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
