"""The machine code of a kernel and the resources it needs, without a GPU, driver or CUDA toolkit.

A numba kernel is compiled as for a launch: NVVM writes link-time IR, and nvJitLink turns it into
a cubin for the exact chip (`sm_90a`). A Triton kernel goes through `triton.compile`, in a separate
process unless its package is trusted (`targets`). nvdisasm and ptxas's log supply the rest.
"""

import functools
import linecache
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..architectures import ARCHITECTURES
from . import from_numba as cubin_numba
from . import from_triton as cubin_triton
from .apart import Crashed, apart
from .cubin import CompileError
from .disassembler import disassembled, nvidia_tool
from .functions import dependencies, named, plain
from .targets import own_target

__all__ = ["Assembly", "CompileError", "assembly", "can_compile", "what_is_missing"]

# A line of nvdisasm: offset, perhaps a predicate, then the opcode with its modifiers.
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+((?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^;]*);")
PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')


@dataclass(eq=False)
class Assembly:
    """One kernel for one architecture. Sizes are bytes: spills and local a thread, shared a block.

    Attributes:
        sass: the instructions in order, as text; padding (`NOP`) left out.
        counts: how often each opcode with its modifiers ("LDG.E.128") occurs in the code. An
            instruction in a loop counts once.
        spill_stores, spill_loads: registers moved to local memory because too few are available.
        local_bytes: stack, spills included: arrays indexed by a variable live here.
        shared_bytes: declared in the kernel; a launch may add dynamic shared memory.
        ttgir: of a Triton kernel, the program in which its tensors have layouts; see layouts.py.
    """

    name: str
    arch: str
    ptx: str
    sass: str
    registers: int
    spill_stores: int
    spill_loads: int
    local_bytes: int
    shared_bytes: int
    counts: Counter[str]
    source: str | None = None
    ttgir: str | None = None
    _places: Any = field(default=None, repr=False)

    def count(self, prefix: str) -> int:
        """How many instructions are `prefix`, with any modifiers: "LDG" counts "LDG.E.128"."""
        return sum(
            n for op, n in self.counts.items() if op == prefix or op.startswith(prefix + ".")
        )

    def started(self, opcode: str, *before: str) -> int:
        """How many `opcode` instructions stand in front of the first of any of `before`.

        Loads that are started before a first result is needed are on their way together.
        """
        count = 0
        for line in self.sass.splitlines():
            name = next((word for word in line.split() if not word.startswith("@")), "")
            kinds = {name[:end] for end, c in enumerate(name + ".") if c == "."}
            if kinds & set(before):
                break
            count += opcode in kinds
        return count

    @property
    def atomics(self) -> int:
        """How many instructions are atomics, by whatever name this architecture has for them."""
        return sum(n for op, n in self.counts.items() if op.split(".")[0] in KINDS["atomics"])

    @functools.cached_property
    def _lines(self):
        lines = {}
        for line, text in self.listing():
            if line:
                lines.setdefault(line, []).append(text)
        return dict(sorted(lines.items()))

    def listing(self) -> list[tuple[int | None, str]]:
        """[(line number in the kernel's own file, or None, instruction)], in the code's order."""
        return list(self._places())

    def by_line(self) -> dict[int, list[str]]:
        """{line number in the kernel's own file: its instructions}; code of no line is left out."""
        return {line: list(texts) for line, texts in self._lines.items()}

    def annotated(self, full: bool = False) -> str:
        """The source with each line's opcode counts, or with its instructions if `full`."""
        text = []
        for line, instructions in self._lines.items():
            source = linecache.getline(self.source, line).rstrip() if self.source else ""
            if full:
                text += [f"{line:4}  {source}"] + [" " * 10 + i for i in instructions]
                continue
            ops = Counter(_opcode(i) for i in instructions)
            ops = "  ".join(f"{op} ×{n}" if n > 1 else op for op, n in ops.most_common())
            text += [f"{line:4}  {source}", " " * 10 + ops]
        return "\n".join(text)

    def summary(self) -> str:
        """Registers, memory, and the instructions that move data or do arithmetic, as text."""
        rows = [
            ("registers", self.registers),
            ("spills", f"{self.spill_stores} B stored, {self.spill_loads} B loaded"),
            ("local memory", f"{self.local_bytes} B a thread"),
            ("shared memory", f"{self.shared_bytes} B a block"),
        ]
        for title, prefixes in KINDS.items():
            ops = [op for op in sorted(self.counts) if op.split(".")[0] in prefixes]
            if ops:
                rows.append((title, "  ".join(f"{op} ×{self.counts[op]}" for op in ops)))
        rows.append(("instructions", sum(self.counts.values())))
        return "\n".join([f"{self.name}, {self.arch}"] + [f"  {k:<15}{v}" for k, v in rows])

    def __str__(self) -> str:
        return self.summary()


KINDS = {
    "global loads": {"LDG"},
    "global stores": {"STG"},
    "atomics": {"RED", "ATOM", "ATOMG", "ATOMS", "REDG"},
    "shared": {"LDS", "STS", "LDSM", "STSM", "LDGSTS"},
    "tile copies": {"UTMALDG", "UTMASTG", "SYNCS"},
    "local": {"LDL", "STL"},
    "barriers": {"BAR"},
    "float32": {"FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"},
    "float64": {"DFMA", "DADD", "DMUL"},
    "special": {"MUFU"},
    "tensor cores": {"HMMA", "HGMMA", "IMMA", "QGMMA", "UTCHMMA"},
}


def can_compile(kernel: object = None) -> bool:
    """Whether `assembly` works on this machine; `what_is_missing` explains why not."""
    return what_is_missing(kernel) is None


def what_is_missing(kernel: object = None) -> str | None:
    """None where `assembly` works here, else one sentence that says what is missing.

    Args:
        kernel: a kernel, to ask only for what it needs; without, both numba and Triton count.
    """
    if kernel is not None and _of_mlir(kernel):
        return "machine code of numba-cuda-mlir's kernels is not supported, only numba-cuda's"
    ways = [cubin_numba, cubin_triton] if kernel is None else [_way(kernel)]
    reasons = [reason for way in ways if (reason := way.missing())]
    if not reasons and nvidia_tool("nvdisasm") is None:
        return "nvdisasm is missing: pip install 'warplens[machine-code]' brings it"
    return reasons[0] if reasons else None


def _of_mlir(kernel):
    """Whether it, or a name in it, comes from numba-cuda-mlir."""
    values = [type(kernel), *named(plain(kernel)).values()]
    places = [getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in values]
    return any(str(place).startswith("numba_cuda_mlir") for place in places)


def assembly(
    kernel: object,
    *args: Any,
    arch: str = "sm_90",
    constants: dict[str, Any] | None = None,
    **options: Any,
) -> Assembly:
    """Compiles `kernel` for `arch` and reads its machine code.

    Args:
        kernel: a numba dispatcher (with the options of its `cuda.jit`), a plain function (compiled
            as `cuda.jit` would) or a Triton kernel.
        args: numpy arrays, torch tensors, scalars or numba types (`float32[:, ::1]`). For Triton:
            tensors, scalars or types as text ("*fp32", "i32"), by position or by name; constexprs
            by value. A pointer given as text counts as 16-byte aligned unless it says less
            ("*fp32:4"), an integer as a multiple of 16 only if it says so ("i32:16").
        arch: "sm_80", "sm_90" or another of `architectures.py`.
        constants: {global name: value}, instead of the kernel's and its device functions' own.
        options: numba: those of `cuda.jit` (fastmath, max_registers, launch_bounds, opt, lto);
            Triton: num_warps, num_stages and the like.

    Raises:
        CompileError: the kernel does not compile, in one or two lines.
        RuntimeError: something is missing here; `what_is_missing` says what.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}, needs one of {', '.join(ARCHITECTURES)}")
    function = plain(kernel)
    if missing := what_is_missing(kernel):
        raise RuntimeError(missing)
    way = _way(kernel)
    signature, constants, options = way.prepare(kernel, args, constants or {}, options)
    key = (dependencies(function), repr((signature, constants, options)), arch, way)
    if key not in _compiled:
        _compiled[key] = _read(way, kernel, (signature, arch, constants, options))
    return _compiled[key]


_compiled = {}


def _way(kernel):
    return cubin_triton if type(kernel).__module__.startswith("triton.") else cubin_numba


def _built(way, kernel, request):
    """The Cubin. LLVM may abort on a kernel that is not the library's: it has its own process."""
    if way is cubin_numba or own_target(plain(kernel)):
        return way.build(kernel, *request)
    try:
        return apart(way.build, kernel, *request)
    except Crashed as crash:
        raise way.crashed(crash, plain(kernel)) from None
    except CompileError as error:
        raise way.with_reason(error, plain(kernel)) from None


def _read(way, kernel, request):
    cubin = _built(way, kernel, request)
    instructions = _instructions(disassembled(cubin.code))
    name, source = plain(kernel).__name__, plain(kernel).__code__.co_filename

    def places():
        # Triton writes line information always, numba when asked.
        lined = way.build(kernel, *request, lineinfo=True) if way is cubin_numba else cubin
        listing = disassembled(lined.code, "-gi")
        if _instructions(listing) != instructions:
            message = f"{name} compiles to other code with line numbers: listings have that code"
            warnings.warn(message, stacklevel=4)
        return _places(listing, cubin.file or source)

    return Assembly(
        name=name,
        arch=request[1],
        ptx=cubin.ptx,
        sass="\n".join(instructions),
        counts=Counter(map(_opcode, instructions)),
        source=source,
        ttgir=cubin.ttgir,
        _places=places,
        **_resources(cubin),
    )


# The disassembler's listing and the log of ptxas.


def _opcode(instruction):
    return re.sub(r"^@\S+\s+", "", instruction).split()[0]


def _instructions(listing):
    """The instructions of nvdisasm's listing without the padding, one string each."""
    texts = (" ".join(m[1].split()) for m in INSTRUCTION.finditer(listing))
    return [text for text in texts if _opcode(text) != "NOP"]


def _places(listing, source):
    """(line in `source` or None, instruction) for each instruction."""
    line = None
    chain = False
    for text in listing.splitlines():
        if place := PLACE.search(text):
            # The innermost place comes first, then where it was inlined, outwards.
            places = [(place[1], place[2]), (place[3], place[4])]
            own = next((int(n) for f, n in places if f and _same_file(f, source)), None)
            line = line if chain and line else own
            chain = True
        elif match := INSTRUCTION.search(text):
            chain = False
            instruction = " ".join(match[1].split())
            if _opcode(instruction) != "NOP":
                yield line, instruction


def _same_file(path, file):
    """The compiler puts a folder before the made-up file name of a notebook's cell."""
    return path == file or path.endswith("/" + file)


def _resources(cubin):
    """What ptxas -v says about a kernel, summed over the functions that it did not inline."""

    def numbers(pattern):
        return [int(n) for n in re.findall(pattern, cubin.log)]

    return {
        "registers": max(numbers(r"Used (\d+) registers")),
        "local_bytes": sum(numbers(r"(\d+) bytes stack frame")),
        "spill_stores": sum(numbers(r"(\d+) bytes spill stores")),
        "spill_loads": sum(numbers(r"(\d+) bytes spill loads")),
        "shared_bytes": max(numbers(r"(\d+) bytes smem"), default=0) + cubin.launch_shared,
    }
