"""Where, when and how this process measures."""

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from rwkv_lessons.records.fingerprint import ROOT
from rwkv_lessons.records.schema import Provenance

COMMIT = "RWKV_LESSONS_COMMIT"  # for a machine that has the files and not the history
TIMING = "CUDA events, L2 cleared, median"


def provenance(commit=None):
    """The `Provenance` of a measurement made now, on this process's GPU.

    Raises:
        ValueError: the commit is neither given, nor in the environment, nor known to git.
    """
    commit = commit_of_files(commit)
    if not commit:
        raise ValueError(f"commit is unknown here: give --commit, or set {COMMIT}")
    return Provenance(
        gpu=torch.cuda.get_device_name(),
        driver=driver() or "unknown",
        cuda=torch.version.cuda,
        date=datetime.date.today().isoformat(),
        commit=commit,
        command=f"python -m rwkv_lessons.bench {shlex.join(sys.argv[1:])}",
        timing=TIMING,
        python=platform.python_version(),
        torch=torch.__version__.split("+")[0],
        triton=version_of_triton(),
        numba=version_of("numba"),
        numba_cuda=version_of("numba-cuda"),
        **assemblers(),
    )


def commit_of_files(commit=None):
    """The commit that is given, or the environment's, or git's, in short; None if nobody knows."""
    name = commit or os.environ.get(COMMIT)
    if not name and (ROOT / ".git").exists():  # else git would answer for what is around ROOT
        name = output_of("git", "describe", "--always", "--dirty")
    return name[:7] if name and re.fullmatch("[0-9a-f]{40}", name) else name


def driver():
    """The NVIDIA driver's version, or None."""
    return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i=0")


def assemblers():
    """The versions of what makes machine code: {field of `Provenance`: "12.9.86"}.

    For the GPU that is here, or an H200.
    """
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    versions = {}
    try:
        from rwkv_lessons.runtime.assembler import assembler, triton_assembler

        capability = 10 * major + minor
        versions["ptxas"] = assembler(capability).version
        versions["triton_ptxas"] = triton_assembler(capability).version
    except ImportError:  # without Triton
        pass
    try:
        from cuda.bindings import nvjitlink

        versions["nvjitlink"] = "{}.{}".format(*nvjitlink.version())
    except (ImportError, RuntimeError):  # numba-cuda without its compiler parts
        pass
    return versions


def version_of(distribution):
    """The installed release of a package, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def version_of_triton():
    """Of the Triton that compiles here, whichever is installed; None without one."""
    try:
        from triton import __version__
    except ImportError:
        return None
    return __version__.split("+")[0]


def output_of(*command):
    """What `command` prints, or None if it is not there or fails."""
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip() or None
