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

from warplens.faults import KernelFault, WrongType
from warplens.triton import run as interpreter

from ..course.check import ABSENT, FAILED, PASSED, Row
from .claims import Claim, at_least, at_most, compiled, no_spills, registers
from .compare import Difference, NotANumber
from .launches import (
    Case,
    Launch,
    parameter_names,
    renamed,
    results,
    start,
)
from .verdicts import explained, failed

__all__ = ["Case", "Launch", "Limit", "answer", "at_least", "at_most", "dots", "exps", "gpu"]
__all__ += ["machine_code", "no_spills", "reads", "registers", "results", "traffic", "writes"]


def answer(*cases: Case):
    """Runs the kernel in the interpreter over `cases` and holds it against float64.

    Also looked at: programs that meet, arithmetic in float64, and float32 in TF32.
    """

    def gather(kernel, exercise):
        if missing := interpreter.what_is_missing():
            return Row("answer", ABSENT, missing)
        names = parameter_names(kernel, exercise.reference)
        tf32 = refused = None
        for case in cases:
            launch = case.launch()
            arguments = launch.arguments()
            try:
                watched = start(kernel, launch, arguments, reverse=case.reverse, names=names)
                _judge(launch, arguments, watched, names)
            except (Difference, KernelFault, Flaw) as error:
                if case.may_refuse and isinstance(error, WrongType):
                    refused = case, error
                    continue
                size = f" ({launch.size})" if launch.size else ""
                return failed(f"{case.name}{size}", error, exercise, case.symptom)
            tf32 = tf32 or watched.arithmetic.tf32
        text = f"{len(cases) - bool(refused)} cases in the interpreter, against float64"
        return Row("answer", PASSED, text, (*_rounded(tf32), *_refused(refused)))

    gather.kind = "answer"
    return gather


def _rounded(place):
    """What a passed row says of products whose float32 operands lose bits; `place` is the first."""
    message = "float32 operands would be cut off to TF32 on a GPU: no input_precision in line"
    return (f"{message} {place.line}",) if place else ()


def _refused(refusal):
    """What it says where a kernel is right, but does not compile for the types of a case."""
    if not refusal:
        return ()
    case, error = refusal
    message = f"It does not compile for {case.name}: tl.load(…).to(tl.float32) takes both types."
    return (message, *str(error).splitlines())


class Flaw(Exception):
    """What is wrong with a kernel whatever it computes; `symptom` names the hint."""

    def __init__(self, message, symptom, place=None):
        self.symptom = symptom
        super().__init__(f"{message}\n{place}" if place else message)


def _judge(launch, arguments, watched, names):
    """Raises what is wrong with an interpreted launch; the cause goes before its effects."""
    for race in watched.races.values():
        raise Flaw(str(race), "programs")
    arithmetic = watched.arithmetic
    if arithmetic.float64:
        raise Flaw(
            "computes in float64, 64 times slower than float32", "float64", arithmetic.float64
        )
    if arithmetic.float16:
        message = "a tl.dot sums in float16 (11 bits, at most 65,504); sums must be float32"
        raise Flaw(message, "out_dtype", arithmetic.float16)
    kinds = {kind for *_, kind in arithmetic.dots}
    if launch.operands and (wrong_kinds := sorted(kinds - {launch.operands})):
        message = f"a tl.dot multiplies {wrong_kinds[0]}, want {launch.operands}, the type of v"
        raise Flaw(message, "operands", arithmetic.float32 if wrong_kinds[0] == "fp32" else None)
    if launch.refuses_tf32 and arithmetic.tf32:
        message = "a tl.dot rounds its float32 operands to 11 bits (TF32)"
        raise Flaw(message, "input_precision", arithmetic.tf32)
    try:
        launch.judge(arguments, watched, names)
    except NotANumber as error:
        if not watched.undefined:
            raise
        message = (
            "a load with a mask does not say what masked lanes hold: on a GPU anything, here NaN"
        )
        raise Flaw(f"{error}\n{message}", "undefined", watched.undefined) from None


# Traffic.


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a launch may ask for: `low <= count(trace) <= high`; `text(trace)` says what it did.

    `where(trace)` are lines that tell who asks for most. High limits leave room for a quarter more:
    a kernel may fetch the next token's numbers while it works on this one's, once in vain.
    """

    count: Callable
    text: Callable
    high: float = float("inf")
    low: float = 0
    where: Callable = lambda trace: ()
    room: float = 1.25

    def holds(self, trace):
        # Averages over a tensor: no rounding to speak of.
        return self.low - 1e-9 <= self.count(trace) <= self.room * self.high + 1e-9

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
        counts = {array: f"{trace.times(array, op):.3g}×" for array in arrays}
        if len(set(counts.values())) == 1:
            return f"{' '.join(counts)} {verb} {counts[arrays[0]]}"
        return f"{verb} " + " ".join(f"{array} {n}" for array, n in counts.items())

    def most(trace):
        return max(arrays, key=lambda array: trace.times(array, op))

    def where(trace):
        array = most(trace)
        rows = [row for row in trace.rows if row.op == op and row.array == trace.name_of(array)]
        numel = trace.tensors[trace.name_of(array)].numel()
        over = trace.times(array, op) - times
        first = (
            f"{array} is {verb} {over:.3g}× too often: {over * numel:,.0f} {op}s more than needed"
        )
        return (first, *(f"{row.lanes / numel:.3g}× in {row.place}" for row in rows if row.place))

    return Limit(lambda trace: trace.times(most(trace), op), text, times, where=where)


def exps(at_most: float):
    """So many exps of an element."""

    def where(trace):
        return tuple(f"{n:,} in line {line}" for line, n in trace.exp_lines.most_common() if line)

    return Limit(lambda t: t.exps, lambda t: f"{t.exps:,} exps", at_most, where=where)


def dots(at_least: int = 0, at_most: float = float("inf")):
    """So many matrix products."""

    def count(trace):
        return sum(trace.dots.values())

    return Limit(count, lambda trace: f"{count(trace):,} tl.dot", at_most, at_least)


def dot_flops(at_least: int):
    """So many additions and multiplications in matrix products, however they are cut."""
    return Limit(lambda t: t.flops, lambda t: f"{t.flops:,} operations in tl.dot", low=at_least)


def _more_than_needed(limits, texts, trace):
    """Lines on what is above a limit, but within its room."""
    return tuple(
        f"more than needed: {text}, {limit.high:g} is enough"
        for limit, text in zip(limits, texts, strict=True)
        if limit.count(trace) > limit.high + 1e-9
    )


def traffic(launch: Callable, *limits):
    """Counts what the kernel asks for, as written.

    Args:
        launch: () → Launch.
        limits: `Limit`s.
    """

    def gather(kernel, exercise):
        if missing := interpreter.what_is_missing():
            return Row("traffic", ABSENT, missing)
        counted = launch()
        names = parameter_names(kernel, exercise.reference)
        trace = interpreter.trace(kernel, counted.grid, **renamed(counted.arguments(), names))
        trace.names = names
        for trouble in (*trace.faults, *trace.races):
            return Row("traffic", FAILED, "", explained(trouble, exercise))
        texts = [limit.text(trace) for limit in limits]
        for limit, text in zip(limits, texts, strict=True):
            if not limit.holds(trace):
                where = (f"counted at {counted.size}",) if counted.size else ()
                details = (*limit.where(trace), *where)
                return Row("traffic", FAILED, f"{text}, want {limit.want()}", details)
        text = " · ".join([*texts, f"{trace.programs} programs, no race"])
        return Row("traffic", PASSED, text, _more_than_needed(limits, texts, trace))

    gather.kind = "traffic"
    gather.explains_wrong_answers = False  # `answer` has looked for races
    return gather


# Machine code.


SHARED_MEMORY = 227 * 1024  # bytes that a block of an H200 can have
LAUNCHABLE = (
    Claim(
        f"at most {SHARED_MEMORY // 1024} KB of shared memory",
        lambda asm: asm.shared_bytes <= SHARED_MEMORY,
        lambda asm: f"{asm.shared_bytes // 1024} KB shared",
        absence=True,
    ),
    Claim(
        "no arithmetic in float64",
        lambda asm: not _float64(asm),
        lambda asm: f"{_float64(asm)} float64",
        absence=True,
    ),
)


def _float64(asm):
    return sum(asm.count(op) for op in ("DADD", "DMUL", "DFMA", "DSETP", "DMMA"))


def machine_code(launch: Callable, *claims: Claim, arch="sm_90"):
    """Compiles the kernel for an H200, without one, and holds its machine code against `claims`.

    Args:
        launch: () → Launch at full size: a launch is compiled for its sizes.
    """

    def gather(kernel, exercise):
        names = parameter_names(kernel, exercise.reference)

        def read(assembly, kernel):
            return assembly(kernel, arch=arch, **renamed(launch().arguments(), names))

        return compiled(read, (*claims, *LAUNCHABLE), arch)(kernel, exercise)

    gather.kind = "machine code"
    return gather


# This GPU.


def gpu(launch: Callable):
    """Runs the kernel on this machine's GPU at full size: its answer, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        full, names = launch(), parameter_names(kernel, exercise.reference)
        arguments = full.arguments("cuda")
        start(kernel, full, arguments, "cuda", names=names)
        try:
            full.judge(arguments, names=names)
        except Difference as error:
            return Row("this GPU", FAILED, full.size, (str(error),))
        ms = milliseconds(lambda: start(kernel, full, arguments, "cuda", names=names))
        return Row(
            "this GPU", PASSED, f"{ms:.3f} ms at {full.size} on {torch.cuda.get_device_name()}"
        )

    gather.kind = "this GPU"
    return gather


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
