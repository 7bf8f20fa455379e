"""What a GPU's blocks and SMs have: by architecture, and of the GPU that a tensor is on.

Kernels choose their tiles by it, so that they fit GPUs with less shared memory than the H200 they
were measured on; lessons count with it. It imports no library before it is asked for a device.

Limits: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications per
compute capability.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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


class Gpu(NamedTuple):
    """What a launch depends on."""

    capability: tuple[int, int]
    sms: int
    shared_bytes: int  # that a block can have

    @property
    def like_hopper(self):
        """Whether tiles chosen on an H200 suit it, as they suit the CPU that stands for one.

        All others take smaller ones, that fit 99 KB and the tensor cores' older instructions, of
        which a warp holds whole factors in registers.
        """
        return self.capability[0] in (0, 9)


def gpu_like(architecture):
    """A GPU of an architecture, "sm_90", as in `LIMITS`."""
    limits, number = LIMITS[architecture], int(architecture.removeprefix("sm_"))
    return Gpu(divmod(number, 10), limits.sms, limits.shared_bytes_block)


H200 = gpu_like("sm_90")


@cache
def gpu_of(device):
    """The GPU of a `torch.device`; for a CPU, where Triton interprets, one with an H200's sizes.

    Its capability is (0, 0) then: no instruction of a newer GPU is there.
    """
    if device.type != "cuda":
        return H200._replace(capability=(0, 0))
    import torch

    found = torch.cuda.get_device_properties(device)
    return Gpu(
        (found.major, found.minor), found.multi_processor_count, found.shared_memory_per_block_optin
    )
