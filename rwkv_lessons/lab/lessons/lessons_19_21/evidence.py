"""The evidence for Gluon kernels: answers, what is in flight, machine code, a run on this GPU.

    evidence=(
        answer(Case("one tile", "tile", small), …),
        in_flight(counted, hidden("copy in"), waits("product", 3)),
        machine_code(full, at_least(1, "UTMALDG"), no_spills()),
        gpu(full),
    )

`small`, `counted` and `full` are functions without arguments that return a `GluonLaunch`. A kernel
for Hopper runs on a GPU of compute capability 9.0 only; here it runs in `simulator.gluon`.
"""

import dataclasses
from collections.abc import Callable

import torch

from warplens.faults import KernelFault

from ...course.check import ABSENT, FAILED, PASSED, Row
from ...evidence.claims import Claim, at_least, at_most, compiled
from ...evidence.compare import Difference
from ...evidence.functions import WrongCall, called, several, shown
from ...evidence.launches import Case, Launch, parameter_names
from ...evidence.triton import LAUNCHABLE, Limit, milliseconds, no_spills
from ...evidence.verdicts import explained, failed

__all__ = ["Case", "Claim", "GluonLaunch", "answer", "at_least", "at_most", "described", "gpu"]
__all__ += ["hidden", "in_flight", "machine_code", "most", "no_spills"]
__all__ += ["high_and_low", "waits"]


def described(x, columns, tile=(64, 64)):
    """A contiguous 16-bit tensor as rows of so many columns, of which tiles are copied."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(x, [x.numel() // columns, columns], [columns, 1], list(tile), layout)


@dataclasses.dataclass(frozen=True)
class GluonLaunch(Launch):
    """A `Launch` of a Gluon kernel.

    Args:
        described: {parameter: columns of a row}: the tensors that are given as descriptors.
        dtypes: {output: its type}, where it is not `dtype`.
        warps: of a program.
        keeps: as for `OnCPU`.
    """

    described: dict = dataclasses.field(default_factory=dict)
    dtypes: dict = dataclasses.field(default_factory=dict)
    warps: int = 4
    keeps: bool = True

    def arguments(self, device="cpu"):
        tensors = super().arguments(device)
        return tensors | {name: tensors[name].to(dtype) for name, dtype in self.dtypes.items()}

    def kernel_arguments(self, tensors):
        """`arguments`, with descriptors of those that have one."""
        descriptors = {name: described(tensors[name], n) for name, n in self.described.items()}
        return tensors | descriptors

    def options(self, device="cpu"):
        """What a compiler is given: as for a launch, descriptors and all."""
        return self.kernel_arguments(self.arguments(device)) | {"num_warps": self.warps}


@dataclasses.dataclass(frozen=True)
class WrittenOutput:
    """Which elements of an output a launch has written."""

    name: str
    tensor: torch.Tensor
    owners: torch.Tensor | None

    def never_written(self):
        if self.owners is None:
            return torch.ones_like(self.tensor, dtype=torch.bool)
        return (self.owners[: self.tensor.numel()] < 0).view(self.tensor.shape)


def watched(kernel, launch, tensors, names=None, reverse=False):
    """A `GluonTrace` of a launch on these tensors."""
    from warplens.gluon import watch

    names = names or {}
    arguments = {names.get(name, name): x for name, x in launch.kernel_arguments(tensors).items()}
    return watch(kernel, launch.grid, arguments, launch.warps, launch.keeps, reverse)


def trace(kernel, launch):
    """A `GluonTrace` of a launch on tensors of its own."""
    return watched(kernel, launch, launch.arguments(), parameter_names(kernel, None))


def answer(*cases: Case):
    """Runs the kernel on the CPU over `cases`, watched, and holds it against float64."""

    def gather(kernel, exercise):
        names = parameter_names(kernel, exercise.reference)
        for case in cases:
            launch = case.launch()
            tensors = launch.arguments()
            trace = watched(kernel, launch, tensors, names, case.reverse)
            trouble = trace.faults[0] if trace.faults else _wrong(launch, tensors, trace, names)
            if trouble:
                size = f" ({launch.size})" if launch.size else ""
                name, symptom = f"{case.name}{size}", case.symptom
                return failed(name, trouble, exercise, symptom, outside=symptom)
        text = f"{len(cases)} cases on the CPU, against float64, with all work in flight checked"
        return Row("answer", PASSED, text)

    gather.kind = "answer"
    return gather


def _wrong(launch, tensors, trace, names):
    """What is wrong with the answers of a launch, or None."""
    owners = {name: trace.owners.get(tensors[name].data_ptr()) for name in launch.outputs}
    regions = [WrittenOutput(names.get(n, n), tensors[n], owner) for n, owner in owners.items()]
    try:
        launch.judge(tensors, dataclasses.make_dataclass("Written", ["regions"])(regions), names)
    except Difference as error:
        return error
    return None


# What is in flight.


def hidden(kind, share=0.5, *by, text="with work done meanwhile"):
    """So large a share of the copies or products of a kind have work done while they fly."""

    def count(trace):
        return trace.hidden(kind, *by) / max(len(trace.of(kind)), 1)

    def where(trace):
        idle = [x for x in trace.of(kind) if not trace.meanwhile(x, "read", "write", "compute")]
        lines = dict.fromkeys((x.place, x.until) for x in idle)
        texts = "started in {}\nwaited for in {}, with nothing done between".format
        return tuple(line for x in list(lines)[:2] for line in texts(*x).splitlines())

    def text_of(trace):
        plural = {"copy in": "copies in", "copy out": "copies out", "product": "products"}[kind]
        return f"{trace.hidden(kind, *by)} of {len(trace.of(kind))} {plural} {text}"

    return Share(count, text_of, low=share, where=where)


class Share(Limit):
    """A `Limit` of a share."""

    def want(self):
        return f"at least {100 * self.low:.0f}% of them"


def waits(kind, at_most, per=1, what="chunk"):
    """At most so many waits for something of a kind, per chunk of which a launch has `per`."""

    def where(trace):
        lines = [x.place for x in trace.steps if any(y.kind == kind for y in x.ended)]
        counts = {str(place): sum(str(x) == str(place) for x in lines) for place in lines}
        return tuple(f"{n}× {place}" for place, n in counts.items())

    def count(trace):
        return trace.waits(kind) / per

    name = {"product": "products"}.get(kind, "copies")
    return Limit(
        count, lambda trace: f"{count(trace):.3g} waits for {name} a {what}", at_most,
        where=where, room=1,
    )  # fmt: skip


def most(kind, at_least):
    """At least so many of a kind are on their way at once."""
    name = {"product": "products"}.get(kind, "copies")
    text_of = f"up to {{}} {name} on their way at once".format
    return Limit(lambda x: x.most(kind), lambda x: text_of(x.most(kind)), low=at_least)


def in_flight(launch: Callable, *limits):
    """Counts what is on its way, as written.

    Args:
        launch: () → GluonLaunch.
        limits: `Limit`s of a `GluonTrace`.
    """

    def gather(kernel, exercise):
        counted = launch()
        names = parameter_names(kernel, exercise.reference)
        trace = watched(kernel, counted, counted.arguments(), names)
        if trace.faults:
            return Row("in flight", FAILED, "", explained(trace.faults[0], exercise))
        counts = [limit.text(trace) for limit in limits]
        for limit, text in zip(limits, counts, strict=True):
            if not limit.holds(trace):
                details = explained("\n".join(limit.where(trace)), exercise, "idle")
                return Row("in flight", FAILED, f"{text}, want {limit.want()}", details)
        return Row("in flight", PASSED, " · ".join(counts))

    gather.kind = "in flight"
    gather.explains_wrong_answers = False
    return gather


# Machine code.


def machine_code(launch: Callable, *claims: Claim, arch="sm_90"):
    """Compiles the kernel for an H200, without one, and holds its machine code against `claims`.

    Args:
        launch: () → GluonLaunch at full size.
    """

    def gather(kernel, exercise):
        names = parameter_names(kernel, exercise.reference)
        options = {names.get(name, name): x for name, x in launch().options().items()}
        read = compiled(
            lambda assembly, kernel: assembly(kernel, arch=arch, **options),
            (*claims, *LAUNCHABLE),
            arch,
        )
        return read(kernel, exercise)

    gather.kind = "machine code"
    return gather


# This GPU.


def gpu(launch: Callable):
    """Runs the kernel on this machine's Hopper GPU at full size: its answer, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        if torch.cuda.get_device_capability() != (9, 0):
            return Row("this GPU", ABSENT, "not available here: it is for Hopper")
        full, names = launch(), parameter_names(kernel, exercise.reference)
        tensors = full.arguments("cuda")
        start(kernel, full, tensors, names)
        try:
            full.judge(tensors, names=names)
        except Difference as error:
            return Row("this GPU", FAILED, full.size, (str(error),))
        ms = milliseconds(lambda: start(kernel, full, tensors, names))
        return Row(
            "this GPU", PASSED, f"{ms:.3f} ms at {full.size} on {torch.cuda.get_device_name()}"
        )

    gather.kind = "this GPU"
    return gather


def start(kernel, launch, tensors, names=None):
    """Launches on the GPU where the tensors are."""
    names = names or {}
    arguments = {names.get(name, name): x for name, x in launch.kernel_arguments(tensors).items()}
    kernel[launch.grid](**arguments, num_warps=launch.warps)


# High and low parts.

PARTS = 2.0**-16  # of a float32's size: what its two bfloat16 parts leave of it, at most


def high_and_low(*cases):
    """Calls a function on each case, (what it tests, a float32 tensor): it returns two of bfloat16.

    Any two whose sum is near enough will do, the larger one first.
    """

    def gather(function, exercise):
        for name, x in cases:
            try:
                got = several(called(function, x), 2)
                for part in got:
                    if getattr(part, "dtype", None) != torch.bfloat16:
                        kind = getattr(part, "dtype", type(part).__name__)
                        raise WrongCall(f"a part is {kind}, want torch.bfloat16")
                if bool((got[0].double().abs() < got[1].double().abs()).any()):
                    raise WrongCall("the first part is smaller than the second, want high, low")
                remainder = (x.double() - got[0].double() - got[1].double()).abs()
                if not bool((remainder <= PARTS * x.double().abs()).all()):
                    n = int((remainder - PARTS * x.double().abs()).argmax())
                    parts = " + ".join(f"{float(y.flatten()[n]):.9g}" for y in got)
                    raise Difference(f"{float(x.flatten()[n]):.9g} is not {parts}, to 16 bits")
            except (Difference, KernelFault) as trouble:
                return failed(name, trouble, exercise, name, shown(function, (x,)))
        return Row("answer", PASSED, f"{len(cases)} cases")

    gather.kind = "answer"
    return gather
