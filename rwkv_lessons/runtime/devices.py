"""What this machine's GPU has. Kernels choose their tiles by it.

They were chosen on an H200; a GPU with less shared memory, or older tensor cores, takes smaller
ones (docs/gpus.md).
"""

from functools import cache
from typing import NamedTuple

import torch

from .architectures import ARCHITECTURES, KIB, number_of
from .operators import constant_when_compiled


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

    @property
    def is_hopper(self):
        """Whether it runs kernels in Gluon that were written for Hopper."""
        return self.capability[0] == 9


def check_gpu(name, x):
    """Raises a TypeError unless x is a `Gpu` or None."""
    if x is not None and not isinstance(x, Gpu):
        raise TypeError(f"{name} must be None or a Gpu, as devices.gpu_of returns it, got {x!r}")


# In numbers, and not by the table: a record is not stale when the table knows one GPU more.
H200 = Gpu((9, 0), sms=132, shared_bytes=227 * KIB)


def gpu_like(architecture):
    """A GPU of an architecture, "sm_90", as in `ARCHITECTURES`."""
    limits = ARCHITECTURES[architecture]
    return Gpu(divmod(number_of(architecture), 10), limits.sms, limits.shared_bytes_block)


@constant_when_compiled
def gpu_of(device):
    """The GPU of a `torch.device`; for a CPU, where Triton interprets, one with an H200's sizes.

    Its capability is (0, 0) then: no instruction of a newer GPU is there.
    """
    return _asked(device)


def current():
    """The GPU of the current CUDA device; an H200 where there is none."""
    here = torch.cuda.is_available()
    return gpu_of(torch.device("cuda", torch.cuda.current_device())) if here else H200


@cache
def _asked(device):
    if device.type != "cuda":
        return H200._replace(capability=(0, 0))
    properties = torch.cuda.get_device_properties(device)
    return Gpu(
        (properties.major, properties.minor),
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
    )
