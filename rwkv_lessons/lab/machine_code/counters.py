"""Our counts against the hardware's: every rung, counted by Nsight Compute and by `lab.trace`.

    python -m rwkv_lessons.lab.machine_code.counters            compare, where a GPU and ncu are
    python -m rwkv_lessons.lab.machine_code.counters --record   and keep what the hardware counted

The compiler may merge accesses that the source writes one by one: four neighbouring reads of shared
memory become one of 16 bytes. The trace counts the source, the hardware the machine code; where
they differ, the machine code shows why.
"""

import argparse
import csv
import dataclasses
import functools
import io
import shutil
import subprocess
import sys

import torch

from rwkv_lessons.operations import LADDERS
from rwkv_lessons.records.fingerprint import fingerprint, source_of
from rwkv_lessons.records.schema import Measurement, Record, save
from rwkv_lessons.runtime.launch_numba import as_array, stream

from ...records.lookup import record
from ..evidence.cuda import wkv5_arrays
from ..simulator.cuda.trace import trace

NAME = "wkv5-counters"
SHAPE = (2, 4, 3, 64)  # small enough to trace every thread

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


def rungs():
    """(rung, its kernel, grid, block) of every rung at SHAPE."""
    for rung in LADDERS["wkv5"].rungs:
        module = rung.load()
        yield rung, getattr(module, rung.kernel), *module.launch(*SHAPE)


@functools.cache
def ours(method):
    """What `lab.trace` counts for a rung, under the names of METRICS."""
    kernel, grid, block = next(launch for rung, *launch in rungs() if rung.method == method)
    counted = trace(kernel, grid, block, *wkv5_arrays(*SHAPE))

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


def table(folder=None):
    """The record as rows of text: our count, and the hardware's where it is another."""
    found = record(NAME, folder=folder)
    rows = []
    for rung in LADDERS["wkv5"].rungs:
        mine, theirs = ours(rung.method), found.row(rung.method).counters
        theirs = dict.fromkeys(METRICS, 0) | theirs
        pairs = [(mine[name], theirs[name]) for name in COLUMNS.values()]
        rows.append([rung.label, *(f"{a:,}" if a == b else f"{a:,} ({b:,})" for a, b in pairs)])
    return ["step", *COLUMNS], rows, found.provenance


def recorded_passes(method):
    """Passes over shared memory that the hardware counted, of one block for one token."""
    B, T, H, _ = SHAPE
    counters = record(NAME).row(method).counters
    passes = counters["shared_load_wavefronts"] + counters["shared_store_wavefronts"]
    return passes / (B * H) / T


def launch_all():
    """Launches every rung once between profiler marks: what ncu looks at."""
    arrays = [torch.from_numpy(x).cuda() for x in wkv5_arrays(*SHAPE)]
    views = [as_array(x) for x in arrays]
    for _, kernel, grid, block in rungs():
        kernel[grid, block, stream()](*views)  # compiles, unseen
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        kernel[grid, block, stream()](*views)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def hardware():
    """What Nsight Compute counts for each launch of `launch_all`: a list of dicts."""
    if not torch.cuda.is_available() or not shutil.which("ncu"):
        raise SystemExit("counters: needs an NVIDIA GPU and Nsight Compute's ncu on the PATH")
    command = ["ncu", "--csv", "--clock-control", "none", "--profile-from-start", "no"]
    command += ["--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", __spec__.name, "--launch"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"counters: ncu failed\n{done.stdout}{done.stderr}")
    return parse(done.stdout)


def parse(text):
    """ncu's CSV, a line per launch and metric, as one dict per launch."""
    start = text.index('"ID"')
    found = {}
    for line in csv.DictReader(io.StringIO(text[start:])):
        names = [name for name, metric in METRICS.items() if metric == line["Metric Name"]]
        if names:
            value = line["Metric Value"].replace(",", "")
            found.setdefault(int(line["ID"]), {})[names[0]] = int(float(value))
    return [found[id] for id in sorted(found)]


def compare(mine, theirs):
    """A line per count: ours, the hardware's, and whether they agree."""
    lines = []
    for name, theirs_n in theirs.items():
        verdict = "equal" if mine[name] == theirs_n else f"{mine[name] / max(theirs_n, 1):.3g}×"
        if mine[name] or theirs_n:
            lines.append(f"    {name:26}{mine[name]:>10,}{theirs_n:>12,}  {verdict}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep what the hardware counted")
    parser.add_argument("--commit", help="of the code that is counted, where git is not there")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        return launch_all()
    rows = []
    for (rung, kernel, _, block), theirs in zip(rungs(), hardware(), strict=True):
        print(f"{rung.method}  (ours, hardware)\n{compare(ours(rung.method), theirs)}")
        sources = (source_of(kernel),)
        row = Measurement(
            rung.method, SHAPE, "float32", block=block, counters=theirs, sources=sources
        )
        rows.append(dataclasses.replace(row, sha256=fingerprint(*sources)))
    if options.record:
        from rwkv_lessons.records.provenance import provenance

        where = provenance(options.commit)
        command = f"python -m {__spec__.name} --record"
        where = dataclasses.replace(where, timing="hardware counters by ncu", command=command)
        print(f"recorded in {save(Record(NAME, where, tuple(rows)))}")


if __name__ == "__main__":
    main()
