"""The kinds of evidence a check can gather: answers, traffic, machine code, a run on this GPU.

Each function here returns a gatherer: a function of (the learner's function, the exercise) that
returns a `Row`. Solution modules put them together in `Exercise.evidence`.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from numba import float32

from ...inputs import rwkv5_inputs
from ...runtime.launch_numba import as_array, stream
from ...wkv5.reference import wkv5_reference
from ..course.check import ABSENT, FAILED, PASSED, Row
from ..course.exercises import solutions
from ..course.hints import HINTS
from ..simulator.cuda import trace

# Float32 against float64: N·T ≤ 200 roundings of 6e-8 each stay below 1.2e-5 of the largest output,
# and in practice far below, while a single wrong term is 1e-2 or more.
TOLERANCE = 1e-5

FAULTS = {
    "OutOfBounds": "tail",
    "DivergentBarrier": "order",
    "UninitialisedRead": "order",
    "MisalignedAccess": "alignment",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """Inputs small enough to run on a CPU, named by the property that fails if they do."""

    name: str
    symptom: str
    shape: tuple[int, int, int, int]  # B, T, H, N
    reverse: bool = False  # run the threads of a block from the last to the first


WKV5_CASES = (
    Case("one token", "by hand", (1, 1, 1, 4)),
    Case("the state carries from token to token", "state", (1, 3, 1, 4)),
    Case("every head has its own state, decay and bonus", "head", (1, 3, 2, 8)),
    Case("every batch row starts from an empty state", "batch", (2, 3, 2, 8)),
    Case("threads without an output do nothing", "tail", (1, 2, 3, 4)),
    Case("17 tokens, odd sizes", "state", (3, 17, 1, 8)),
    Case("the order of the threads does not matter", "order", (1, 5, 2, 8), reverse=True),
)


class Difference(AssertionError):
    """Two arrays that should agree and do not; says where first."""


def compare(got, want, letters="bthj", scale=None, tolerance=TOLERANCE):
    """Raises `Difference` at the first element of `got` further than `tolerance` from `want`.

    Args:
        scale: of what was added up, if `want` is what remains of larger numbers; else its largest.
        tolerance: over the scale.
    """
    if got is None:
        raise Difference("nothing was returned")
    numbers = f"got {got}, want {want}" if isinstance(want, tuple) else None
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise Difference(f"shape {list(got.shape)}, want {list(want.shape)}")
    limit = tolerance * max(np.abs(want).max(initial=0) if scale is None else scale, 1e-30)
    off = ~(np.abs(got - want) <= limit)  # a NaN is off too
    if off.any() and (numbers or not want.shape):
        raise Difference(numbers or f"got {got:.10g}, want {want:.10g}")
    if off.any():
        first = tuple(int(n) for n in np.argwhere(off)[0])
        place = ", ".join(f"{a}={n}" for a, n in zip(letters, first, strict=False))
        value = "never written (NaN)" if np.isnan(got[first]) else f"{got[first]:.6g}"
        raise Difference(
            f"first difference at [{place}]: {value}, want {want[first]:.6g}; "
            f"{off.sum()} of {off.size} differ"
        )


def wkv5_arrays(B, T, H, N=64):
    """Arguments (r, k, v, decay, u, o) for a CPU run of a lesson kernel; `o` is zero."""
    (r, k, v, decay, u), _ = wkv5_case((B, T, H, N))
    return [x.numpy() for x in (r, k, v, decay, u, torch.zeros_like(v))]


def wkv5_case(shape, device="cpu"):
    """Arguments (r, k, v, decay, u) of a lesson kernel and the float64 answer."""
    B, T, H, N = shape
    r, k, v, w, u = rwkv5_inputs(B, T, H, N, dtype=torch.float32, device=device)
    want, _ = wkv5_reference(*(x.double() for x in (r, k, v, w, u)))
    return (r, k, v, w.exp(), u), want


def wkv5_answer(launch: Callable, zeroed: bool = False):
    """Runs the kernel on the CPU over `WKV5_CASES` and holds it against float64.

    Args:
        launch: (B, T, H, N) → (grid, block).
        zeroed: whether the launcher zeroes the output (else it is full of NaN).
    """

    def answer(kernel, exercise):
        names = getattr(kernel, "py_func", kernel).__code__.co_names
        r, k, v = np.ones((3, 1, 3, 1, 4), np.float32)
        half, one = np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32)
        by_hand = Case("three tokens of ones, computed by hand", "by hand", (1, 3, 1, 4))
        tests = [(by_hand, (r, k, v, half, one), np.array([4, 8, 10]))]
        for case in WKV5_CASES:
            inputs, want = wkv5_case(case.shape)
            tests.append((case, tuple(x.numpy() for x in inputs), want.numpy()))
        for case, inputs, want in tests:
            B, T, H, N = case.shape
            want = np.broadcast_to(want.reshape(B, T, H, -1), case.shape)
            before = [x.copy() for x in inputs]
            o = np.full(case.shape, 0 if zeroed else np.nan, np.float32)
            grid, block = launch(*case.shape)
            details = ()
            try:
                constants = {"N": N} if "N" in names else None  # else it reads r.shape
                trace.run(
                    kernel, grid, block, *inputs, o, constants=constants, reverse=case.reverse
                )
                compare(o, want)
                for name, x, y in zip(("r", "k", "v", "decay", "u"), inputs, before, strict=True):
                    if not np.array_equal(x, y):
                        raise Difference(f"the kernel changed its input {name}")
            except (Difference, trace.KernelFault) as error:
                wrong = isinstance(error, Difference)
                details = explained(error, exercise, case.symptom if wrong else None)
            if details:
                size = f"B={B} T={T} H={H} N={N}"
                return Row("answer", FAILED, f"{case.name} ({size})", details)
        return Row("answer", PASSED, f"{len(tests)} cases on the CPU, against float64")

    answer.kind = "answer"
    return answer


def explained(trouble, exercise, symptom):
    """What is wrong, in lines, and the hint that fits; a plain Python error speaks for itself."""
    symptom = FAULTS.get(type(trouble).__name__, symptom)
    hint = exercise.symptoms.get(symptom) or HINTS.get(symptom)
    return (*str(trouble).splitlines(), *([f"hint: {hint}"] if hint else []))


TRAFFIC_SHAPE = (1, 4, 2, 64)  # B, T, H, N of the launch that is counted: quick, and full heads


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one warp may ask of memory: so many requests a token, and so many once."""

    text: str
    count: Callable  # of a Trace
    per_token: float
    once: float = 0

    def limit(self, warps, tokens):
        return int(warps * (self.once + self.per_token * tokens))


def loads(per_token: float, once: float = 0):
    """Load requests to global memory."""
    return Budget("load requests", lambda t: t.requests("global", "load"), per_token, once)


def stores(per_token: float, once: float = 0):
    """Store requests to global memory."""
    return Budget("store requests", lambda t: t.requests("global", "store"), per_token, once)


def atomics(per_token: float):
    """Atomic requests."""
    return Budget("atomic requests", lambda t: t.requests(op="atomic"), per_token)


def bank_conflicts(per_token: float = 0):
    """Passes over shared memory beyond those that a conflict-free layout needs."""
    return Budget("bank conflicts", lambda t: t.bank_conflicts, per_token)


def traffic(launch: Callable, arguments: Callable, *budgets: Budget):
    """Counts what the kernel asks of memory, as written, and looks for races.

    Args:
        launch: (B, T, H, N) → (grid, block).
        arguments: (B, T, H, N) → the kernel's.
    """

    def gather(kernel, exercise):
        B, T, H, N = TRAFFIC_SHAPE
        grid, block = launch(B, T, H, N)
        counted = trace.trace(kernel, grid, block, *arguments(B, T, H, N))
        for trouble in (*counted.faults, *counted.races):
            symptom = "order" if trouble in counted.races else None
            return Row("traffic", FAILED, "", explained(trouble, exercise, symptom))
        found = []
        for budget in budgets:
            count, limit = budget.count(counted), budget.limit(counted.warps, T)
            if count > limit:
                text = f"{count:,} {budget.text}, want at most {limit:,}"
                return Row("traffic", FAILED, text, (f"counted at B={B} T={T} H={H} N={N}",))
            found.append(f"{count:,} {budget.text}")
        return Row("traffic", PASSED, " · ".join([*found, "no race"]))

    gather.kind = "traffic"
    return gather


def wkv5_traffic(launch: Callable, *budgets: Budget):
    """`traffic` of a lesson kernel of WKV-5."""
    return traffic(launch, wkv5_arrays, *budgets)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about machine code: `holds(assembly)`, and what `found` in it, as text."""

    text: str
    holds: Callable
    found: Callable


def at_most(limit: int, *opcodes: str, text: str | None = None):
    """At most `limit` instructions of these kinds, e.g. at_most(0, "RED", "ATOM", "ATOMG")."""
    return Claim(
        text or f"at most {limit} of {' or '.join(opcodes)}",
        lambda asm: sum(asm.count(op) for op in opcodes) <= limit,
        lambda asm: " ".join(f"{op} {asm.count(op)}" for op in opcodes),
    )


def at_least(limit: int, *opcodes: str, text: str | None = None):
    """At least `limit` instructions of these kinds together, e.g. at_least(1, "LDG.E.128")."""
    return Claim(
        text or f"at least {limit} of {' or '.join(opcodes)}",
        lambda asm: sum(asm.count(op) for op in opcodes) >= limit,
        lambda asm: " ".join(f"{op} {asm.count(op)}" for op in opcodes),
    )


ATOMICS = ("RED", "REDG", "ATOM", "ATOMG")


def wide_loads(scalar: int):
    """Global memory is read 16 bytes at a time, with `scalar` narrower loads left over."""

    def loads(asm):
        wide = asm.count("LDG.E.128")
        return wide, asm.count("LDG") - wide

    return Claim(
        f"16-byte loads (LDG.E.128) and at most {scalar} narrower",
        lambda asm: loads(asm)[0] > 0 and loads(asm)[1] <= scalar,
        lambda asm: "LDG.E.128 {}, narrower {}".format(*loads(asm)),
    )


def in_registers():
    """The state lives in registers: nothing of it is in local memory, nothing spills."""
    return Claim(
        "0 bytes of local memory",
        lambda asm: asm.local_bytes == 0 and asm.spill_stores == 0,
        lambda asm: f"{asm.local_bytes} B local",
    )


WKV5_SIGNATURE = (
    *(float32[:, :, :, ::1],) * 3,  # r, k, v
    *(float32[:, ::1],) * 2,  # decay, u
    float32[:, :, :, ::1],  # o
)


def machine_code(*claims: Claim, signature=WKV5_SIGNATURE, arch="sm_90"):
    """Compiles the kernel for an H200, without one, and holds its machine code against `claims`."""
    return compiled(lambda assembly, kernel: assembly(kernel, *signature, arch=arch), claims, arch)


def compiled(read: Callable, claims, arch):
    """`machine_code` of any kernel: `read(assembly, kernel)` calls `assembly` as it has to be."""

    def gather(kernel, exercise):
        from ..machine_code.assembly import CompileError, assembly, available

        if missing := available(kernel):
            return Row("machine code", ABSENT, missing)
        try:
            asm = read(assembly, kernel)
        except CompileError as error:
            return Row("machine code", FAILED, "does not compile", tuple(str(error).splitlines()))
        for claim in claims:
            if not claim.holds(asm):
                found = f"found {claim.found(asm)}"
                return Row("machine code", FAILED, f"want {claim.text}", (found,))
        found = [claim.found(asm) for claim in claims]
        if not any("registers" in text for text in found):
            found.append(f"{asm.registers} registers")
        return Row("machine code", PASSED, f"{' · '.join(found)} ({arch})")

    gather.kind = "machine code"
    return gather


def wkv5_gpu(launch: Callable, zeroed: bool = False, shape=(2, 1027, 32, 64)):
    """Runs the kernel on this machine's GPU: its answer at full head size, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        inputs, want = wkv5_case(shape, "cuda")
        o = torch.full(shape, 0.0 if zeroed else torch.nan, device="cuda")
        grid, block = launch(*shape)
        kernel[grid, block, stream()](*map(as_array, (*inputs, o)))
        try:
            compare(o.cpu(), want.cpu())
        except Difference as error:
            return Row("this GPU", FAILED, f"B, T, H, N = {shape}", (str(error),))
        return timed(kernel, grid, block, (*inputs, o), shape)

    gather.kind = "this GPU"
    return gather


def timed(kernel, grid, block, tensors, shape):
    """The row for a kernel whose answer was right: its time on this GPU."""
    card, ms = torch.cuda.get_device_name(), _milliseconds(kernel, grid, block, tensors)
    return Row("this GPU", PASSED, f"{ms:.3f} ms at B, T, H, N = {shape} on {card}")


def time_here(stem, kernel, shape=(8, 4096, 64, 64)):
    """Milliseconds of a lesson's WKV-5 kernel on this machine's GPU; None where there is none.

    Args:
        stem: of the lesson, whose solution says how the kernel is launched.
        shape: B, T, H, N; that of the record, which takes 2.2 GB.
    """
    if not torch.cuda.is_available():
        return None
    r, k, v, w, u = rwkv5_inputs(*shape, device="cuda")
    grid, block = solutions(stem).launch(*shape)
    return _milliseconds(kernel, grid, block, (r, k, v, w.exp(), u, torch.zeros_like(v)))


def _milliseconds(kernel, grid, block, tensors):
    """The mean of ten runs, after a first one that compiles."""
    arrays = [as_array(x) for x in tensors]
    kernel[grid, block, stream()](*arrays)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        kernel[grid, block, stream()](*arrays)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 10


def wkv5_kernel(launch: Callable, *claims: Claim, budgets=(), zeroed: bool = False):
    """All the evidence for a lesson kernel of WKV-5."""
    return (
        wkv5_answer(launch, zeroed),
        wkv5_traffic(launch, *budgets),
        machine_code(*claims),
        wkv5_gpu(launch, zeroed),
    )


def function_answer(*cases):
    """Calls a plain function; each case is (what it tests, arguments, expected value)."""

    def answer(function, exercise):
        for name, arguments, want in cases:
            want = want() if callable(want) else want
            got = function(*arguments)
            try:
                compare(got, want, letters="bthj"[: np.ndim(want)])
            except Difference as error:
                symptom = exercise.symptoms.get(name)
                hints = (f"hint: {symptom}",) if symptom else ()
                return Row("answer", FAILED, name, (str(error), *hints))
        return Row("answer", PASSED, f"{len(cases)} cases")

    answer.kind = "answer"
    return answer
