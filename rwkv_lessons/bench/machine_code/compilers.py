"""What each compiler makes of the same kernels: registers, spills, instructions, shared memory.

    python -m rwkv_lessons.bench compilers            compiles for Hopper with what is installed
    python -m rwkv_lessons.bench compilers --table    prints all compilers that were ever compared

No GPU is needed. A run replaces the column of the Triton that it finds, and of numba-cuda and
numba-cuda-mlir if they are there, in records/data/compilers.json; docs/compilers.md has the table.
"""

import ast
import importlib
import inspect
import json
from datetime import date
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
ARCHITECTURE = "sm_90"
FIGURES = ("registers", "spilled bytes", "instructions", "shared bytes")
# (What the table calls it, kernel, call, which of that call's launches of the kernel).
KERNELS = (
    ("WKV-6, forward (Gluon)", "wkv6_hopper_kernel", "wkv6 chunked 64 bfloat16 training", 0),
    ("WKV-6, backward (Gluon)", "sweep_hopper_kernel", "wkv6 chunked 64 bfloat16 training", 0),
    ("WKV-7, chunks' maps", "wkv7_maps_kernel", "wkv7 chunked 64 bfloat16 raw training", 0),
    ("WKV-7, sweep", "wkv7_sweep_kernel", "wkv7 chunked 64 bfloat16 raw training", 0),
    ("WKV-7, gradients", "wkv7_chunk_gradients_kernel", "wkv7 chunked 64 bfloat16 raw training", 1),
    ("MLA, a step (Gluon)", "decode_turns_kernel", "mla decode R=512 bfloat16, 40 heads, pages", 0),
    ("MLA, a prompt", "attend_kernel", "mla prefill 192 bfloat16", 0),
    ("time-x", "timex_toeplitz_kernel", "timex toeplitz bfloat16", 0),
)
SOLUTIONS = Path(__file__).parents[3] / "solutions"
LADDER = (  # kernels that need nothing but `cuda` and `float32`
    ("03 atomic baseline", "03_atomic_baseline", "kernel"),
    ("04 no atomics", "04_drop_the_atomics", "kernel"),
    ("07 shared memory", "07_shared_memory", "shared"),
    ("07 the state in shared memory", "07_shared_memory", "state_in_shared"),
)


def command(options):
    columns = json.loads(TABLE.read_text()) if TABLE.exists() else []
    if not options.table:
        for column in filter(None, (of_triton(), of_numba("numba"), of_numba("numba_cuda_mlir"))):
            columns = [x for x in columns if x["compiler"] != column["compiler"]] + [column]
        columns.sort(key=lambda column: column["compiler"])
        TABLE.write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
    print(table(columns))


def table(columns):
    """Two tables in markdown: a row a kernel, a column a compiler, `FIGURES` in a cell."""
    parts = []
    for labels in (KERNELS, LADDER):
        names = [label for label, *_ in labels]
        some = [column for column in columns if set(names) & set(column["kernels"])]
        heads = [f"{x['compiler']}, ptxas {x['ptxas']}" for x in some]
        parts.append("\n".join([
            f"| kernel | {' | '.join(heads)} |",
            "|---" * (len(some) + 1) + "|",
            *(f"| {n} | {' | '.join(_cell(x['kernels'].get(n)) for x in some)} |" for n in names),
        ]))  # fmt: skip
    return "\n\n".join(parts)


def _cell(figures):
    if figures is None:
        return "—"
    registers, spilled, count, shared = figures
    return f"{registers} / {spilled} / {count:,} / {shared:,}"


def of_triton():
    """The column of the Triton that is installed."""
    import triton

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
        print(f"{label}: {_cell(kernels[label])}", flush=True)
    return _column(f"Triton {triton.__version__}", assembler().version, kernels)


def of_numba(package):
    """The column of numba-cuda ("numba") or its successor; None if that is not installed."""
    try:
        cuda = importlib.import_module(f"{package}.cuda")
        types = importlib.import_module(f"{package}.types")
    except ImportError:
        return None
    if package == "numba":
        name, version = "numba-cuda", importlib.import_module("numba_cuda").__version__
    else:
        tools = importlib.import_module(f"{package}.tools")
        tools._cached_cc = 9, 0  # else it asks the driver, although the call says cc=(9, 0)
        name, version = "numba-cuda-mlir", importlib.import_module(package).__version__
    kernels = {}
    for label, solution, kernel in LADDER:
        function = _function(SOLUTIONS / f"{solution}.py", kernel, cuda, types.float32)
        large, small = types.float32[:, :, :, ::1], types.float32[:, ::1]
        names = inspect.signature(function).parameters
        signature = types.void(*(small if x in ("decay", "u") else large for x in names))
        compile_options = {"device": False, "cc": (9, 0), "output": "ptx", "abi": "numba"}
        ptx, _ = cuda.compile(function, signature, **compile_options)
        ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
        log, cubin = assembled(known_to(ptx, assembler()), ARCHITECTURE, assembler())
        kernels[label] = _figures(log, cubin, 0)
    return _column(f"{name} {version}", assembler().version, kernels)


def _function(file, name, cuda, float32):
    """The undecorated function of a solution, with another package's `cuda` as its own."""
    names = {"cuda": cuda, "float32": float32}
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


def _column(compiler, ptxas, kernels):
    return {
        "compiler": compiler,
        "ptxas": ptxas,
        "architecture": ARCHITECTURE,
        "date": date.today().isoformat(),
        "kernels": kernels,
    }
