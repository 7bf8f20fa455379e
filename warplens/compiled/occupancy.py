"""How many warps of a kernel fit on an SM, which resource limits them, and how a grid fills a GPU.

The limits of each architecture are in architectures.py. The Ampere, Hopper and Blackwell tuning
guides ("Occupancy" and "Shared Memory") say that a block costs 1 KiB of shared memory more, and how
much of an SM's memory can be shared. Registers are allocated to a warp in units of 256 and come
from one quarter of the SM (NVIDIA's cuda_occupancy.h).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..architectures import ARCHITECTURES, KIB
from ..wording import many

if TYPE_CHECKING:
    from .assembly import Assembly

WARP = 32
QUARTERS = 4  # an SM has four warp schedulers, each with its own registers
REGISTER_UNIT = 256
SHARED_UNIT = 128
SHARED_RESERVED = 1 * KIB  # taken by the system for each block
MOST_THREADS, MOST_REGISTERS = 1024, 255  # of a block, of a thread


@dataclass(frozen=True)
class Occupancy:
    """What `occupancy` returns; printing it gives two short lines.

    Attributes:
        by: {resource: blocks an SM can hold as far as this resource goes}.
        blocks: of the grid, None where it was not given.
    """

    arch: str
    registers: int
    threads: int
    shared_bytes: int
    by: dict[str, int]
    blocks: int | None
    sms: int

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that fit on one SM at a time; 0 if the kernel cannot start."""
        return min(self.by.values())

    @property
    def warps_per_sm(self) -> int:
        return self.blocks_per_sm * ceil_div(self.threads, WARP)

    @property
    def share(self) -> float:
        """Warps that fit, of those that an SM can hold."""
        return self.warps_per_sm / ARCHITECTURES[self.arch].warps

    @property
    def limited_by(self) -> list[str]:
        """The resources that run out first."""
        return [name for name, blocks in self.by.items() if blocks == self.blocks_per_sm]

    @property
    def waves(self) -> float:
        """How often the grid fills all SMs; below 1 it does not fill them once."""
        self._needs_grid()
        return self.blocks / (self.sms * self.blocks_per_sm)

    @property
    def busiest_blocks(self) -> int:
        """Blocks at a time on the SM that has most, when the grid is dealt out evenly."""
        self._needs_grid()
        return min(self.blocks_per_sm, ceil_div(self.blocks, self.sms))

    @property
    def busiest_warps(self) -> int:
        return self.busiest_blocks * ceil_div(self.threads, WARP)

    @property
    def tail(self) -> float:
        """The share of block slots that the last wave fills; the other slots stay empty."""
        self._needs_grid()
        places = self.sms * self.blocks_per_sm
        return (self.blocks - 1) % places / places + 1 / places

    def _needs_grid(self):
        if self.blocks is None:
            raise ValueError("blocks was not given, needs the number of blocks of the grid")
        if not self.blocks_per_sm:
            raise ValueError(f"no block fits on an SM: {', '.join(self.limited_by)}")

    def __str__(self) -> str:
        need = (
            f"{self.threads} threads × {self.registers} registers, {self.shared_bytes} B shared, "
            f"{self.arch}"
        )
        if not self.blocks_per_sm:
            return f"{need}: does not start, a block needs more {self.limited_by[0]} than there is"
        lines = [
            f"{need}: {many(self.blocks_per_sm, 'block')} = {many(self.warps_per_sm, 'warp')} "
            f"an SM ({self.share:.0%}); {' and '.join(self.limited_by)} set the limit"
        ]
        if self.blocks is not None:
            lines.append(
                f"{many(self.blocks, 'block')} on {self.sms} SMs: "
                f"{self.blocks / self.sms:.2f} an SM, the busiest has {self.busiest_blocks} at a "
                f"time = {many(self.busiest_warps, 'warp')}; {self.waves:.2f} waves, "
                f"the last one {self.tail:.0%} full"
            )
        return "\n".join(lines)


def occupancy(
    kernel: "int | Assembly",
    threads: int,
    shared_bytes: int = 0,
    arch: str | None = None,
    blocks: int | None = None,
    sms: int | None = None,
) -> Occupancy:
    """How many blocks and warps of a kernel fit on one SM, by calculation.

    This is an upper bound: a launch with few blocks leaves slots empty, and the driver has to give
    shared memory its largest share of the SM.

    Args:
        kernel: an `Assembly`, or the registers of a thread, 1 to 255.
        threads: of a block, 1 to 1024.
        shared_bytes: of a block; with an `Assembly`, only the dynamic ones that the launch adds.
        arch: "sm_80", "sm_90" or another of `ARCHITECTURES`; the assembly's own, else "sm_90".
        blocks: of the grid, for waves and the busiest SM.
        sms: of the GPU; by default those of the one named in `ARCHITECTURES`.

    Raises:
        ValueError: a number is out of range.
    """
    if not isinstance(kernel, int):
        arch = arch or kernel.arch
        shared_bytes += kernel.shared_bytes
        kernel = kernel.registers
    arch = arch or "sm_90"
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}, needs one of {', '.join(ARCHITECTURES)}")
    limits = ARCHITECTURES[arch]
    _in_range("registers", kernel, 1, MOST_REGISTERS)
    _in_range("threads", threads, 1, MOST_THREADS)
    _in_range("shared_bytes", shared_bytes, 0)
    _in_range("blocks", 1 if blocks is None else blocks, 1)
    sms = limits.sms if sms is None else sms
    _in_range("sms", sms, 1)
    by = {
        "threads": limits.warps // ceil_div(threads, WARP),
        "blocks": limits.blocks,
        "registers": _blocks_by_registers(kernel, threads, limits),
        "shared memory": _blocks_by_shared(shared_bytes, limits),
    }
    return Occupancy(arch, kernel, threads, shared_bytes, by, blocks, sms)


def _blocks_by_registers(registers, threads, limits):
    a_warp = _round_up(registers * WARP, REGISTER_UNIT)
    warps = QUARTERS * (limits.registers // QUARTERS // a_warp)
    return warps // ceil_div(threads, WARP)


def _blocks_by_shared(shared_bytes, limits):
    if shared_bytes > limits.shared_bytes_block:
        return 0
    return limits.shared_bytes // _round_up(shared_bytes + SHARED_RESERVED, SHARED_UNIT)


def ceil_div(a, b):
    return -(-a // b)


def _round_up(a, unit):
    return ceil_div(a, unit) * unit


def _in_range(name, value, low, high=None):
    if not isinstance(value, int) or value < low or (high is not None and value > high):
        needs = f"{low} to {high}" if high else f"an integer of at least {low}"
        raise ValueError(f"{name} is {value!r}, needs {needs}")
