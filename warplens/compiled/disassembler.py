"""The machine code of a cubin as text."""

import shutil
import subprocess
import tempfile
from pathlib import Path


def nvidia_tool(name):
    """The path of one of NVIDIA's programs for machine code, or None: Triton's wheel brings it."""
    try:
        import triton

        path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
        if path.exists():
            return str(path)
    except ImportError:
        pass
    return shutil.which(name)


def disassembled(cubin, *flags):
    """What nvdisasm prints of a cubin's bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [nvidia_tool("nvdisasm"), "-c", *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
