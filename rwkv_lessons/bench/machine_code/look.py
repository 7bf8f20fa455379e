"""One launch by every assembler that is here: its machine code, and what is wrong with it."""

import functools
import re

from rwkv_lessons.bench.machine_code.barriers import allocated, shared_barriers
from rwkv_lessons.bench.machine_code.faults import faults
from rwkv_lessons.runtime.assembler import assembler, candidates
from warplens.compiled.disassembler import disassembled

VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)  # of PTX


@functools.cache
def assemblers():
    """{version: Assembler} of those here that the library takes, or would if it had no other."""
    own = assembler()
    others = {x.version: x for x in candidates() if not x.known_wrong}
    return others | {own.version: own}


def known_to(ptx, with_assembler):
    """The same PTX for an assembler that may be older than the one it was written for."""
    from triton.backends.nvidia.compiler import ptx_get_version

    newest = divmod(ptx_get_version(with_assembler.release), 10)
    written = tuple(map(int, VERSION.search(ptx).groups()))
    return VERSION.sub(".version {}.{}".format(*min(newest, written)), ptx, count=1)


def wrong_code(cubin):
    """Each fault of the machine code in a sentence."""
    return faults(disassembled(cubin))


def wrong_barriers(compiled, architecture):
    """Each fault of a compiled Triton kernel's shared memory in a sentence."""
    ttgir = compiled.asm["ttgir"]
    if "init_barrier" not in ttgir:
        return []
    return shared_barriers(allocated(ttgir, architecture, compiled.metadata.ptx_version))
