"""What the two ways from a kernel to a cubin share: the result and the error."""

import linecache
from dataclasses import dataclass


class CompileError(Exception):
    """The kernel does not compile; the message is the first useful line and the source line."""


@dataclass(frozen=True)
class Cubin:
    """Machine code, the PTX it came from, what ptxas -v said, and shared bytes it cannot know.

    Attributes:
        ttgir: Triton's program with the layouts of its tensors; None from numba.
        file: the file that its line information names, if the code was compiled for another copy
            of the same source.
    """

    code: bytes
    ptx: str
    log: str
    launch_shared: int = 0
    file: str | None = None
    ttgir: str | None = None


def refuse(function, why, line=None):
    """The CompileError for `function`: why, and the source line where it is known."""
    message = f"{function.__name__} does not compile: {why}"
    if line:
        source = linecache.getline(function.__code__.co_filename, line).strip()
        message += f"\n    line {line}: {source}"
    return CompileError(message)
