"""The evidence for Triton kernels: answers, traffic, machine code, a run on this GPU.

A `launches.Launch` is one launch that can be judged: the grid, what goes in, what must come out. An
exercise names a few, from tiny to full size, and the gatherers here make `Row`s of them:

    evidence=(
        answer(Case("one token", "by hand", small), Case("…", "mask", odd, reverse=True)),
        traffic(counted, reads(4, "r", "k", "w"), writes(1, "o"), dots(at_least=1)),
        machine_code(full, at_least(1, "HGMMA"), no_spills(), registers(128)),
        gpu(full),
    )

`small`, `odd`, … are functions without arguments that return a Launch; `evidence_wkv6_triton` makes
them for WKV-6. Answers and traffic come from `interpreter`, so they need Triton but no GPU.
"""

import dataclasses
from collections.abc import Callable

import torch

from ..course.check import ABSENT, FAILED, PASSED, Row
from ..course.hints import HINTS
from ..simulator.faults import KernelFault, OutOfBounds
from ..simulator.triton import run as interpreter
from ..simulator.triton.launches import Case, Launch, results, start
from .cuda import Claim, Difference, at_least, at_most, compiled

__all__ = ["Case", "Launch", "Limit", "answer", "at_least", "at_most", "dots", "exps", "gpu"]
__all__ += ["machine_code", "no_spills", "reads", "registers", "results", "traffic", "writes"]


def answer(*cases: Case):
    """Runs the kernel in the interpreter over `cases` and holds it against float64."""

    def gather(kernel, exercise):
        if missing := interpreter.available():
            return Row("answer", ABSENT, missing)
        for case in cases:
            launch = case.launch()
            given = launch.arguments()
            try:
                start(kernel, launch, given, reverse=case.reverse)
                launch.judge(given)
            except (Difference, KernelFault) as error:
                symptom = case.symptom if isinstance(error, Difference) else None
                details = explained(error, exercise, symptom)
                size = f" ({launch.size})" if launch.size else ""
                return Row("answer", FAILED, f"{case.name}{size}", details)
        return Row("answer", PASSED, f"{len(cases)} cases in the interpreter, against float64")

    gather.kind = "answer"
    return gather


def explained(trouble, exercise, symptom):
    """What is wrong, in lines, and the hint that fits; a plain Python error speaks for itself."""
    symptom = "mask" if isinstance(trouble, OutOfBounds) else symptom
    hint = exercise.symptoms.get(symptom) or HINTS.get(symptom)
    return (*str(trouble).splitlines(), *([f"hint: {hint}"] if hint else []))


# Traffic.


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a launch may ask for: `low <= count(trace) <= high`; `text(trace)` says what it did."""

    count: Callable
    text: Callable
    high: float = float("inf")
    low: float = 0

    def holds(self, trace):
        # Averages over a tensor: no rounding to speak of.
        return self.low - 1e-9 <= self.count(trace) <= self.high + 1e-9

    def want(self):
        """The limit that a count has to keep, as text."""
        return f"at least {self.low:g}" if self.high == float("inf") else f"at most {self.high:g}"


def reads(times: float, *arrays: str):
    """Each element of each of `arrays` is loaded at most so many times, on average."""
    return _times("read", "load", times, arrays)


def writes(times: float, *arrays: str):
    """Each element of each of `arrays` is stored at most so many times, on average."""
    return _times("written", "store", times, arrays)


def _times(verb, op, times, arrays):
    def text(trace):
        found = {array: f"{trace.times(array, op):.3g}×" for array in arrays}
        if len(set(found.values())) == 1:
            return f"{' '.join(found)} {verb} {found[arrays[0]]}"
        return f"{verb} " + " ".join(f"{array} {n}" for array, n in found.items())

    return Limit(lambda trace: max(trace.times(array, op) for array in arrays), text, times)


def exps(at_most: float):
    """So many exps of an element."""
    return Limit(lambda t: t.exps, lambda t: f"{t.exps:,} exps", at_most)


def dots(at_least: int = 0, at_most: float = float("inf")):
    """So many matrix products."""

    def count(trace):
        return sum(trace.dots.values())

    return Limit(count, lambda trace: f"{count(trace):,} tl.dot", at_most, at_least)


def traffic(launch: Callable, *limits):
    """Counts what the kernel asks for, as written, and looks for programs that meet.

    Args:
        launch: () → Launch.
        limits: `Limit`s.
    """

    def gather(kernel, exercise):
        if missing := interpreter.available():
            return Row("traffic", ABSENT, missing)
        counted = launch()
        seen = interpreter.trace(kernel, counted.grid, **counted.arguments())
        for trouble in (*seen.faults, *seen.races):
            symptom = "programs" if trouble in seen.races else None
            return Row("traffic", FAILED, "", explained(trouble, exercise, symptom))
        found = [limit.text(seen) for limit in limits]
        for limit, text in zip(limits, found, strict=True):
            if not limit.holds(seen):
                where = (f"counted at {counted.size}",) if counted.size else ()
                return Row("traffic", FAILED, f"{text}, want {limit.want()}", where)
        return Row("traffic", PASSED, " · ".join([*found, f"{seen.programs} programs, no race"]))

    gather.kind = "traffic"
    return gather


# Machine code.


def no_spills():
    """All of a program's blocks find room in its registers."""
    return Claim(
        "no spills",
        lambda asm: asm.spill_stores == 0 and asm.spill_loads == 0,
        lambda asm: f"{asm.spill_stores} B spilled",
    )


def registers(limit: int):
    """A thread has at most so many registers."""
    count = "{} registers".format
    return Claim(
        f"at most {limit} registers",
        lambda asm: asm.registers <= limit,
        lambda asm: count(asm.registers),
    )


def machine_code(launch: Callable, *claims: Claim, arch="sm_90"):
    """Compiles the kernel for an H200, without one, and holds its machine code against `claims`.

    Args:
        launch: () → Launch at full size: a launch is compiled for its sizes.
    """

    def read(assembly, kernel):
        return assembly(kernel, arch=arch, **launch().arguments())

    return compiled(read, claims, arch)


# This GPU.


def gpu(launch: Callable):
    """Runs the kernel on this machine's GPU at full size: its answer, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        full = launch()
        given = full.arguments("cuda")
        start(kernel, full, given, "cuda")
        try:
            full.judge(given)
        except Difference as error:
            return Row("this GPU", FAILED, full.size, (str(error),))
        ms = milliseconds(lambda: start(kernel, full, given, "cuda"))
        return Row("this GPU", PASSED, f"{ms:.3f} ms at {full.size} on {card()}")

    gather.kind = "this GPU"
    return gather


def card():
    return torch.cuda.get_device_name()


def milliseconds(launch):
    """The mean of ten calls on the GPU, after a first one that compiles."""
    launch()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 10
