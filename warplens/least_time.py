"""The least time that a launch can take on a GPU, and whether memory or arithmetic sets it.

A GPU moves so many bytes a second and computes so many operations a second; which of the two holds
a kernel back depends on its operations per byte (Williams, Waterman and Patterson, "Roofline",
Communications of the ACM 52(4), 2009).
"""

from dataclasses import dataclass
from typing import NamedTuple

DTYPES = "float32", "float16", "bfloat16"


class LeastWork(NamedTuple):
    """The least an operation has to do."""

    bytes: int  # every input read once, every output written once
    flops: int  # of the operation's definition: an addition or a multiplication is one


@dataclass(frozen=True)
class Ceiling:
    """What a GPU does at most: bytes and operations a second, and who says so."""

    name: str
    bytes_per_s: float
    flops_per_s: float
    source: str = ""

    def __post_init__(self):
        for field in ("bytes_per_s", "flops_per_s"):
            positive(field, getattr(self, field))

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True)
class Roof:
    """Where the roof is over one operation."""

    floor_ms: float  # no version is faster
    bound: str  # "memory" or "arithmetic"
    intensity: float  # operations per byte
    flops_per_s: float  # the roof at this intensity
    of: str = ""  # whose roof it is

    def share(self, ms: float) -> float:
        """How much of the possible a time of `ms` reaches; 1 is all."""
        return self.floor_ms / positive("ms", ms)

    def __str__(self) -> str:
        return (
            f"at least {self.floor_ms:.3g} ms{self.of and f' on {self.of}'}: "
            f"{self.bound} is the limit, {self.intensity:.3g} operations a byte"
        )


def roof_over(least, ceiling):
    """The floor under the time of the work `least`, and what sets it.

    Args:
        least: `LeastWork`: bytes (every input read once, every output written once) and flops.
        ceiling: of the GPU.
    """
    positive("least.bytes", least.bytes)
    positive("least.flops", least.flops)
    moving, computing = least.bytes / ceiling.bytes_per_s, least.flops / ceiling.flops_per_s
    seconds = max(moving, computing)
    return Roof(
        floor_ms=1e3 * seconds,
        bound="memory" if moving >= computing else "arithmetic",
        intensity=least.flops / least.bytes,
        flops_per_s=least.flops / seconds,
    )


def positive(name, value):
    if not value > 0:
        raise ValueError(f"{name} is {value!r}, needs a number above 0")
    return value


def data_sheet(gpu: str, dtype: str = "float32") -> Ceiling:
    """The `Ceiling` of a GPU as NVIDIA's data sheet has it, without sparsity.

    Args:
        gpu: as in `DATA_SHEETS`, "H200".
        dtype: of the arithmetic: "float32" on ordinary units, "float16" or "bfloat16" on tensor
            cores that add up in float32.

    Raises:
        ValueError: another type. LookupError: no such GPU in the table.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
    if gpu not in DATA_SHEETS:
        raise LookupError(f"gpu is {gpu!r}, needs one of {', '.join(DATA_SHEETS)}, or a ceiling=")
    tb, float32, half = DATA_SHEETS[gpu]
    flops = float32 if dtype == "float32" else half
    return Ceiling(f"{gpu}, {dtype}", tb * 1e12, flops * 1e12, f"{gpu}, data sheet")


# TB/s; TFLOP/s in float32; in 16 bits on dense tensor cores with float32 sums. Data sheets of the
# A100 (80 GB, SXM), H100 (SXM), H200 and B200 (HGX); appendix tables of the architectures' papers
# for the RTX 3090, 4090 and 5090. A copy reaches some 90 % of the first.
DATA_SHEETS = {
    "A100": (2.039, 19.5, 312),
    "H100": (3.35, 66.9, 989),
    "H200": (4.8, 66.9, 989),
    "B200": (8.0, 75, 2250),
    "RTX 3090": (0.936, 35.6, 71),
    "RTX 4090": (1.008, 82.6, 165.2),
    "RTX 5090": (1.792, 104.8, 209.5),
}
