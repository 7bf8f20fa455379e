"""NVIDIA's architectures: what an SM and a block of threads have.

Limits: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications per
compute capability. SMs: of the GPU that is named first.
"""

from dataclasses import dataclass

KIB = 1024
FULL_WARP = 32  # threads


@dataclass(frozen=True)
class Architecture:
    """What one SM has, and one block of it.

    Attributes:
        gpus: some that have it.
        sms: SMs of the first of these.
        registers, warps, blocks: of an SM.
        shared_bytes, shared_bytes_block: shared memory of an SM, and what a block can have of it.
    """

    gpus: str
    sms: int
    registers: int
    shared_bytes: int
    shared_bytes_block: int
    warps: int
    blocks: int


ARCHITECTURES = {
    "sm_80": Architecture("A100", 108, 65536, 164 * KIB, 163 * KIB, 64, 32),
    "sm_86": Architecture("RTX 3090", 82, 65536, 100 * KIB, 99 * KIB, 48, 16),
    "sm_89": Architecture("RTX 4090", 128, 65536, 100 * KIB, 99 * KIB, 48, 24),
    "sm_90": Architecture("H100, H200", 132, 65536, 228 * KIB, 227 * KIB, 64, 32),
    "sm_100": Architecture("B200", 148, 65536, 228 * KIB, 227 * KIB, 64, 32),
    "sm_120": Architecture("RTX 5090", 170, 65536, 100 * KIB, 99 * KIB, 48, 24),
}


def number_of(architecture):
    """90 of "sm_90": what Triton calls the capability."""
    return int(architecture.removeprefix("sm_"))
