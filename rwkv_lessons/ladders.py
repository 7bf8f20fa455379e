"""The steps of the lessons' ladders. One rung is one kernel in solutions/."""

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location

from rwkv_lessons.records.fingerprint import ROOT


@dataclass(frozen=True)
class Rung:
    label: str
    stem: str  # of the lesson and of the file in solutions/
    kernel: str  # its name in that file
    original: str | None  # the CUDA C kernel of RWKV-CUDA that takes the same step
    zeroed: bool = False  # adds to its output, which has to be zero before every launch
    swept: bool = False  # launch(B, T, H, N, block) takes a size: measured with several
    operation: str = "wkv5"  # which arguments it takes, see methods.py
    after: str | None = None  # of gradients: the lesson whose forward pass is timed with them

    @property
    def method(self):
        """Its name in a record."""
        return self.stem if self.kernel == "kernel" else f"{self.stem}.{self.kernel}"

    @property
    def file(self):
        return f"solutions/{self.stem}.py"

    def load(self):
        """The module, executed anew."""
        spec = spec_from_file_location(f"rung_{self.stem}", ROOT / self.file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


LADDERS = {
    "wkv5": (
        Rung("03 atomic baseline", "03_atomic_baseline", "kernel", "ref", zeroed=True),
        Rung("04 drop the atomics", "04_drop_the_atomics", "kernel", "v1a"),
        Rung("05 float4", "05_float4", "kernel", "v1b"),
        Rung("06 block size", "06_block_size", "kernel", "v3", swept=True),
        Rung("06 … with all registers", "06_block_size", "generous", None),
        Rung("07 shared memory", "07_shared_memory", "shared", "v1d"),
        Rung("07 … and the state", "07_shared_memory", "state_in_shared", "v1c"),
    ),
    "wkv6": (Rung("08 decay from data", "08_decay_from_data", "kernel", None, operation="wkv6"),),
    "wkv6-backward": (
        Rung(
            "09 the backward pass",
            "09_the_backward_pass",
            "gradients",
            None,
            operation="wkv6-backward",
        ),
    ),
}
LADDERS["wkv6-triton"] = (
    *LADDERS["wkv6"],  # where the lessons in Triton start from
    Rung("13 fused recurrent", "13_fused_recurrent", "kernel", None, operation="wkv6-triton"),
    Rung("16 the chunked kernel", "16_the_chunked_kernel", "kernel", None, operation="wkv6-triton"),
)
LADDERS["wkv6-triton-backward"] = (
    *LADDERS["wkv6-backward"],
    Rung(
        "14 recurrent gradients", "14_recurrent_gradients", "gradients", None,
        operation="wkv6-triton-backward", after="13_fused_recurrent",
    ),
    Rung(
        "17 chunked gradients", "17_chunked_gradients", "gradients", None,
        operation="wkv6-triton-backward", after="16_the_chunked_kernel",
    ),
)  # fmt: skip
BLOCKS = (32, 64, 128, 256, 512)  # threads per block of a sweep
# The library's method at the top of the ladder.
FINISHED = {name: "chunked" if "triton" in name else "cuda" for name in LADDERS}
