"""The first call of a fresh process with an empty Triton cache: what a user waits for once.

Importing and starting the GPU come before; the call compiles, and its result is there at the end.
"""

import os
import subprocess
import sys
import tempfile

from rwkv_lessons.bench.record import Row
from rwkv_lessons.bench.shapes import SHAPES
from rwkv_lessons.bench.source import ROOT

SHAPE = SHAPES["wkv6"]["one text"]
METHODS = ("wkv6", "wkv6-backward", "cuda", "recurrent", "wkv6_step")
SCRIPT = """
import sys, time
import torch
from rwkv_lessons import wkv6
from rwkv_lessons.inputs import rwkv6_inputs

method, dtype, *shape = sys.argv[1:]
x = rwkv6_inputs(*map(int, shape), dtype=getattr(torch, dtype), device=torch.device("cuda"))
if method == "wkv6-backward":
    x = [y.requires_grad_() for y in x]
if method == "wkv6_step":
    B, _, H, N = x[0].shape
    x = [*(y[:, :1] for y in x[:4]), x[4], torch.zeros(B, H, N, N, device="cuda")]
f = wkv6.METHODS.get(method) or getattr(wkv6, method.removesuffix("-backward"))
torch.cuda.synchronize()
start = time.perf_counter()
o = f(*x)
if method == "wkv6-backward":
    o[0].sum().backward()
torch.cuda.synchronize()
print("seconds", time.perf_counter() - start)
"""


def measure(method, dtype):
    """A `Row` whose host time is that of the first call."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", SCRIPT, method, dtype, *map(str, SHAPE)]
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return Row(method, SHAPE, dtype, problem=said)
    note = "first call of a process, empty Triton cache"
    return Row(method, SHAPE, dtype, host_ms=1e3 * float(lines[-1][1]), note=note)
