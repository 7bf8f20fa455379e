"""Which machine code the library's launches need, and compiling it without a GPU."""

import contextlib
import hashlib
import io
import re
from unittest import mock

from rwkv_lessons.bench.machine_code.look import assemblers, known_to, wrong_barriers, wrong_code
from rwkv_lessons.records.fingerprint import fingerprint, source_of
from rwkv_lessons.runtime import packages
from rwkv_lessons.runtime.architectures import ARCHITECTURES, number_of
from rwkv_lessons.runtime.assembler import assembler

# Which machine code there is to make.


def recorded_launches(architectures=ARCHITECTURES):
    """{digest: (name, call, launch, architectures)} of all that launches.py records."""
    from rwkv_lessons.bench import launches
    from rwkv_lessons.runtime import devices

    rows = {}
    for architecture in architectures:
        for call, function in launches.calls(devices.gpu_like(architecture)):
            with launches.recorded(architecture) as recorded, any_triton():
                function()
            for launch in recorded:
                key = digest(launch, architecture)
                row = rows.setdefault(key, (name_of(launch[0]), call, launch, []))
                if architecture not in row[3]:
                    row[3].append(architecture)
    return rows


@contextlib.contextmanager
def any_triton():
    """A block in which calls that this Triton compiles wrong are recorded: none of them runs."""
    with mock.patch.object(packages, "WRONG_TRITON", None):
        yield
    packages.refuse_wrong_triton.cache_clear()


def digest(launch, architecture):
    """What identifies machine code: the kernel's code, its arguments by position, its options."""
    kernel, *how = launch
    # Not of what launches it: a launch is part of the digest as it was recorded.
    code = fingerprint(source_of(kernel), statements=False)
    parts = [code, ARCHITECTURES[architecture].ptx_of or architecture]
    if is_numba(kernel):
        signature, threads, _ = how
        function = kernel.py_func
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        sizes = {n: c.cell_contents for n, c in cells if isinstance(c.cell_contents, int)}
        parts += [str(signature), threads, sizes]
    else:
        signature, constants, options, attributes = how
        parts += [list(signature.values()), {k: str(v) for k, v in constants.items()}, attributes]
        names = ("num_warps", "num_stages", "maxnreg", "launch_pdl")
        parts += [getattr(options, k) for k in names]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def name_of(kernel):
    file, _, name = source_of(kernel).partition("::")
    file = file.removeprefix("rwkv_lessons/").removesuffix(".py")
    return f"{file.replace('/', '.')}.{name}".removesuffix(".build")


def is_numba(kernel):
    return type(kernel).__module__.startswith("numba")


def warps_of(launch):
    """How many warps a block has."""
    kernel, _, threads_or_constants, *options = launch
    return threads_or_constants // 32 if is_numba(kernel) else options[0].num_warps


# Compiling.


def compiled(launch, architectures):
    """{architecture: [registers, spills, shared]} of a recorded launch.

    Raises:
        RuntimeError: the machine code of an assembler that is here is not what the source says.
    """
    if is_numba(launch[0]):
        cubins = {a: in_numba(launch, a) for a in architectures}
        faults = [f"{a}: {x}" for a, (_, code) in cubins.items() for x in wrong_code(code)]
        uses = {a: resources(log, 0) for a, (log, _) in cubins.items()}
    else:
        code = in_triton(launch, architectures[0])
        faults = wrong_barriers(code, architectures[0])
        uses = {}
        for architecture in architectures:
            ptx = code.asm["ptx"].replace(architectures[0], architecture)
            log, wrong = looked_at(ptx, architecture)
            uses[architecture] = resources(log, code.metadata.shared)
            faults += wrong
    if faults:
        raise RuntimeError("\n".join(faults))
    return uses


def looked_at(ptx, architecture):
    """What the library's assembler says of PTX, and what is wrong with any assembler's code."""
    logs, faults = {}, []
    for version, one in assemblers().items():
        logs[version], code = assembled(known_to(ptx, one), architecture, one)
        if "wgmma" in ptx or resources(logs[version], 0)[1]:  # else there is nothing to find
            faults += [f"{architecture}, {one}: {fault}" for fault in wrong_code(code)]
    return logs[assembler().version], faults


def resources(log, shared):
    def numbers(pattern):
        return [int(n) for n in re.findall(pattern, log)]

    shared += max(numbers(r"(\d+) bytes smem"), default=0)
    spills = sum(numbers(r"(\d+) bytes spill stores"))
    return [max(numbers(r"Used (\d+) registers")), spills, shared]


@contextlib.contextmanager
def log_of_ptxas():
    """What ptxas says meanwhile."""
    from triton import knobs

    printed = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(printed):
        knobs.compilation.always_compile = True  # a cached kernel comes without the log
        knobs.nvidia.dump_ptxas_log = True
        yield printed


def in_triton(launch, architecture):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    from rwkv_lessons.runtime.compile_triton import own_target

    kernel, signature, constants, options, attributes = launch
    kind = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    target = GPUTarget("cuda", number_of(architecture), 32)
    with log_of_ptxas():
        source = kind(kernel, signature, constants, attributes)
        return triton.compile(source, target=own_target(target), options=options.__dict__)


def assembled(ptx, architecture, with_assembler):
    """What an assembler says of PTX, given the options of every kernel, and its machine code."""
    from triton.backends.nvidia.compiler import CUDAOptions

    from rwkv_lessons.runtime.compile_triton import assemble

    capability = number_of(architecture)
    with log_of_ptxas() as printed:
        code = assemble(ptx, CUDAOptions(), capability, with_assembler)
    return printed.getvalue(), code


def in_numba(launch, architecture):
    from rwkv_lessons.runtime.launch_numba import linked

    capability = divmod(number_of(architecture), 10)
    cubin, _, log = linked(*launch[:3], capability, verbose=True)
    return log, bytes(cubin.code)
