"""The evidence for lesson kernels of WKV-5, and what their lessons measure.

Solution modules put what is here together in `Exercise.evidence`: functions of (the learner's
function, the exercise) that return a `Row`, or several.
"""

from collections.abc import Callable

import numpy as np
import torch
from numba import float32

from ...inputs import rwkv5_inputs
from ...runtime.launch_numba import as_array, stream
from ...wkv5.reference import wkv5_reference
from ..course.check import ABSENT, FAILED, PASSED, Row
from ..course.exercises import solutions
from .claims import (
    ATOMICS,
    Claim,
    at_least,
    at_most,
    compiled,
    float32_only,
    in_registers,
    machine_code,
    wide_loads,
)
from .compare import TOLERANCE, Difference, compare, fresh
from .kernels import FEWER, Counted, CudaCase, N, Problem, judged
from .traffic import (
    FEW,
    MANY,
    atomics,
    bank_conflicts,
    few_sectors,
    kept_in_shared,
    loads,
    some_atomics,
    stores,
)

__all__ = ["ATOMICS", "TOLERANCE", "Claim", "Difference", "at_least", "at_most", "atomics"]
__all__ += ["bank_conflicts", "compare", "compiled", "few_sectors", "float32_only"]
__all__ += ["in_registers", "kept_in_shared", "loads", "some_atomics", "stores", "wide_loads"]

WKV5_CASES = (
    CudaCase("three tokens of ones, computed by hand", "by hand", (1, 3, 1, N), numbers="ones"),
    CudaCase("one token", "by hand", (1, 1, 1, N)),
    CudaCase("the state carries from token to token", "state", (1, 3, 1, N)),
    CudaCase("every head has its own state, decay and bonus", "head", (1, 2, 2, N)),
    CudaCase("every batch row starts from an empty state", "batch", (3, 2, 1, N)),
    CudaCase("negative numbers, zeros, decays from 0 to 1", "state", (1, 4, 1, N), numbers="wild"),
    CudaCase("a token looks at none that come later", "state", (1, 5, 1, N), numbers="huge"),
    CudaCase("the order of the threads does not matter", "order", (2, 3, 1, N), reverse=True),
)
MANY_SIZES = (
    CudaCase("small heads", "head", (1, 3, 2, FEWER)),
    CudaCase("1,030 tokens", "state", (1, 1030, 1, FEWER)),
    CudaCase("20 batch rows of 27 heads", "batch", (20, 1, 27, FEWER)),
)
SPARE = CudaCase(
    "with a block to spare, whose threads do nothing", "tail", (1, 2, 1, N), spare=True
)
WKV5_TRACED = (
    CudaCase("two batch rows of two heads", "batch", (2, 3, 2, N)),
    CudaCase(f"{FEW} tokens", "state", (1, FEW, 1, N)),
    CudaCase(f"{MANY} tokens", "state", (1, MANY, 1, N)),
)


def wkv5_arrays(B, T, H, N=64):
    """Arguments (r, k, v, decay, u, o) for a CPU run of a lesson kernel; `o` is zero."""
    (r, k, v, decay, u), _ = wkv5_case((B, T, H, N))
    return [x.numpy() for x in (r, k, v, decay, u, torch.zeros_like(v))]


def wkv5_case(shape, device="cpu"):
    """Arguments (r, k, v, decay, u) of a lesson kernel and the float64 answer."""
    B, T, H, N = shape
    r, k, v, w, u = rwkv5_inputs(B, T, H, N, dtype=torch.float32, device=device)
    want, _ = wkv5_reference(*(x.double() for x in (r, k, v, w, u)))
    return (r, k, v, w.exp(), u), want


def wkv5_judged(
    launch: Callable, *budgets, zeroed: bool = False, spare: bool = True, remarks: tuple = ()
):
    """The answers and the traffic of a kernel.

    Args:
        launch: (B, T, H, N) → (grid, block).
        zeroed: whether the launcher zeroes the output (else it is full of NaN).
        spare: whether a launch may have more threads than outputs.
        remarks: as of `judged`.
    """

    def problem(kernel, exercise, case):
        inputs, want = _numbers(case)
        arrays = dict(zip(("r", "k", "v", "decay", "u"), inputs, strict=True))
        o = arrays["o"] = np.zeros(case.shape, np.float32) if zeroed else fresh(case.shape)

        def judge():
            if case.numbers == "huge":  # the largest of the others sets the scale
                compare(o[:, :-1], want[:, :-1], untouched=True)
            compare(o, want, untouched=True)

        fewer = {"N": case.shape[3]} if case.shape[3] != N else None
        return Problem([(*launch(*case.shape), arrays)], ("o",), judge, fewer)

    cases = (*WKV5_CASES, SPARE) if spare else WKV5_CASES
    counted = Counted(WKV5_TRACED[1:], budgets=budgets)
    traced, many = WKV5_TRACED[:1], MANY_SIZES
    return judged(launch, problem, cases, traced, (counted,), many=many, remarks=remarks)


def _numbers(case):
    """(r, k, v, decay, u) in float32 and the answer in float64, as new arrays."""
    B, T, H, N = case.shape
    r, k, v, w, u = rwkv5_inputs(B, T, H, N, dtype=torch.float32)
    decay = w.exp()
    if case.numbers == "ones":
        r, k, v, u = (torch.ones_like(x) for x in (r, k, v, u))
        decay = torch.full_like(decay, 0.5)
    if case.numbers == "wild":
        random = torch.Generator().manual_seed(T)
        r, k, v, u = (3 * torch.randn(x.shape, generator=random) for x in (r, k, v, u))
        k[..., ::3], v[:, 1], u[..., 1::5] = 0, 0, 0
        decay = torch.rand(decay.shape, generator=random).sub(0.2).div(0.6).clamp(0, 1)
    if case.numbers == "huge":
        k[:, -1] *= 1e6
    inputs = [x.contiguous() for x in (r, k, v, decay, u)]
    r, k, v, decay, u = (x.double() for x in inputs)
    want, _ = wkv5_reference(r, k, v, decay.log(), u)
    return [x.numpy().copy() for x in inputs], want.numpy()


WKV5_SIGNATURE = (
    *(float32[:, :, :, ::1],) * 3,  # r, k, v
    *(float32[:, ::1],) * 2,  # decay, u
    float32[:, :, :, ::1],  # o
)


def wkv5_gpu(launch: Callable, zeroed: bool = False, shape=(2, 1027, 32, 64)):
    """Runs the kernel on this machine's GPU: its answer at full head size, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        inputs, want = wkv5_case(shape, "cuda")
        o = torch.full(shape, 0.0 if zeroed else torch.nan, device="cuda")
        grid, block = launch(*shape)
        kernel[grid, block, stream()](*map(as_array, (*inputs, o)))
        try:
            compare(o.cpu(), want.cpu())
        except Difference as error:
            return Row("this GPU", FAILED, f"B, T, H, N = {shape}", (str(error),))
        return timed(kernel, grid, block, (*inputs, o), shape)

    gather.kind = "this GPU"
    return gather


def timed(kernel, grid, block, tensors, shape, letters="B, T, H, N"):
    """The row for a kernel whose answer was right: its time on this GPU."""
    gpu, ms = torch.cuda.get_device_name(), milliseconds(kernel, grid, block, tensors)
    return Row("this GPU", PASSED, f"{ms:.3f} ms at {letters} = {shape} on {gpu}")


def time_here(stem, kernel, shape=(8, 4096, 64, 64)):
    """Milliseconds of a lesson's WKV-5 kernel on this machine's GPU; None where there is none.

    Args:
        stem: of the lesson, whose solution says how the kernel is launched.
        shape: B, T, H, N; that of the record, which takes 2.2 GB.
    """
    if not torch.cuda.is_available():
        return None
    r, k, v, w, u = rwkv5_inputs(*shape, device="cuda")
    grid, block = solutions(stem).launch(*shape)
    return milliseconds(kernel, grid, block, (r, k, v, w.exp(), u, torch.zeros_like(v)))


def milliseconds(kernel, grid, block, tensors):
    """The mean of ten runs, after a first one that compiles."""
    arrays = [as_array(x) for x in tensors]
    kernel[grid, block, stream()](*arrays)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        kernel[grid, block, stream()](*arrays)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 10


def wkv5_kernel(launch: Callable, *claims: Claim, budgets=(), zeroed=False, spare=True, remarks=()):
    """All the evidence for a lesson kernel of WKV-5."""
    return (
        *wkv5_judged(launch, *budgets, zeroed=zeroed, spare=spare, remarks=remarks),
        machine_code(float32_only(), *claims, signature=WKV5_SIGNATURE),
        wkv5_gpu(launch, zeroed),
    )
