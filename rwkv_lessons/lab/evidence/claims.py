"""Claims about machine code: what is there, what is not, how wide it is, what spills.

How often an instruction stands in the code is no claim: an unrolled loop or a load made ahead is no
worse for being written twice. What is asked of memory per token is counted in the trace.
"""

import dataclasses
from collections.abc import Callable

from ..course.check import ABSENT, FAILED, PASSED, Row


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about machine code: `holds(assembly)`, and `counts(assembly)` in it, as text.

    `warning(assembly)` is what to say of code for which it holds only just; "" says nothing.
    `absence`: that something is not there. Where that holds, a row has nothing to say of it.
    `hint`: where to look if it does not hold.
    """

    text: str
    holds: Callable
    counts: Callable
    warning: Callable = lambda asm: ""
    absence: bool = False
    hint: str = ""


def at_most(limit: int, *opcodes: str, text: str | None = None):
    """At most `limit` instructions of these kinds, e.g. at_most(0, "RED", "ATOM", "ATOMG")."""
    return Claim(
        text or f"at most {limit} of {' or '.join(opcodes)}",
        lambda asm: sum(_own(asm, op) for op in opcodes) <= limit,
        lambda asm: _counts({op: _own(asm, op) for op in opcodes}),
        absence=limit == 0,
    )


def _counts(counts):
    """ "LDG 4 STG 1", without those that are not there."""
    return " ".join(f"{op} {n}" for op, n in counts.items() if n) or f"no {' or '.join(counts)}"


def _own(asm, opcode):
    """Without the exchange (ATOMG) by which Triton publishes each descriptor made in a kernel."""
    descriptors = asm.count("UTMACCTL") if opcode == "ATOMG" else 0
    return max(0, asm.count(opcode) - descriptors)


def at_least(limit: int, *opcodes: str, text: str | None = None):
    """At least `limit` instructions of these kinds together, e.g. at_least(1, "LDG.E.128")."""
    return Claim(
        text or f"at least {limit} of {' or '.join(opcodes)}",
        lambda asm: sum(asm.count(op) for op in opcodes) >= limit,
        lambda asm: _counts({op: asm.count(op) for op in opcodes}),
    )


ATOMICS = ("RED", "REDG", "ATOM", "ATOMG", "ATOMS")
FLOAT64 = ("DADD", "DFMA", "DMUL")


def wide_loads():
    """Global memory is read 16 bytes at a time."""
    return at_least(1, "LDG.E.128", text="16-byte loads (LDG.E.128)")


WIDE = "LDG.E.128", "LDGSTS.E.BYPASS.128", "UTMALDG"  # a copy ahead of a loop; the copy engine


def wide_reads():
    """Neighbours are read together: by threads, or by what copies into shared memory for them."""
    return Claim(
        "four neighbours in one load (LDG.E.128)",
        lambda asm: any(asm.count(op) for op in WIDE),
        lambda asm: _counts({op: asm.count(op) for op in WIDE}),
    )


def float32_only():
    """No arithmetic in float64, which takes 2 of 64 lanes or fewer, and twice the registers."""
    return Claim(
        "float32 arithmetic only: float32(0) to start a sum from, not 0; float32(0.5), not 0.5",
        lambda asm: not any(asm.count(op) for op in FLOAT64),
        lambda asm: _counts({op: asm.count(op) for op in FLOAT64}),
        absence=True,
    )


# Of local memory a thread: an index or two, or eight of the 64 numbers that it keeps of a state. A
# spilled tile takes hundreds.
FEW_BYTES = 32


def in_registers():
    """The state lives in registers; an index or two may be put aside in local memory."""
    return Claim(
        f"the state in registers: at most {FEW_BYTES} bytes of local memory",
        lambda asm: max(asm.local_bytes, asm.spill_stores) <= FEW_BYTES,
        lambda asm: f"{asm.local_bytes} B local",
        absence=True,
    )


def no_spills():
    """All of a program's blocks find room in its registers; a few bytes are told and let pass."""
    return Claim(
        f"no spills, or at most {FEW_BYTES} bytes",
        lambda asm: max(asm.spill_stores, asm.spill_loads) <= FEW_BYTES,
        lambda asm: f"{asm.spill_stores} B spilled",
        lambda asm: (
            f"{asm.spill_stores} bytes are spilled; none would be better" * bool(asm.spill_stores)
        ),
        absence=True,
        hint="Which tiles are needed at the same time? Compute each one as late as possible. Of "
        'float32 products, "ieee" ones take more registers than "tf32x3".',
    )


def registers(limit: int):
    """A thread has at most so many registers."""
    count = "{} registers".format
    return Claim(
        f"at most {limit} registers",
        lambda asm: asm.registers <= limit,
        lambda asm: count(asm.registers),
    )


def machine_code(*claims: Claim, signature, arch="sm_90"):
    """Compiles the kernel for an H200, without one, and holds its machine code against `claims`."""
    return compiled(lambda assembly, kernel: assembly(kernel, *signature, arch=arch), claims, arch)


def compiled(read: Callable, claims, arch):
    """`machine_code` of any kernel: `read(assembly, kernel)` calls `assembly` as it has to be."""

    def gather(kernel, exercise):
        from warplens.compiled.assembly import CompileError, assembly, what_is_missing

        if missing := what_is_missing(kernel):
            return Row("machine code", ABSENT, missing)
        try:
            asm = read(assembly, kernel)
        except CompileError as error:
            return Row("machine code", FAILED, "does not compile", tuple(str(error).splitlines()))
        for claim in claims:
            if not claim.holds(asm):
                hint = (f"hint: {claim.hint}",) if claim.hint else ()
                details = (f"found {claim.counts(asm)}", *hint)
                return Row("machine code", FAILED, f"want {claim.text}", details)
        counts = [claim.counts(asm) for claim in claims if not claim.absence]
        if not any("registers" in text for text in counts):
            counts.append(f"{asm.registers} registers")
        if asm.shared_bytes:
            counts.append(f"{-(-asm.shared_bytes // 1024)} KB shared")
        warnings = [claim.warning(asm) for claim in claims]
        if asm.local_bytes > FEW_BYTES:
            warnings.append(
                f"{asm.local_bytes:,} bytes of local memory a thread, which is in global memory: "
                "arrays and values that found no register"
            )
        warnings = tuple(filter(None, warnings))
        return Row("machine code", PASSED, f"{' · '.join(counts)} ({arch})", warnings)

    gather.kind = "machine code"
    return gather
