"""The machine code of a kernel, with no GPU, driver or CUDA toolkit: what it asks of the hardware.

A numba kernel takes the way that a launch takes: NVVM writes link-time IR, nvJitLink turns it into
a cubin for the very chip (`sm_90a`). A Triton kernel goes through `triton.compile`. nvdisasm and
ptxas's own log then tell the rest.
"""

import builtins
import contextlib
import dis
import functools
import inspect
import linecache
import re
import shutil
import subprocess
import tempfile
import traceback
import types
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
NUMBA_OPTIONS = ("fastmath", "max_registers", "launch_bounds", "opt", "debug", "lto")
# A line of nvdisasm: offset, perhaps a predicate, then the opcode with its modifiers.
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+((?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^;]*);")
PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')


class CompileError(Exception):
    """The kernel does not compile; the message is the first useful line and the source line."""


@dataclass(eq=False)
class Assembly:
    """One kernel for one architecture. Sizes are bytes: spills and local a thread, shared a block.

    Attributes:
        sass: the instructions in order, as text; padding (`NOP`) left out.
        counts: how often each opcode with its modifiers stands in the code ("LDG.E.128"). It is a
            count of the text: an instruction in a loop counts once.
        spill_stores, spill_loads: registers moved to local memory for want of room.
        local_bytes: stack, spills included: arrays indexed by a variable live here.
        shared_bytes: declared in the kernel; a launch may add dynamic shared memory.
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
    counts: Counter
    source: str | None = None
    _places: object = field(default=None, repr=False)

    def count(self, prefix):
        """How many instructions are `prefix`, or it and a dot: "LDG" counts "LDG.E.128"."""
        return sum(
            n for op, n in self.counts.items() if op == prefix or op.startswith(prefix + ".")
        )

    @property
    def atomics(self):
        """How many instructions are atomics, by whatever name this architecture has for them."""
        return sum(n for op, n in self.counts.items() if op.split(".")[0] in KINDS["atomics"])

    @functools.cached_property
    def _lines(self):
        lines = {}
        for line, text in self._places():
            lines.setdefault(line, []).append(text)
        return dict(sorted(lines.items()))

    def by_line(self):
        """{line number in the kernel's own file: its instructions}; code of no line is left out."""
        return {line: list(texts) for line, texts in self._lines.items()}

    def annotated(self, full=False):
        """The source with what each line became: opcodes counted, or `full`: the instructions."""
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

    def summary(self):
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

    __str__ = summary


KINDS = {
    "global loads": {"LDG"},
    "global stores": {"STG"},
    "atomics": {"RED", "ATOM", "ATOMG", "ATOMS", "REDG"},
    "shared": {"LDS", "STS", "LDSM", "STSM", "LDGSTS", "UTMALDG", "UTMASTG"},
    "local": {"LDL", "STL"},
    "barriers": {"BAR"},
    "float32": {"FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"},
    "float64": {"DFMA", "DADD", "DMUL"},
    "special": {"MUFU"},
    "tensor cores": {"HMMA", "HGMMA", "IMMA", "QGMMA", "UTCHMMA"},
}


def available(kernel=None):
    """None where `assembly` works here, else one sentence that says what is missing.

    Args:
        kernel: a kernel, to ask only for what it needs; without, both numba and Triton count.
    """
    if _tool("nvdisasm") is None:
        return "nvdisasm is missing: install triton (Linux only), whose wheel brings it"
    needs_numba = kernel is None or not _is_triton(kernel)
    needs_triton = kernel is None or _is_triton(kernel)
    return (_numba_missing() if needs_numba else None) or (
        _triton_missing() if needs_triton else None
    )


def assembly(kernel, *args, arch="sm_90", constants=None, **options):
    """Compiles `kernel` for `arch` and reads its machine code.

    Args:
        kernel: a numba dispatcher (with the options of its `cuda.jit`), a plain function (compiled
            as `cuda.jit` would) or a Triton kernel.
        args: numpy arrays, torch tensors, scalars or numba types (`float32[:, ::1]`). For Triton:
            tensors, scalars or types as text ("*fp32", "i32"), by position or by name; constexprs
            by value. Pointers count as 16-byte aligned unless they say less ("*fp32:4"), an
            integer counts as a multiple of 16 only if it says so ("i32:16").
        arch: "sm_80", "sm_90" or "sm_100".
        constants: {global name: value}, in place of the kernel's and its device functions' own.
        options: numba: those of `cuda.jit` (fastmath, max_registers, launch_bounds, opt, lto);
            Triton: num_warps, num_stages and the like.

    Raises:
        CompileError: the kernel does not compile, in a few lines.
        RuntimeError: something is missing here; `available` says what.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}, needs one of {', '.join(ARCHITECTURES)}")
    if missing := available(kernel):
        raise RuntimeError(missing)
    build = _assemble_triton if _is_triton(kernel) else _assemble_numba
    return build(kernel, args, arch, constants or {}, options)


# The disassembler and the log of ptxas.


def _tool(name):
    try:
        import triton

        path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
        if path.exists():
            return str(path)
    except ImportError:
        pass
    return shutil.which(name)


def _disassemble(cubin, *flags):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_tool("nvdisasm"), "-c", *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _opcode(instruction):
    return re.sub(r"^@\S+\s+", "", instruction).split()[0]


def _instructions(listing):
    """The instructions of nvdisasm's listing without the padding, one string each."""
    found = (" ".join(m[1].split()) for m in INSTRUCTION.finditer(listing))
    return [text for text in found if _opcode(text) != "NOP"]


def _places(listing, source):
    """(line in `source`, instruction) for each instruction that belongs to a line there."""
    line = None
    chain = False
    for text in listing.splitlines():
        if place := PLACE.search(text):
            # The innermost place comes first, then where it was inlined, outwards.
            places = [(place[1], place[2]), (place[3], place[4])]
            own = next((int(n) for f, n in places if f and Path(f) == Path(source)), None)
            line = line if chain and line else own
            chain = True
        elif match := INSTRUCTION.search(text):
            chain = False
            instruction = " ".join(match[1].split())
            if line and _opcode(instruction) != "NOP":
                yield line, instruction


def _resources(log):
    """What ptxas -v says about a kernel, summed over the functions that it did not inline."""

    def numbers(pattern):
        return [int(n) for n in re.findall(pattern, log)]

    return {
        "registers": max(numbers(r"Used (\d+) registers")),
        "local_bytes": sum(numbers(r"(\d+) bytes stack frame")),
        "spill_stores": sum(numbers(r"(\d+) bytes spill stores")),
        "spill_loads": sum(numbers(r"(\d+) bytes spill loads")),
        "shared_bytes": max(numbers(r"(\d+) bytes smem"), default=0),
    }


# numba


def _numba_missing():
    try:
        from numba import cuda
    except ImportError:
        return "numba is missing: install numba and numba-cuda[cu13]"
    if cuda.__name__.endswith("simulator") or not hasattr(cuda, "compile"):
        return "numba's simulator is on (NUMBA_ENABLE_CUDASIM), and it compiles nothing"
    try:
        import cuda.core  # noqa: F401
        from numba.cuda.cudadrv import driver, nvvm
    except ImportError:
        return "the CUDA compiler parts are missing: install numba-cuda[cu13] (Linux or Windows)"
    try:
        nvvm.NVVM()
    except Exception:
        return "NVVM is missing: install numba-cuda[cu13], whose extra brings it"
    if not driver._have_nvjitlink():
        return "nvJitLink is missing: install numba-cuda[cu13], whose extra brings it"
    return None


def _assemble_numba(kernel, args, arch, constants, options):
    function = _python(kernel)
    if unknown := set(options) - set(NUMBA_OPTIONS):
        raise TypeError(f"unknown option {min(unknown)!r}, needs one of {', '.join(NUMBA_OPTIONS)}")
    own = getattr(kernel, "targetoptions", {})
    if own.get("link"):
        raise ValueError("kernel has link=…: files to link are not supported here")
    options = {"lto": True} | {k: own[k] for k in NUMBA_OPTIONS if k in own} | options
    signature = tuple(_numba_type(a) for a in args)
    parameters = list(inspect.signature(function).parameters)
    if len(signature) != len(parameters):
        raise TypeError(
            f"args are {len(signature)}, {function.__name__} needs {len(parameters)}: "
            f"{', '.join(parameters)}"
        )
    key = (_fingerprint(function), _frozen(constants), signature, arch, _frozen(options))
    if key not in _numba_cache:
        _numba_cache[key] = _build_numba(function, signature, arch, constants, options)
    return _numba_cache[key]


_numba_cache = {}


def _build_numba(function, signature, arch, constants, options):
    def link(lineinfo=False):
        return _link(function, signature, arch, constants, options, lineinfo)

    def places():
        cubin, _, _ = link(lineinfo=True)
        listing = _disassemble(cubin, "-gi")
        if _instructions(listing) != instructions:
            warnings.warn("with line information the compiler wrote other code", stacklevel=4)
        return _places(listing, function.__code__.co_filename)

    cubin, ptx, log = link()
    instructions = _instructions(_disassemble(cubin))
    return Assembly(
        name=function.__name__,
        arch=arch,
        ptx=ptx,
        sass="\n".join(instructions),
        counts=Counter(map(_opcode, instructions)),
        source=function.__code__.co_filename,
        _places=places,
        **_resources(log),
    )


def _link(function, signature, arch, constants, options, lineinfo):
    """(cubin, PTX, ptxas's log) of a kernel, by the steps that numba.cuda takes for a launch."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba import cuda

    # numba asks for the chip's own features ("a") from Hopper on.
    major, minor = int(arch[3:-1]), int(arch[-1])
    cc = (major, minor, "a") if major >= 9 else (major, minor)
    lto = options["lto"] and not options.get("debug")
    compiler = {k: options.get(k) for k in ("fastmath", "launch_bounds", "opt", "debug")}
    compiler["fastmath"] = bool(compiler["fastmath"])
    function = _rebuild(function, constants, lineinfo, {})
    _undefined(function)
    try:
        with _compiling_for(cc), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _ = cuda.compile(
                function,
                signature,
                device=False,
                abi="numba",
                cc=cc,
                lineinfo=lineinfo,
                output="ltoir" if lto else "ptx",
                **compiler,
            )
        code = ObjectCode.from_ltoir(code) if lto else ObjectCode.from_ptx(code.encode())
        common = {
            "arch": "sm_" + "".join(map(str, cc)),
            "max_register_count": options.get("max_registers"),
            "link_time_optimization": lto or None,
            "lineinfo": lineinfo or None,
        }
        linker = Linker(code, options=LinkerOptions(verbose=True, **common))
        cubin = bytes(linker.link("cubin").code)
        ptx = bytes(code.code)
        if lto:
            ptx = Linker(code, options=LinkerOptions(ptx=True, **common)).link("ptx").code
    except Exception as error:
        raise CompileError(_explain(error, function)) from None
    return cubin, bytes(ptx).decode().strip("\0\n"), linker.get_info_log()


@contextlib.contextmanager
def _compiling_for(cc):
    """numba asks the current device for its architecture when it compiles a device function."""
    from numba.cuda import dispatcher

    device = types.SimpleNamespace(compute_capability=cc)
    real, dispatcher.get_current_device = dispatcher.get_current_device, lambda: device
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def _python(kernel):
    """The plain function under a decorator of numba or Triton."""
    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", None) or kernel
    if not inspect.isfunction(function):
        raise TypeError(f"kernel is a {type(kernel).__name__}, needs a kernel or a plain function")
    return function


def _globals(function):
    """The global and closed-over values that a function's code names."""
    named = {n: function.__globals__[n] for n in _names(function.__code__, function.__globals__)}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return named | {name: cell.cell_contents for name, cell in cells}


def _names(code, among):
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = set(code.co_names).union(*(_names(c, among) for c in inner))
    return sorted(n for n in names if n in among)


def _is_device_function(value):
    return hasattr(value, "py_func") and hasattr(value, "targetoptions")


def _rebuild(function, constants, lineinfo, done):
    """A copy of `function`, and of the device functions that it calls, with other constants."""
    from numba import cuda

    if function in done:
        return done[function]
    values = {n: constants[n] for n in _globals(function) if n in constants}
    cells = [types.CellType(v) for v in _closure(function, values)]
    copy = types.FunctionType(
        function.__code__,
        function.__globals__ | values,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    done[function] = copy
    for name, value in _globals(function).items():
        if _is_device_function(value):
            inner = _rebuild(value.py_func, constants, lineinfo, done)
            given = {k: v for k, v in value.targetoptions.items() if k in ("fastmath", "opt")}
            given |= {k: value.targetoptions.get(k) for k in ("inline", "forceinline")}
            inner = cuda.jit(device=True, lineinfo=lineinfo, **given)(inner)
            if name in function.__code__.co_freevars:
                cells[function.__code__.co_freevars.index(name)].cell_contents = inner
            else:
                copy.__globals__[name] = inner
    return copy


def _closure(function, values):
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [values.get(name, cell.cell_contents) for name, cell in cells]


def _fingerprint(function, seen=()):
    """What a compiled kernel depends on: its code, and the values and functions that it names."""
    parts = [function.__code__]
    for name, value in _globals(function).items():
        inner = getattr(value, "py_func", None) or getattr(value, "fn", None) or value
        if inspect.isfunction(inner) and inner not in seen:
            parts.append((name, _fingerprint(inner, (*seen, function))))
        elif not isinstance(value, types.ModuleType):
            parts.append((name, repr(value)))
    return tuple(parts)


def _frozen(values):
    return tuple(sorted((k, repr(v)) for k, v in values.items()))


def _numba_type(value):
    import numba
    from numba.cuda import types as cuda_types

    if isinstance(value, numba.core.types.Type | cuda_types.Type):
        return value
    if type(value).__module__.startswith("torch"):
        dtype = numba.np.numpy_support.from_dtype(_numpy_dtype(value.dtype))
        return cuda_types.Array(dtype, value.dim(), "C" if value.is_contiguous() else "A")
    return numba.typeof(value)


def _numpy_dtype(dtype):
    import numpy

    try:
        return numpy.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        raise TypeError(f"numpy has no {dtype}: give the numba type of the argument") from None


def _undefined(function):
    """Says so where the code names a global that is not there: numba's own words hide it."""
    known = function.__globals__.keys() | vars(builtins).keys()
    for step in dis.get_instructions(function):
        if step.opname == "LOAD_GLOBAL" and step.argval not in known:
            raise CompileError(
                _message(function, f"{step.argval!r} is not defined", step.positions.lineno)
            )


def _explain(error, function):
    """The first useful line of a compiler's error, and the line of the kernel that it is about."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    ptxas = re.search(r"ptxas error\s*:\s*(.*)", text)
    reasons = re.findall(r"^\s*(?:\w+Error|\w+Exception): (.*)", text, re.M)
    call = re.search(r">>> (.*)", text)
    if ptxas:
        why = re.sub(r"\b_Z\w+", function.__name__, ptxas[1])
    elif reasons:
        why = reasons[-1]
    elif call:
        why = f"numba has no {call[1]}"
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("Failed in cuda mode")]
        why = [*lines, type(error).__name__][0]
    place = re.search(r'File "[^"]*", line (\d+)', text)
    return _message(function, why, int(place[1]) if place else _blamed_line(error))


def _message(function, why, line):
    message = f"{function.__name__} does not compile: {why}"
    if line:
        source = linecache.getline(function.__code__.co_filename, line).strip()
        message += f"\n    line {line}: {source}"
    return message


def _blamed_line(error):
    """The line that numba was busy with, from the frames of its compiler."""
    line = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("self", "inst"):
            loc = getattr(frame.f_locals.get(name), "loc", None)
            line = getattr(loc, "line", None) or line
    return line


# Triton


def _is_triton(kernel):
    return type(kernel).__module__.startswith("triton.")


def _triton_missing():
    try:
        import triton  # noqa: F401
    except ImportError:
        return "triton is missing: it has wheels for Linux only"
    return None


def _assemble_triton(kernel, args, arch, constants, options):
    raise NotImplementedError
