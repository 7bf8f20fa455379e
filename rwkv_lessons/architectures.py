"""What one SM, and one block, of each architecture of NVIDIA's GPUs can have.

CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications per compute
capability.
"""

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Limits:
    """What one SM has. `sms`: how many the GPU named beside it has."""

    registers: int
    shared_bytes: int
    shared_bytes_block: int
    warps: int
    blocks: int
    sms: int


LIMITS = {
    "sm_80": Limits(65536, 164 * KIB, 163 * KIB, warps=64, blocks=32, sms=108),  # A100
    "sm_86": Limits(65536, 100 * KIB, 99 * KIB, warps=48, blocks=16, sms=82),  # RTX 3090
    "sm_89": Limits(65536, 100 * KIB, 99 * KIB, warps=48, blocks=24, sms=128),  # RTX 4090
    "sm_90": Limits(65536, 228 * KIB, 227 * KIB, warps=64, blocks=32, sms=132),  # H100, H200
    "sm_100": Limits(65536, 228 * KIB, 227 * KIB, warps=64, blocks=32, sms=148),  # B200
    "sm_120": Limits(65536, 100 * KIB, 99 * KIB, warps=48, blocks=24, sms=170),  # RTX 5090
}
