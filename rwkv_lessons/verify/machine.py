"""Where and with what this process computes."""

import datetime
import os
import platform

import torch

from rwkv_lessons.records import provenance
from rwkv_lessons.records.fingerprint import fingerprint, kernel_code

SAME = ("gpu", "torch", "triton", "numba_cuda", "assembler", "sha256")  # as makes a result hold


def machine(commit=None):
    """GPU, driver, versions, assembler, date, commit and fingerprint of the kernels, as text.

    What is not here is None; the commit is, where neither given nor known to git.
    """
    gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "driver": provenance.driver() if gpu else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "triton": provenance.version_of_triton(),
        "numba": provenance.version_of("numba"),
        "numba_cuda": provenance.version_of("numba-cuda"),
        "assembler": assembler(),
        "date": datetime.date.today().isoformat(),
        "commit": provenance.commit_of_files(commit),
        "sha256": fingerprint(*kernel_code()),
    }


def assembler():
    """Its version, and the options that Triton and this library give it beside their own."""
    version = provenance.assemblers().get("ptxas", "unknown")
    return f"{version} {os.environ.get('PTXAS_OPTIONS', '')}".strip()


def in_one_line(facts):
    """`machine` in a line."""
    gpu = f"{facts['gpu']}, driver {facts['driver']}" if facts["gpu"] else "no NVIDIA GPU"
    names = ("python", "torch", "triton", "numba_cuda", "assembler")
    versions = ", ".join(f"{n.replace('_', '-')} {facts[n]}" for n in names if facts[n])
    return f"{gpu}; {versions}; {facts['date']}, commit {facts['commit'] or 'unknown'}"
