"""Of each of NVIDIA's architectures: what tiles are chosen by, and what is compiled.

To add a GPU, add its architecture here and to `warplens/architectures.py`, which has all limits of
an SM; docs/gpus.md says what follows from it. The library needs these two of them and no warplens.
"""

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class BlockLimits:
    """What a launch on it can have, and how much its machine code may spill.

    Attributes:
        sms: SMs of its first GPU.
        shared_bytes_block: shared memory that a block can have.
        ptx_of: the architecture whose PTX Triton would write for this one, too, but for the line
            `.target`, where kernels take the same tiles; its own where "".
        spills: bytes a thread may spill in the kernels compiled for it (bench/commands/matrix.py).
            5 KB are 1,280 stores, in kernels that take about ten thousand instructions a chunk.
            Past that a program waits for its own local memory, which no longer fits L1.
    """

    sms: int
    shared_bytes_block: int
    ptx_of: str = ""
    spills: int = 5 * KIB


ARCHITECTURES = {
    "sm_80": BlockLimits(108, 163 * KIB),
    "sm_86": BlockLimits(82, 99 * KIB, ptx_of="sm_80"),
    "sm_89": BlockLimits(128, 99 * KIB, ptx_of="sm_80"),
    # Tiles were chosen by time, and heads of 256 keys spill more; but not for want of being
    # allowed registers, which is where 20 KB begin.
    "sm_90": BlockLimits(132, 227 * KIB, spills=16 * KIB),
    "sm_100": BlockLimits(148, 227 * KIB),
    "sm_120": BlockLimits(170, 99 * KIB),
}


def number_of(architecture):
    """90 of "sm_90": what Triton calls the capability."""
    return int(architecture.removeprefix("sm_"))
