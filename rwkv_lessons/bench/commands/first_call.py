"""The first call of a fresh process with an empty Triton cache: what a user waits for once.

Importing and starting the GPU come before; the call compiles, and its result is there at the end.
All processes import at the same time, and then it is one after the other's turn.
"""

import os
import subprocess
import sys
import tempfile

from rwkv_lessons import wkv6
from rwkv_lessons.bench import methods
from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import BOTH
from rwkv_lessons.records.fingerprint import ROOT, source_of
from rwkv_lessons.records.schema import Measurement, code

SHAPE = (1, 4096, 64, 64)
# Names in METHODS, a function of the package, and entries of the table: the package's own function.
METHODS = ("wkv6", "wkv6-backward", "recurrent", "wkv6_step")
SCRIPT = """
import sys, time
import torch
from rwkv_lessons import wkv6
from rwkv_lessons.inputs import rwkv6_inputs

print("ready", flush=True)
sys.stdin.readline()
name, timed, dtype, *shape = sys.argv[1:]
x = rwkv6_inputs(*map(int, shape), dtype=getattr(torch, dtype), device=torch.device("cuda"))
if timed == "both":
    x = [y.requires_grad_() for y in x]
if name == "wkv6_step":
    B, _, H, N = x[0].shape
    x = [*(y[:, :1] for y in x[:4]), x[4], torch.zeros(B, H, N, N, device="cuda")]
f = wkv6.METHODS.get(name) or getattr(wkv6, name)
torch.cuda.synchronize()
start = time.perf_counter()
o = f(*x)
if timed == "both":
    o[0].sum().backward()
torch.cuda.synchronize()
print("seconds", time.perf_counter() - start)

from rwkv_lessons.bench.taken import methods_taken

with methods_taken() as taken:
    f(*x)
print("took", *taken)
"""


def measure(cases):
    """A `Measurement` for each (method, dtype), whose host time is that of the first call."""
    with tempfile.TemporaryDirectory() as caches:
        started = [_start(case, f"{caches}/{n}") for n, case in enumerate(cases)]
        try:
            for process in started:
                process.stdout.readline()  # "ready", or nothing if it failed
            for case, process in zip(cases, started, strict=True):
                yield _row(*case, *process.communicate("go\n"), process.returncode)
        finally:
            for process in started:
                process.kill()


def _arguments(method, dtype):
    """What `SCRIPT` is given."""
    entry = OPERATIONS.get(method)
    timed = "both" if entry and entry.timed == BOTH else "forward"
    return entry.package if entry else method, timed, dtype, *map(str, SHAPE)


def _start(case, cache):
    command = [sys.executable, "-c", SCRIPT, *_arguments(*case)]
    environment = os.environ | {"TRITON_CACHE_DIR": cache}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)


def _row(method, dtype, out, output, status):
    lines = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
    if status or "seconds" not in lines:
        last = (output.strip().splitlines() or ["nothing was said"])[-1]
        return Measurement(method, SHAPE, dtype, problem=last)
    return Measurement(
        method, SHAPE, dtype, host_ms=1e3 * float(lines["seconds"]),
        note="first call of a process, empty Triton cache",
        **code(*_sources(method), *sorted(lines.get("took", "").split())),
    )  # fmt: skip


def _sources(method):
    if method == "wkv6_step":
        return (source_of(wkv6.wkv6_step),)
    if method in OPERATIONS:
        return methods.library(method)[OPERATIONS[method].package].sources
    return methods.library("wkv6")[method].sources
