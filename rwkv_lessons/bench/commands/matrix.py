"""What the library's kernels become on every architecture: registers, spills, shared memory.

    python -m rwkv_lessons.bench matrix            compiles all, writes records/data/compiled.json
    python -m rwkv_lessons.bench matrix --check    is that table whole, fresh and within bounds?

No GPU is needed. Which kernels there are, with which tiles, is recorded from the library's own host
code (launches.py), for each of `ARCHITECTURES`. Every assembler that is here makes machine code of
each, and that is looked through for what assemblers get wrong (bench/machine_code); a kernel with a
fault does not get into the table, which names the assemblers. `--check` also compiles the rows that
come closest to their bounds once more, and looks at them.
"""

import contextlib
import hashlib
import io
import json
import multiprocessing
import re
from dataclasses import asdict, dataclass

from rwkv_lessons.bench.machine_code.look import (
    assemblers,
    known_to,
    wrong_barriers,
    wrong_code,
)
from rwkv_lessons.bench.machine_code.spills import too_many
from rwkv_lessons.records.fingerprint import fingerprint, source_of
from rwkv_lessons.records.schema import RECORDS
from rwkv_lessons.runtime.architectures import ARCHITECTURES, number_of
from rwkv_lessons.runtime.assembler import assembler
from rwkv_lessons.runtime.command_line import WrongArgument

TABLE = RECORDS / "compiled.json"
MOST_REGISTERS = 255
AGAIN = 3  # rows that --check compiles again: about 20 s


@dataclass
class CompiledCall:
    """Machine code of one kernel: `found` has [registers, spills, shared] by architecture."""

    kernel: str
    call: str
    digest: str
    found: dict

    def problems(self):
        for architecture, (registers, spills, shared) in self.found.items():
            where, limits = f"{self}, {architecture}", ARCHITECTURES[architecture]
            limit = limits.shared_bytes_block
            if registers > MOST_REGISTERS:
                yield f"{where}: {registers} registers"
            if shared > limit:
                yield f"{where}: {shared} bytes of shared memory, a block can have {limit}"
            if spills > limits.spills:
                yield f"{where}: {spills} bytes of spills a thread"

    def tightness(self):
        """How close it comes to a bound, 1 at the bound."""
        uses = [(ARCHITECTURES[a], x) for a, x in self.found.items()]
        shared = max(x[2] / limits.shared_bytes_block for limits, x in uses)
        return max(shared, max(x[1] / limits.spills for limits, x in uses))

    def __str__(self):
        return f"{self.kernel} of {self.call}"


# Which machine code there is to make.


def recorded_launches(architectures=ARCHITECTURES):
    """{digest: (name, call, launch, architectures)} of all that launches.py records."""
    from rwkv_lessons.bench import launches
    from rwkv_lessons.runtime import devices

    rows = {}
    for architecture in architectures:
        for call, function in launches.calls(devices.gpu_like(architecture)):
            with launches.recorded(architecture) as recorded:
                function()
            for launch in recorded:
                key = digest(launch, architecture)
                row = rows.setdefault(key, (name_of(launch[0]), call, launch, []))
                if architecture not in row[3]:
                    row[3].append(architecture)
    return rows


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


_rows = {}  # what `recorded_launches` returned, for the processes that are forked


def compile_row(key):
    name, call, launch, architectures = _rows[key]
    try:
        return CompiledCall(name, call, key, compiled(launch, architectures))
    except Exception as error:
        raise RuntimeError(f"{name} of {call}, {architectures}: {str(error)[-2000:]}") from None


def compile_all(keys, report=lambda done, row: None):
    """The `CompiledCall` of these digests, two at a time, and what went wrong."""
    rows, failed = [], []
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=40) as pool:
        tasks = [(key, pool.apply_async(compile_row, (key,))) for key in keys]
        for done, (_, task) in enumerate(tasks):
            try:
                rows.append(task.get())
                report(done + 1, rows[-1])
            except RuntimeError as error:
                failed.append(str(error))
                report(done + 1, failed[-1])
    return rows, failed


# The table.


def versions():
    import triton

    return {"triton": triton.__version__, "ptxas": assembler().version}


def load(file=TABLE):
    """The table's versions, and its rows."""
    table = json.loads(file.read_text())
    return table["versions"], [CompiledCall(**row) for row in table["rows"]]


def assemblers_of(file=TABLE):
    """The versions of ptxas whose machine code of every row was looked at."""
    return json.loads(file.read_text()).get("looked_at", [])


def store(rows, looked_at, file=TABLE):
    rows = sorted(rows, key=lambda row: (row.kernel, row.call, row.digest))
    lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
    head = f'"versions": {json.dumps(versions())}, "looked_at": {json.dumps(sorted(looked_at))}'
    file.write_text(f'{{{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def command(options):
    architectures = (
        options.architectures.split(",") if options.architectures else list(ARCHITECTURES)
    )
    if unknown := sorted({*architectures} - {*ARCHITECTURES}):
        accepted = ", ".join(ARCHITECTURES)
        raise WrongArgument(f"--architectures: {unknown[0]!r} is none of {accepted}")
    if options.check:
        return check()
    _rows.update(recorded_launches(architectures))
    old = {}
    if options.missing and TABLE.exists():
        versions_then, rows = load()
        if versions_then == versions():
            old = {row.digest: row for row in rows}
    current = [old[k] for k, row in _rows.items() if k in old and {*row[3]} <= {*old[k].found}]
    keys = [key for key in _rows if key not in {row.digest for row in current}]
    looked_at = set(assemblers())
    if current:
        looked_at &= set(assemblers_of())

    def report(done, row):
        print(f"{done} of {len(keys)}", row, getattr(row, "found", ""), flush=True)
        if isinstance(row, CompiledCall):
            current.append(row)
        if done % 25 == 0:  # for --missing, should this be interrupted
            store(current, looked_at)

    _, failed = compile_all(keys, report)
    store(current, looked_at)
    problems = failed + [text for row in current for text in row.problems()]
    problems += too_many(current)
    if problems:
        raise ValueError("\n".join(problems))


def check():
    """Raises ValueError if the table is stale, not whole or out of bounds."""
    table_versions, rows = load()
    if table_versions != versions():
        print(f"The table was made with {table_versions}, here are {versions()}: not compared.")
        return
    _rows.update(recorded_launches())
    have = {(row.digest, a) for row in rows for a in row.found}
    need = {(key, a): row for key, row in _rows.items() for a in row[3]}
    problems = [f"{need[k][0]} of {need[k][1]}, {k[1]}: missing" for k in need.keys() - have]
    problems += [f"digest {k[0]}, {k[1]}: no longer launched" for k in have - need.keys()]
    problems += [text for row in rows for text in row.problems()]
    problems += too_many(rows)
    looked_at = assemblers_of()
    if assembler().version not in looked_at:
        problems.append(f"the machine code of {assembler()} was not looked at, of {looked_at} only")
    if not problems:
        tightest = sorted(rows, key=CompiledCall.tightness)[-AGAIN:]
        recompiled, problems = compile_all([row.digest for row in tightest])
        for row, new in zip(tightest, recompiled, strict=False):
            if row.found != new.found:
                problems.append(f"{row}: the table has {row.found}, now {new.found}")
    if problems:
        problems.append("See python -m rwkv_lessons.bench matrix --help")
        raise ValueError("\n".join(problems))
    print(f"{len(rows)} kernels, {len(have)} with their architectures: within bounds.")
    print(f"Machine code of ptxas {', '.join(looked_at)}: no fault found.")
