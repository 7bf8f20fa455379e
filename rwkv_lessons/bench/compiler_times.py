"""How fast the kernels of one compiler are: its rows of docs/compilers.md, checked and timed.

    python -m rwkv_lessons.bench compiler-times --packages triton

Each row is held against float64 at the shape that is timed; what is wrong, or does not compile or
run, has no time. One process has one Triton, so each compiler takes a run of its own. The times
stand in the column that `bench compilers` has for the compiler.
"""

import functools
import importlib
from functools import partial
from importlib.util import find_spec

import torch

from rwkv_lessons.bench import methods, timing
from rwkv_lessons.bench.commands import mla_decode, mla_prefill
from rwkv_lessons.bench.machine_code import compilers
from rwkv_lessons.bench.measure import LIMITS, checked, in_float64, make_inputs
from rwkv_lessons.mla import mla_reference
from rwkv_lessons.operations import OPERATIONS
from rwkv_lessons.operations.entries import loaded
from rwkv_lessons.operations.mla import MINICPM3
from rwkv_lessons.runtime.assembler import assembler

BUDGET_MS = 250  # of repetitions of a row: six compilers are timed one after the other
DTYPE = "bfloat16"
HEADS = 8, 4096, 64, 64  # B, T, H, N
# (What the table calls it, operation, method, shape).
LIBRARY = (
    ("WKV-6, forward", "wkv6", "chunked", HEADS),
    ("WKV-6, forward and backward", "wkv6-backward", "chunked", HEADS),
    ("WKV-7 in one launch, forward", "wkv7", "fused", HEADS),
    ("WKV-7 in chunks, forward", "wkv7", "chunked", HEADS),
    ("WKV-7 in one launch, forward and backward", "wkv7-backward", "fused", HEADS),
    ("WKV-7 in chunks, forward and backward", "wkv7-backward", "chunked", HEADS),
    ("time-x", "timex", "toeplitz", OPERATIONS["timex"].shapes[0]),
)
DECODED = (
    ("MLA, a step, 128 heads", mla_decode.decode, (64, 4096, 128, 512, 64, 128)),
    ("MLA, a step, 40 heads", mla_decode.decode, (64, 4096, *MINICPM3)),
)
PROMPT = "MLA, a prompt", (1, 4096, 40, 64, 256, 32, 64)
LADDER_SHAPE = 8, 4096, 32, 64  # of lessons 03, 04 and 07, float32


def command(options):
    """Times the installed compilers, or those of --packages, and prints all columns."""
    if not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU here: there is nothing to time")
    packages = filter(find_spec, options.packages or compilers.PACKAGES)
    print(compilers.table(compilers.save(compilers.load(), map(timed, packages))))
    print(f"\n{compilers.written()}")


def timed(package):
    """The part of a compiler's column that says how fast its calls are on this GPU."""
    device, (major, minor) = torch.device("cuda"), torch.cuda.get_device_capability()
    if package == "triton":
        ms, ptxas = of_triton(device), assembler(10 * major + minor).version
    else:  # which links with a library of its own
        ms, ptxas = of_numba(package, compilers.ladder(package, "launch"), device), None
    column = compilers.column(package, ptxas) | {"gpu": torch.cuda.get_device_name(device)}
    return {"compiler": column["compiler"], "timed": column | {"ms": ms}}


def of_triton(device):
    """{label: [milliseconds, error], or why there is none} of the Triton that is installed."""
    calls = [(label, partial(_library, *x)) for label, *x in LIBRARY]
    calls += [(label, partial(_decoded, *x)) for label, *x in DECODED]
    calls += [(PROMPT[0], partial(_prompt, PROMPT[1]))]
    return {label: _outcome(label, *make(device), device) for label, make in calls}


def of_numba(package, functions, device):
    """The same of lessons' kernels, compiled by numba-cuda ("numba") or its successor.

    Args:
        functions: label → (an undecorated kernel, the function that chooses its grid).
    """
    cuda = importlib.import_module(f"{package}.cuda")
    inputs = make_inputs("wkv5", LADDER_SHAPE, "float32", device)
    expected, limit = in_float64("wkv5", inputs), LIMITS["float32"]
    return {
        label: _outcome(label, partial(_launched, cuda, *x, inputs), expected, limit, device)
        for label, x in functions.items()
    }


def _launched(cuda, function, grid_of, inputs):
    """Runs of a lesson's kernel; the zeroing of what lesson 03 adds to is part of the time."""
    tensors, (o,) = loaded(OPERATIONS["wkv5"].rung_arguments)(*inputs)
    launch = cuda.jit(function)[grid_of(*LADDER_SHAPE)]  # on the default stream, as torch
    arrays = [cuda.as_cuda_array(x) for x in (*tensors, o)]
    adds = "atomic" in function.__code__.co_names

    def run():
        if adds:
            o.zero_()
        launch(*arrays)
        return o

    return run


@torch.no_grad()
def _outcome(label, prepare, expected, limit, device):
    run, error, outcome = checked(prepare, expected, limit)
    if not outcome:
        ms = timing.device_times(run, device, BUDGET_MS).median_ms
        outcome = [float(f"{ms:.4g}"), float(f"{error:.2g}")]
    print(f"{label}: {outcome}", flush=True)
    return outcome


# Each returns how a call is prepared, what it is to return, and how far that may be off.


def _library(name, method, shape, device):
    inputs, expected = _problem(name, shape, device)
    prepare = methods.library(name)[method].prepare
    return partial(prepare, *inputs), expected, LIMITS[DTYPE] * OPERATIONS[name].slack


@functools.lru_cache(maxsize=1)  # two methods, one after the other
def _problem(name, shape, device):
    inputs = make_inputs(name, shape, DTYPE, device)
    return inputs, in_float64(name, inputs)


def _decoded(prepare, shape, device):
    inputs = mla_decode.make_inputs(shape, DTYPE, device)
    expected = mla_decode.in_float64(*inputs)
    return partial(prepare, *inputs), expected, mla_decode.LIMITS[DTYPE]


@torch.no_grad()
def _prompt(shape, device):
    inputs, scale = mla_prefill.make_inputs(shape, DTYPE, device), (shape[3] + shape[5]) ** -0.5
    expected = mla_reference(*(x.double() for x in inputs), scale=scale)[0]
    return partial(mla_prefill.ours, *inputs, scale), expected, LIMITS[DTYPE]
