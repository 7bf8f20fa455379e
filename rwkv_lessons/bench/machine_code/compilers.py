"""What each compiler makes of the same kernels: registers, spills, instructions, shared memory.

    python -m rwkv_lessons.bench compilers            compiles for Hopper with what is installed
    python -m rwkv_lessons.bench compilers --table    prints all compilers that were ever compared

No GPU is needed. A run replaces the column of the Triton that it finds, and of numba-cuda and
numba-cuda-mlir if they are there, in records/data/compilers.json; docs/compilers.md has the tables.
bench/compiler_times.py adds times.
"""

import ast
import importlib
import inspect
import json
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from rwkv_lessons.bench.machine_code.compile import (
    assembled,
    in_triton,
    recorded_launches,
    resources,
)
from rwkv_lessons.bench.machine_code.instructions import instructions
from rwkv_lessons.bench.machine_code.look import known_to
from rwkv_lessons.records.schema import RECORDS
from rwkv_lessons.runtime.assembler import assembler
from warplens.compiled.disassembler import disassembled

TABLE = RECORDS / "compilers.json"
COMMAND = "python -m rwkv_lessons.bench compilers"
ARCHITECTURE = "sm_90"
FIGURES = ("registers", "spilled bytes", "instructions", "shared bytes")
FUSED = "wkv7 fused 64 bfloat16 log training"
# (What the table calls it, kernel, call, which of that call's launches of the kernel).
KERNELS = (
    ("WKV-6, forward (Gluon)", "wkv6_hopper_kernel", "wkv6 chunked 64 bfloat16 training", 0),
    ("WKV-6, backward (Gluon)", "sweep_hopper_kernel", "wkv6 chunked 64 bfloat16 training", 0),
    ("WKV-7 in one launch, forward (Gluon)", "wkv7_hopper_kernel", FUSED, 0),
    ("WKV-7 in one launch, reverse (Gluon)", "wkv7_reverse_kernel", FUSED, 0),
    ("WKV-7 in one launch, gradients (Gluon)", "wkv7_tile_gradients_kernel", FUSED, 0),
    ("WKV-7, chunks' maps", "wkv7_maps_kernel", "wkv7 chunked 64 bfloat16 raw training", 0),
    ("WKV-7, sweep", "wkv7_sweep_kernel", "wkv7 chunked 64 bfloat16 raw training", 0),
    ("WKV-7, gradients", "wkv7_chunk_gradients_kernel", "wkv7 chunked 64 bfloat16 raw training", 1),
    ("MLA, a step (Gluon)", "decode_turns_kernel", "mla decode R=512 bfloat16, 40 heads, pages", 0),
    ("MLA, a prompt", "attend_kernel", "mla prefill 192 bfloat16", 0),
    ("time-x", "timex_toeplitz_kernel", "timex toeplitz bfloat16", 0),
)
PACKAGES = {  # what the table calls each, and the module that has its version
    "triton": ("Triton", "triton"),
    "numba": ("numba-cuda", "numba_cuda"),
    "numba_cuda_mlir": ("numba-cuda-mlir", "numba_cuda_mlir"),
}
SOLUTIONS = Path(__file__).parents[3] / "solutions"
LADDER = (  # kernels that need nothing but `cuda` and `float32`
    ("03 atomic baseline", "03_atomic_baseline", "kernel"),
    ("04 no atomics", "04_drop_the_atomics", "kernel"),
    ("07 shared memory", "07_shared_memory", "shared"),
    ("07 the state in shared memory", "07_shared_memory", "state_in_shared"),
)


def command(options):
    columns = load()
    if not options.table:
        columns = save(columns, map(compiled, filter(find_spec, PACKAGES)))
    print(table(columns))
    if not options.table:
        print(f"\n{written()}")


def written():
    """Where columns are kept, and what puts them on the page."""
    return f"written: {TABLE}; `python -m rwkv_lessons.report` puts them into docs/compilers.md"


def load(folder=None):
    file = folder / TABLE.name if folder else TABLE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def save(columns, newer):
    """Columns with what newer ones say of the same compilers."""
    columns = {column["compiler"]: column for column in columns}
    for column in newer:
        columns[column["compiler"]] = columns.get(column["compiler"], {}) | column
    columns = [column for _, column in sorted(columns.items())]
    TABLE.write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
    return columns


def table(columns):
    """Tables in markdown, a column a compiler: `FIGURES` of kernels, times of calls."""
    names, timed = [label for label, *_ in LADDER], [x["timed"] for x in columns if "timed" in x]
    calls = dict.fromkeys(label for x in timed for label in x["ms"] if label not in names)
    parts = [
        _table(columns, "kernels", "kernel", [label for label, *_ in KERNELS], _figures_cell),
        _table(columns, "kernels", "kernel", names, _figures_cell),
        _table(timed, "ms", "milliseconds", list(calls), time_cell),
        _table(timed, "ms", "milliseconds", names, time_cell),
    ]
    return "\n\n".join(filter(None, parts))


def _table(columns, what, head, names, cell):
    some = [column for column in columns if set(names) & set(column.get(what, {}))]
    heads = [", ptxas ".join(filter(None, (x["compiler"], x["ptxas"]))) for x in some]
    return "\n".join([
        f"| {head} | {' | '.join(heads)} |",
        "|---" * (len(some) + 1) + "|",
        *(f"| {n} | {' | '.join(cell(x[what].get(n)) for x in some)} |" for n in names),
    ]) if some else ""  # fmt: skip


def _figures_cell(figures):
    if figures is None:
        return "—"
    registers, spilled, count, shared = figures
    return f"{registers} / {spilled} / {count:,} / {shared:,}"


def time_cell(outcome):
    """Milliseconds; a call that is wrong or does not run has a sentence instead, which is not."""
    if outcome is None:
        return "—"
    return "failed" if isinstance(outcome, str) else f"{outcome[0]:.4g}"


def compiled(package):
    """The column of a compiler: what it makes of the kernels for Hopper."""
    figures = of_triton() if package == "triton" else of_numba(package)
    return column(package, assembler().version) | {
        "architecture": ARCHITECTURE,
        "kernels": figures,
    }


def of_triton():
    """{label: `FIGURES`} of the Triton that is installed."""
    launches = list(recorded_launches([ARCHITECTURE]).values())
    kernels = {}
    for label, kernel, of_call, which in KERNELS:
        matching = [
            launch
            for name, call, launch, _ in launches
            if (name.split(".")[-1], call) == (kernel, of_call)
        ]
        code = in_triton(matching[which], ARCHITECTURE)
        log, cubin = assembled(known_to(code.asm["ptx"], assembler()), ARCHITECTURE, assembler())
        kernels[label] = _figures(log, cubin, code.metadata.shared)
        print(f"{label}: {_figures_cell(kernels[label])}", flush=True)
    return kernels


def of_numba(package):
    """The same of lessons' kernels, compiled by numba-cuda ("numba") or its successor."""
    cuda, types = (importlib.import_module(f"{package}.{x}") for x in ("cuda", "types"))
    if package == "numba_cuda_mlir":
        tools = importlib.import_module(f"{package}.tools")
        tools._cached_cc = 9, 0  # else it asks the driver, although the call says cc=(9, 0)
    kernels = {}
    for label, (function,) in ladder(package).items():
        large, small = types.float32[:, :, :, ::1], types.float32[:, ::1]
        names = inspect.signature(function).parameters
        signature = types.void(*(small if x in ("decay", "u") else large for x in names))
        compile_options = {"device": False, "cc": (9, 0), "output": "ptx", "abi": "numba"}
        ptx, _ = cuda.compile(function, signature, **compile_options)
        ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
        log, cubin = assembled(known_to(ptx, assembler()), ARCHITECTURE, assembler())
        kernels[label] = _figures(log, cubin, 0)
    return kernels


def ladder(package, *others):
    """{label: functions} of the lessons' kernels, and of other functions beside them."""
    cuda, types = (importlib.import_module(f"{package}.{x}") for x in ("cuda", "types"))
    return {
        label: [
            _function(SOLUTIONS / f"{file}.py", x, cuda, types.float32) for x in (kernel, *others)
        ]
        for label, file, kernel in LADDER
    }


def _function(file, name, cuda, float32):
    """The undecorated function of a solution, with another package's `cuda` as its own."""
    names = {"cuda": cuda, "float32": float32, "ceil_div": lambda a, b: -(-a // b)}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list = []
        elif not constant:
            continue
        exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return names[name]


def _figures(log, cubin, shared):
    registers, spilled, shared = resources(log, shared)
    return [registers, spilled, len(instructions(disassembled(cubin))), shared]


def column(package, ptxas):
    """What a column begins with; ptxas: its version, if it is known."""
    name, module = PACKAGES[package]
    version = importlib.import_module(module).__version__
    return {
        "compiler": f"{name} {version}",
        "ptxas": ptxas,
        "date": date.today().isoformat(),
    }
