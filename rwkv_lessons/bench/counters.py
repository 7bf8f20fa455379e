"""Our counts against the hardware's: every rung, counted by Nsight Compute and by `warplens.trace`.

    python -m rwkv_lessons.bench.counters [wkv5|timex]   where a GPU and ncu are
    … --record                                                and keep what the hardware counted

The compiler may merge accesses that the source writes one by one: four neighbouring reads of shared
memory become one of 16 bytes. The trace counts the source, the hardware the machine code; where
they differ, the machine code shows why.
"""

import argparse
import csv
import dataclasses
import functools
import inspect
import io
import shutil
import subprocess
import sys

import numpy as np
import torch

from rwkv_lessons.inputs import rwkv5_inputs
from rwkv_lessons.operations import LADDERS
from rwkv_lessons.operations.entries import NUMBA, ROOT, lesson
from rwkv_lessons.records.fingerprint import source_of
from rwkv_lessons.records.lookup import record
from rwkv_lessons.records.schema import Measurement, Record, code, save
from rwkv_lessons.runtime.launch_numba import as_array, stream
from warplens.compiled.functions import plain
from warplens.cuda.trace import trace

SHAPES = {"wkv5": (2, 4, 3, 64), "timex": (8, 2, 64)}  # small enough to trace every thread
GRADIENTS = ("dk_naive", "dw_naive", "dw_shared", "dk_balanced", "dw_balanced")  # of lesson 11


@dataclasses.dataclass(frozen=True)
class CountedLaunch:
    """A kernel of a ladder, and one launch of it."""

    method: str  # of its row in the record
    label: str
    kernel: object
    grid: int
    block: int
    arrays: tuple  # numpy


# what we count → what ncu calls it
METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "atomic_requests": "smsp__inst_executed_op_global_red.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_instructions": "smsp__inst_executed_op_shared_st.sum",
}


COLUMNS = {
    "load requests": "load_requests",
    "load sectors": "load_sectors",
    "store requests": "store_requests",
    "store sectors": "store_sectors",
    "atomic requests": "atomic_requests",
    "shared reads": "shared_load_instructions",
    "wavefronts, load": "shared_load_wavefronts",
    "wavefronts, store": "shared_store_wavefronts",
}
SHOWN = ("load requests", "load sectors", "shared reads", "wavefronts, load")


@functools.cache
def rungs(ladder):
    """A `CountedLaunch` for every rung in numba; lesson 11's kernels of time-x come last."""
    shape, launched = SHAPES[ladder], []
    for rung in (rung for rung in LADDERS[ladder].rungs if rung.tool == NUMBA):
        module = rung.load()
        kernel, sizes = getattr(module, rung.kernel), getattr(module, rung.launch)(*shape)
        launched.append(
            CountedLaunch(rung.method, rung.label, kernel, *sizes, arrays_of(ladder, kernel))
        )
    if ladder == "timex":
        module = lesson("11_time_x_gradients")
        launches = {"dk_balanced": "launch_dk", "dw_balanced": "launch_dw_balanced"}
        launches |= {"dw_naive": "launch_dw", "dw_shared": "launch_dw"}
        for name in GRADIENTS:
            kernel = getattr(module, name)
            sizes = getattr(module, launches.get(name, "launch"))(*shape)
            label = "11 " + name.replace("_", ", ")
            method = f"11_time_x_gradients.{name}"
            launched.append(CountedLaunch(method, label, kernel, *sizes, arrays_of(ladder, kernel)))
    return tuple(launched)


def arrays_of(ladder, kernel):
    """The arguments of a launch, in the kernel's order; the counts depend on sizes alone."""
    if ladder == "wkv5":
        r, k, v, w, u = rwkv5_inputs(*SHAPES[ladder], dtype=torch.float32)
        return tuple(x.numpy() for x in (r, k, v, w.exp(), u, torch.zeros_like(v)))
    B, C, T = SHAPES[ladder]
    names = inspect.signature(plain(kernel)).parameters
    shapes = [(C, T) if name in ("w", "dw") else (B, C, T) for name in names]
    return tuple(np.ones(shape, np.float32) for shape in shapes)


@functools.cache
def ours(ladder, method):
    """What `warplens.trace` counts for a rung, under the names of METRICS."""
    (rung,) = (rung for rung in rungs(ladder) if rung.method == method)
    return counts(rung.kernel, rung.grid, rung.block, rung.arrays)


def counts(kernel, grid, block, arrays):
    """What `warplens.trace` counts for a launch of a kernel, under the names of METRICS."""
    counted = trace(kernel, grid, block, *(x.copy() for x in arrays))

    def shared(what, op):
        rows = (row for row in counted.rows if (row.space, row.op) == ("shared", op))
        return sum(getattr(row, what) for row in rows)

    return {
        "load_requests": counted.requests("global", "load"),
        "load_sectors": counted.sectors("global", "load"),
        "store_requests": counted.requests("global", "store"),
        "store_sectors": counted.sectors("global", "store"),
        "atomic_requests": counted.requests("global", "atomic"),
        "shared_load_wavefronts": shared("wavefronts", "load"),
        "shared_store_wavefronts": shared("wavefronts", "store"),
        "shared_load_conflicts": shared("conflicts", "load"),
        "shared_store_conflicts": shared("conflicts", "store"),
        "shared_load_instructions": counted.requests("shared", "load"),
        "shared_store_instructions": counted.requests("shared", "store"),
    }


def name_of(ladder):
    """Of its record."""
    return f"{ladder}-counters"


def table(ladder, folder=None):
    """The record as rows of text: our count, and the hardware's where it differs."""
    counted = record(name_of(ladder), folder=folder)
    rows = []
    for rung in rungs(ladder):
        traced, measured = ours(ladder, rung.method), counted.row(rung.method).counters
        measured = dict.fromkeys(METRICS, 0) | measured
        pairs = [(traced[name], measured[name]) for name in COLUMNS.values()]
        rows.append([rung.label, *(f"{a:,}" if a == b else f"{a:,} ({b:,})" for a, b in pairs)])
    return ["step", *COLUMNS], rows, counted.provenance


def beside_hardware(lesson, ladder):
    """Prints what the rungs of a lesson ask for at the size that was counted, a line per rung.

    Args:
        lesson: its number, "10".
        ladder: a key of SHAPES.
    """
    try:
        head, rows, origin = table(ladder)
    except LookupError as missing:
        print(missing)
        return
    columns = [head.index(name) for name in SHOWN]
    print(f"{'':22}" + "".join(f"{head[n]:>18}" for n in columns))
    for row in rows:
        number, _, label = row[0].partition(" ")
        if number == lesson:
            print(f"{label:22}" + "".join(f"{row[n]:>18}" for n in columns))
    print(f"in brackets: the hardware's count, where it differs; {origin.gpu}, {origin.date}")


def wavefronts_of(method):
    """Wavefronts of shared memory that the hardware counted, of one wkv5 block for one token."""
    B, T, H, _ = SHAPES["wkv5"]
    counters = record(name_of("wkv5")).row(method).counters
    wavefronts = counters["shared_load_wavefronts"] + counters["shared_store_wavefronts"]
    return wavefronts / (B * H) / T


def launch_all(ladder):
    """Launches every rung once between profiler marks: what ncu looks at."""
    for rung in rungs(ladder):
        views = [as_array(torch.from_numpy(x).cuda()) for x in rung.arrays]
        launch = rung.kernel[rung.grid, rung.block, stream()]
        launch(*views)  # compiles, unseen
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        launch(*views)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def hardware(ladder):
    """What Nsight Compute counts for each launch of `launch_all`: a list of dicts."""
    if not torch.cuda.is_available() or not shutil.which("ncu"):
        raise SystemExit("counters: needs an NVIDIA GPU and Nsight Compute's ncu on the PATH")
    command = ["ncu", "--csv", "--clock-control", "none", "--profile-from-start", "no"]
    command += ["--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", __spec__.name, ladder, "--launch"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"counters: ncu failed\n{process.stdout}{process.stderr}")
    return parse(process.stdout)


def parse(text):
    """ncu's CSV, a line per launch and metric, as one dict per launch."""
    start = text.index('"ID"')
    launches = {}
    for line in csv.DictReader(io.StringIO(text[start:])):
        names = [name for name, metric in METRICS.items() if metric == line["Metric Name"]]
        if names:
            value = line["Metric Value"].replace(",", "")
            launches.setdefault(int(line["ID"]), {})[names[0]] = int(float(value))
    return [launches[id] for id in sorted(launches)]


def side_by_side(traced, measured):
    """A line per count: ours, the hardware's, and whether they agree."""
    lines = []
    for name, count in measured.items():
        verdict = "equal" if traced[name] == count else f"{traced[name] / max(count, 1):.3g}×"
        if traced[name] or count:
            lines.append(f"    {name:26}{traced[name]:>10,}{count:>12,}  {verdict}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("ladder", nargs="?", choices=SHAPES, default="wkv5")
    parser.add_argument("--record", action="store_true", help="keep what the hardware counted")
    parser.add_argument("--commit", help="of the code that is counted, where git is not there")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    ladder = options.ladder
    if not (ROOT / "solutions").is_dir():
        raise SystemExit("counters: only the library is installed here; this needs the repository")
    if options.launch:
        return launch_all(ladder)
    rows = []
    for rung, counted in zip(rungs(ladder), hardware(ladder), strict=True):
        print(f"{rung.method}  (ours, hardware)")
        print(side_by_side(ours(ladder, rung.method), counted))
        fields = {"block": rung.block, "counters": counted} | code(source_of(rung.kernel))
        rows.append(Measurement(rung.method, SHAPES[ladder], "float32", **fields))
    if options.record:
        from rwkv_lessons.records.provenance import provenance

        origin = provenance(options.commit)
        command = f"python -m {__spec__.name} {ladder} --record"
        origin = dataclasses.replace(origin, timing="hardware counters by ncu", command=command)
        print(f"recorded in {save(Record(name_of(ladder), origin, tuple(rows)))}")


if __name__ == "__main__":
    main()
