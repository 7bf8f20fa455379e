"""The one table of NVIDIA's architectures: what an SM and a block have, and what is compiled.

To add a GPU, add its architecture here; docs/gpus.md says what follows from it. It imports no
library, so that lessons can count with it on any machine.

Limits: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications per
compute capability. SMs: of the GPU that is named first.
"""

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """What one SM has, and one block of it.

    Attributes:
        gpus: some that have it.
        sms: SMs of the first of these.
        registers, warps, blocks: of an SM.
        shared_bytes, shared_bytes_block: shared memory of an SM, and what a block can have of it.
        ptx_of: the architecture whose PTX Triton would write for this one, too, but for the line
            `.target`, where kernels take the same tiles; its own where "".
        spills: bytes a thread may spill in the kernels compiled for it (bench/commands/matrix.py).
            5 KB are 1,280 stores, in kernels that take about ten thousand instructions a chunk.
            Past that a program waits for its own local memory, which no longer fits L1.
    """

    gpus: str
    sms: int
    registers: int
    shared_bytes: int
    shared_bytes_block: int
    warps: int
    blocks: int
    ptx_of: str = ""
    spills: int = 5 * KIB


ARCHITECTURES = {
    "sm_80": Architecture("A100", 108, 65536, 164 * KIB, 163 * KIB, 64, 32),
    "sm_86": Architecture("RTX 3090", 82, 65536, 100 * KIB, 99 * KIB, 48, 16, ptx_of="sm_80"),
    "sm_89": Architecture("RTX 4090", 128, 65536, 100 * KIB, 99 * KIB, 48, 24, ptx_of="sm_80"),
    # Tiles were chosen by time, and heads of 256 keys spill more; but not for want of being
    # allowed registers, which is where 20 KB begin.
    "sm_90": Architecture("H100, H200", 132, 65536, 228 * KIB, 227 * KIB, 64, 32, spills=16 * KIB),
    "sm_100": Architecture("B200", 148, 65536, 228 * KIB, 227 * KIB, 64, 32),
    "sm_120": Architecture("RTX 5090", 170, 65536, 100 * KIB, 99 * KIB, 48, 24),
}


def number_of(architecture):
    """90 of "sm_90": what Triton calls the capability."""
    return int(architecture.removeprefix("sm_"))
