"""What the library's kernels become on every architecture: registers, spills, shared memory.

    python -m rwkv_lessons.bench matrix            compiles all, writes records/data/compiled.json
    python -m rwkv_lessons.bench matrix --check    is that table whole, fresh and within bounds?

No GPU is needed. Which kernels there are, with which tiles, is recorded from the library's own host
code (launches.py), for each of `ARCHITECTURES`. Every assembler that is here makes machine code of
each, and that is looked through for what assemblers get wrong (bench/machine_code); a kernel with a
fault does not get into the table, which names the assemblers. `--check` also compiles the rows that
come closest to their bounds once more, and looks at them.
"""

import json
import multiprocessing
from dataclasses import asdict, dataclass

from rwkv_lessons.bench.machine_code.compile import compiled, recorded_launches, warps_of
from rwkv_lessons.bench.machine_code.look import assemblers
from rwkv_lessons.bench.machine_code.spills import too_many
from rwkv_lessons.records.schema import RECORDS, need_records
from rwkv_lessons.runtime.architectures import ARCHITECTURES
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
    warps: int = 0  # of a block

    def problems(self):
        for architecture, (registers, spills, shared) in self.found.items():
            label, limits = f"{self}, {architecture}", ARCHITECTURES[architecture]
            limit = limits.shared_bytes_block
            if registers > MOST_REGISTERS:
                yield f"{label}: {registers} registers"
            if shared > limit:
                yield f"{label}: {shared} bytes of shared memory, a block can have {limit}"
            if spills > limits.spills:
                yield f"{label}: {spills} bytes of spills a thread"

    def tightness(self):
        """How close it comes to a bound, 1 at the bound."""
        uses = [(ARCHITECTURES[a], x) for a, x in self.found.items()]
        shared = max(x[2] / limits.shared_bytes_block for limits, x in uses)
        return max(shared, max(x[1] / limits.spills for limits, x in uses))

    def __str__(self):
        return f"{self.kernel} of {self.call}"


_rows = {}  # what `recorded_launches` returned, for the processes that are forked


def compile_row(key):
    name, call, launch, architectures = _rows[key]
    try:
        return CompiledCall(name, call, key, compiled(launch, architectures), warps_of(launch))
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
    need_records()
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
    for row in current:
        row.warps = warps_of(_rows[row.digest][2])
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
        problems.append("`make matrix ARGS=--missing` compiles what is missing")
        raise ValueError("\n".join(problems))
    print(f"{len(rows)} kernels, {len(have)} with their architectures: within bounds.")
    print(f"Machine code of ptxas {', '.join(looked_at)}: no fault found.")
