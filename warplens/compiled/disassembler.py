"""The machine code of a cubin as text."""

import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path


def nvidia_tool(name):
    """The path of one of NVIDIA's programs for machine code, or None.

    Triton's wheel brings them; nvidia-cuda-nvdisasm brings one; else it is a CUDA toolkit's.
    """
    for package, folder in (("triton", "backends/nvidia/bin"), ("nvidia", "cu13/bin")):
        spec = find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            if path := shutil.which(name, path=str(Path(place, folder))):
                return path
    return shutil.which(name)


def disassembled(cubin, *flags):
    """What nvdisasm prints of a cubin's bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [nvidia_tool("nvdisasm"), "-c", *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
