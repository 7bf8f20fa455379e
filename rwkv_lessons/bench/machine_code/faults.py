"""Two faults an assembler makes without a word, looked for in a kernel's machine code.

1. **A reload that is lost.** Registers spilled as a pair or four come back from local memory with
   one `LDL.64` or `LDL.128`. Where one of them is overwritten before it was ever read, and then all
   are read as one operand, that operand is half of one value and half of another:

       LDL.64 R182, [R1+0xb80]           R182 and R183 are back
       LDL R183, [R1+0x1bc]              R183 is something else
       HMMA.1688.F32.TF32 R92, R180, …   reads R180 to R183

   ptxas 12.9, 13.0 and 13.1 did so to a kernel of this library: docs/designs_wkv7.md.

2. **A product in flight that is touched.** HGMMA reads its registers, and adds to its accumulator,
   until `WARPGROUP.DEPBAR` says that it is done; nobody else may write the former, nor read or
   write the latter, before.

Every path is followed that the branches allow. What a predicate decides counts as not written.
"""

import re
from collections.abc import Iterator

from rwkv_lessons.bench.machine_code.instructions import Instruction, instructions

VARIES = re.compile(r"\[|SR_|, .*\bU?R\d")  # it reads memory or a register
GROUPS = 8  # of products in flight; kernels wait until 0 to 2 are left


def faults(listing: str) -> list[str]:
    """Each fault of a kernel in a sentence; `listing` is what `nvdisasm -c` prints."""
    code = instructions(listing)
    return sorted({*lost_reloads(code), *touched_products(code)})


def lost_reloads(code: list[Instruction]) -> Iterator[str]:
    """Of the first kind."""
    for n, reload in enumerate(code):
        if reload.opcode.startswith("LDL") and len(reload.writes) > 1:
            for reader, register in _halves(code, n):
                yield f"R{register} of {reload} is overwritten before {reader} reads it"


def _halves(code, n):
    """(instruction, register) where what is left of reload `n` is read with what replaced the rest.

    A path is at (instruction, registers it still has, those of them not read, those replaced).
    """
    group = frozenset(code[n].writes)
    paths = [(next_, group, group, frozenset()) for next_ in code[n].follows]
    visited = set(paths)
    while paths:
        index, intact, unread, replaced = paths.pop()
        step = code[index]
        for operand in map(set, step.reads):
            if operand & intact and operand & replaced:
                yield step, min(operand & replaced)
            unread -= operand
        if step.certain:
            if not _widens(step, intact):
                replaced |= unread.intersection(step.writes)
            intact, unread = intact.difference(step.writes), unread.difference(step.writes)
        if intact and (unread or replaced):
            new = {(next_, intact, unread, replaced) for next_ in step.follows} - visited
            visited |= new
            paths += new


def _widens(step, intact):
    """Whether it makes 64 bits of the 32 that are there: by their sign, or a constant.

    A number of 32 bits comes back as 64, too, of which the upper half was never meant.
    """
    return any(intact.intersection(x) for x in step.reads) or not VARIES.search(step.text)


def touched_products(code: list[Instruction]) -> Iterator[str]:
    """Of the second kind."""
    for n, product in enumerate(code):
        if product.opcode.startswith("HGMMA"):
            for other, register in _touched(code, n, _left(product), set(product.writes)):
                yield f"R{register} of {product} is touched by {other} while it is in flight"


def _left(product):
    """The registers of its left factor, if it has it in registers."""
    return {r for operand in product.reads for r in operand}.difference(product.writes)


def _touched(code, n, factor, sums):
    """(instruction, register) that comes too early after product `n`.

    A path is at (instruction, groups that were closed since; -1: its own is open).
    """
    closed = 0 if "gsb0" in code[n].text else -1
    paths = [(next_, closed) for next_ in code[n].follows]
    visited = set(paths)
    while paths:
        index, closed = paths.pop()
        step = code[index]
        if step.opcode.startswith("HGMMA"):  # products are carried out one after the other
            for register in sums & _left(step):  # but a left factor is read at once
                yield step, register
            closed += "gsb0" in step.text
        elif step.opcode.startswith("WARPGROUP.DEPBAR"):
            if closed >= int(step.text.rpartition(" ")[2], 16):
                continue
        else:
            read = {r for operand in step.reads for r in operand}
            for register in (factor | sums).intersection(step.writes) | (sums & read):
                yield step, register
        new = {(next_, min(closed, GROUPS)) for next_ in step.follows} - visited
        visited |= new
        paths += new
