"""Every kernel that a torch loop launched, in the order it ran: in a record, under "profiles".

A record `<operation>-profile.json` has the rows of any record as well: wall clock without the
profiler, and the error.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from rwkv_lessons.records.schema import Record, load_with, save_with

# What torch does without touching an element: other views of the same memory, empty memory, and
# operators that only call others.
VIEWS = "alias as_strided detach expand narrow permute reshape resolve_conj resolve_neg select"
VIEWS += " slice split squeeze t transpose unbind unflatten unsqueeze view _unsafe_view"
OTHERS = "empty empty_like empty_strided new_empty zeros zero_ matmul to _to_copy"
OTHERS += " float contiguous chunk result_type broadcast_tensors"
FREE = frozenset(f"{VIEWS} {OTHERS}".split())


class Kernel(NamedTuple):
    """One run of a kernel; microseconds, counted from the start of the first."""

    name: str
    start: float
    us: float


@dataclass(frozen=True)
class Profile:
    """One forward pass. `wall_us` is its wall clock with no profiler attached."""

    shape: tuple[int, int, int, int]
    dtype: str
    wall_us: float
    kernels: tuple[Kernel, ...]

    @property
    def tokens(self):
        return self.shape[1]

    @property
    def kernel_us(self):
        """Time in which the device worked."""
        return sum(kernel.us for kernel in self.kernels)

    @property
    def elementwise_share(self):
        """Share of the kernel time: torch has "elementwise" in the names of these kernels."""
        return sum(k.us for k in self.kernels if "elementwise" in k.name) / self.kernel_us

    def top(self):
        """(name, how often, microseconds in all), the most expensive first."""
        calls, us = Counter(), Counter()
        for kernel in self.kernels:
            calls[kernel.name] += 1
            us[kernel.name] += kernel.us
        return [(name, calls[name], time) for name, time in us.most_common()]


def brief(name):
    """A kernel's name without the types in it: torch's and cuBLAS' fill several lines."""
    plain = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    base = re.split(r"[<(]", plain)[0].split("::")[-1]
    if base.startswith("Kernel"):  # CUTLASS: what it does is its first argument
        return re.split(r"[<>(,]", plain)[1].strip().split("::")[-1]
    inside = re.findall(r"\w*[Ff]unctor\w*|\w+_kernel_cuda|direct_copy", plain[len(base) :])
    does = next((word for word in inside if word not in ("BinaryFunctor", "BUnaryFunctor")), "")
    return f"{base} ({does})" if does else base


def save_profiles(name, provenance, rows, profiles, folder=None):
    """Writes a record with every kernel of every profile; returns its path."""
    return save_with(Record(name, provenance, rows), "profiles", map(_pack, profiles), folder)


def load_profiles(name, gpu, folder=None):
    """(provenance, {dtype: `Profile`}) of a record; LookupError if there is none."""
    provenance, profiles = load_with(name, "profiles", gpu, folder)
    return provenance, {packed["dtype"]: _unpack(packed) for packed in profiles}


def _pack(profile):
    """What a reader of the file wants to know first, then each kernel as [name, start, time]."""
    names = list(dict.fromkeys(kernel.name for kernel in profile.kernels))
    return {
        "shape": profile.shape,
        "dtype": profile.dtype,
        "wall_us": round(profile.wall_us, 1),
        "kernel_us": round(profile.kernel_us, 1),
        "launches_per_token": round(len(profile.kernels) / profile.tokens, 2),
        "elementwise_share": round(profile.elementwise_share, 4),
        "top": [[names.index(name), calls, round(us, 1)] for name, calls, us in profile.top()],
        "names": names,
        "kernels": [[names.index(k.name), k.start, k.us] for k in profile.kernels],
    }


def _unpack(packed):
    names = packed["names"]
    kernels = tuple(Kernel(names[n], start, us) for n, start, us in packed["kernels"])
    return Profile(tuple(packed["shape"]), packed["dtype"], packed["wall_us"], kernels)
