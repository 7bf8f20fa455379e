"""Every kernel that a torch loop launched, in the order it ran: in a record, under "profiles".

A record `<operation>-profile.json` has the rows of any record as well: wall clock without the
profiler, and the error.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from rwkv_lessons.records.schema import Provenance, Record, path, save

# What torch does without touching an element: other views of the same memory, empty memory, and
# operators that only call others.
VIEWS = "alias as_strided detach expand narrow permute reshape resolve_conj resolve_neg select"
VIEWS += " slice split squeeze t transpose unbind unflatten unsqueeze view _unsafe_view"
FREE = frozenset(VIEWS.split())
FREE |= {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "zeros",
    "zero_",
    "matmul",
    "to",
    "_to_copy",
}
FREE |= {"float", "contiguous", "chunk", "result_type", "broadcast_tensors"}


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
    file = save(Record(name, provenance, rows), folder)
    data = json.loads(file.read_text(encoding="utf-8"))
    text = json.dumps(data, indent=2, ensure_ascii=False).removesuffix("\n}")
    packed = ",\n".join("    " + json.dumps(_pack(p), ensure_ascii=False) for p in profiles)
    file.write_text(f'{text},\n  "profiles": [\n{packed}\n  ]\n}}\n', encoding="utf-8")
    return file


def load_profiles(name, gpu, folder=None):
    """(provenance, {dtype: `Profile`}) of a record; LookupError if there is none."""
    file = path(name, gpu, folder)
    if not file.exists():
        raise LookupError(f"no record {name!r} of an {gpu} yet")
    data = json.loads(file.read_text(encoding="utf-8"))
    profiles = {packed["dtype"]: _unpack(packed) for packed in data["profiles"]}
    return Provenance(**data["provenance"]), profiles


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
