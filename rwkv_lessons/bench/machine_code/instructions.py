"""nvdisasm's text as instructions: the registers that each reads and writes, and what may follow.

Text names the first register of several: `HMMA.16816.F32 R92, R180, R116, R92` reads R180 to R183,
R116, R117 and R92 to R95, and writes R92 to R95. How many they are follows from the opcode.
"""

import re
from dataclasses import dataclass

LINE = re.compile(r"^(?P<label>\.L\w+):|/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<text>[^;]+?)\s*;")
CONDITION = re.compile(r"^@!?U?P\w+\s+")
PREDICATE = re.compile(r"^!?U?P(?:\d|T)$")
REGISTER = re.compile(r"(?<!U)\bR(\d+|Z)\b(\.64)?")
LABEL = re.compile(r"`\((\.L\w+)\)")
# What begins with one of these writes no register, or only uniform ones and predicates.
WRITES_NONE = re.compile(
    r"ST[GLST]\b|STAS|STSM|STTM|RED|[A-Z]+SETP|FCHK|LDGSTS|BAR|RET|BRX|JMX|CALL"
)
ENDS = {"BRA", "EXIT", "RET", "BRX", "JMP", "JMX"}


@dataclass(frozen=True)
class Instruction:
    """One line.

    Attributes:
        address: in hexadecimal, as nvdisasm writes it.
        text: without the condition.
        certain: it is carried out whenever it is reached.
        reads: one tuple of registers for each operand.
        writes: registers.
        follows: indices of the instructions that may be next.
    """

    address: str
    text: str
    certain: bool
    reads: tuple
    writes: tuple
    follows: tuple = ()

    @property
    def opcode(self):
        return self.text.split()[0]

    def __str__(self):
        return f"{self.address} {self.text}"


def instructions(text):
    """Of a listing of one kernel, in order."""
    lines, labels = [], {}
    for match in filter(None, map(LINE.search, text.splitlines())):
        if match["label"]:
            labels[match["label"]] = len(lines)
        else:
            lines.append((match["address"], match["text"]))
    return [_instruction(*line, n, labels, len(lines)) for n, line in enumerate(lines)]


def _instruction(address, text, n, labels, count):
    bare = CONDITION.sub("", text)
    opcode, operands = _split(bare)
    certain = bare == text
    first = opcode.split(".")[0]
    jump = [labels[name] for name in LABEL.findall(bare) if first == "BRA" and name in labels]
    some = any(map(PREDICATE.match, operands)) or opcode.endswith((".DIV", ".ANY"))
    conditional = not certain or some
    onward = [n + 1] if first not in ENDS or conditional else []
    follows = tuple(x for x in onward + jump if x < count)
    reads, writes = _registers(opcode, operands)
    return Instruction(address, bare, certain, reads, writes, follows)


def _split(text):
    """The opcode, and its operands: what commas outside of brackets part."""
    opcode, _, rest = text.partition(" ")
    operands = re.split(r",\s*(?![^\[(]*[\])])", rest.replace(".reuse", "").strip())
    return opcode, [x.strip() for x in operands if x.strip()]


def _registers(opcode, operands):
    """What each operand reads, and what is written."""
    operands = list(operands)
    writes = ()
    if not WRITES_NONE.match(opcode):
        place = next((i for i, x in enumerate(operands) if not PREDICATE.match(x)), None)
        if place is not None and re.fullmatch(r"R(\d+|Z)", operands[place]):
            writes = _run(REGISTER.search(operands.pop(place)), written(opcode))
    reads = []
    sources = [x for x in operands if not PREDICATE.match(x)]
    for place, operand in enumerate(sources):
        wide = read(opcode, place, operand, last=place == len(sources) - 1)
        reads += [_run(m, 2 if m[2] else wide) for m in REGISTER.finditer(operand)]
    return tuple(filter(None, reads)), writes


def _run(match, count):
    return () if match[1] == "Z" else tuple(range(int(match[1]), int(match[1]) + count))


def _memory(parts):
    """Registers that a load or a store moves."""
    return next((n for bits, n in (("256", 8), ("128", 4), ("64", 2)) if bits in parts), 1)


def written(opcode):
    """How many registers it writes."""
    first, *parts = opcode.split(".")
    if first == "HGMMA":
        return _columns(parts) // 2
    if first == "HMMA":
        return 4 if "F32" in parts else 2
    if first == "LDTM":
        return _of_tensor_memory(parts)
    if first == "LDSM":
        return int(parts[-1]) if parts[-1] in "24" else 1
    if first.startswith("LD") or first.startswith("ATOM"):
        return _memory(parts)
    if first == "CS2R":
        return 1 if "32" in parts else 2
    if first in ("F2F", "I2F"):
        return 2 if parts[:1] == ["F64"] else 1
    if first in ("F2I", "FRND"):
        return 2 if {"S64", "U64"} & set(parts) or parts[:1] == ["F64"] else 1
    return 2 if _all_wide(first, parts) or _packed(first) or "WIDE" in parts else 1


def read(opcode, place, operand, last):
    """How many registers are read from the first one of the operand at `place`, of the sources."""
    first, *parts = opcode.split(".")
    if "[" in operand:  # an address; "R2.64" says so itself
        return 1
    if first == "HGMMA":
        return 4 if place == 0 else _columns(parts) // 2
    if first == "HMMA":
        half = parts[0] == "1684" or (parts[0] == "1688" and "TF32" not in parts)
        return ((2, 1) if half else (4, 2))[place] if place < 2 else written(opcode)
    if first == "STTM":
        return _of_tensor_memory(parts)
    if first == "STSM":
        return int(parts[-1]) if parts[-1] in "24" else 1
    if first.startswith("ST") or first.startswith("RED") or first.startswith("ATOM"):
        return _memory(parts)
    if first == "IMAD" and {"WIDE", "HI"} & set(parts):
        return 2 if place == 2 else 1
    if first == "I2F":
        return 2 if {"S64", "U64"} & set(parts) else 1
    if first in ("F2F", "F2I", "FRND"):
        return 2 if "F64" in parts[first == "F2F" :] else 1
    if _packed(first):  # "R8.F32" is one number for both
        return 2 if "F32x2" in operand else 1
    return 2 if _all_wide(first, parts) else 1


def _all_wide(first, parts):
    """Every register of it is a pair: double precision, 64-bit integers."""
    double = re.fullmatch(r"D(ADD|MUL|FMA|MNMX|SETP)", first)
    return bool(double) or ("64" in parts and first in ("IADD", "MOV", "SEL", "IMNMX"))


def _packed(first):
    """Two float32 at a time."""
    return first in ("FADD2", "FMUL2", "FFMA2")


def _columns(parts):
    """N of HGMMA.64xNxK."""
    return int(parts[0].split("x")[1])


def _of_tensor_memory(parts):
    """Registers of LDTM.16dp256bit.x4, LDTM.x32: of a shape, so many times."""
    times = next((int(p[1:]) for p in parts if re.fullmatch(r"x\d+", p)), 1)
    bits = next((int(m[1]) for p in parts if (m := re.fullmatch(r"16dp(\d+)bit", p))), 32)
    return times * max(1, bits // 64)
