"""A first kernel, to see how an exercise works: one thread per element."""

import numpy as np
import torch
from numba import cuda, float32

from rwkv_lessons.lab.course.check import ABSENT, FAILED, PASSED, Row
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.course.hints import HINTS
from rwkv_lessons.lab.evidence.claims import at_least, float32_only, machine_code
from rwkv_lessons.lab.evidence.compare import Difference, compare, fresh
from rwkv_lessons.lab.evidence.kernels import unlaunchable
from rwkv_lessons.lab.simulator.cuda import trace
from rwkv_lessons.runtime.launch_numba import as_array, ceil_div, stream

BLOCK = 32  # threads per block


@cuda.jit
def double(x, y):
    """y = 2·x; x and y are [n] float32. There are at least n threads, 32 to a block."""
    i = cuda.grid(1)  # the number of this thread among all threads
    ### BEGIN SOLUTION
    if i < x.shape[0]:
        y[i] = 2 * x[i]
    ### END SOLUTION


def launch(n):
    """How many blocks, of how many threads."""
    return ceil_div(n, BLOCK), BLOCK


CASES = (
    ("one block, all of it needed", BLOCK),
    ("two blocks", 2 * BLOCK),
    ("a last block with threads to spare", 2 * BLOCK + 6),
    ("one element", 1),
)


def answer(kernel, exercise):
    """Runs the kernel on the CPU, one thread after another."""
    if reasons := unlaunchable(kernel, exercise.reference, BLOCK):
        return Row("answer", FAILED, "it cannot be launched", reasons)
    for name, n in CASES:
        x = np.linspace(-1, 2, n, dtype=np.float32)
        x[n // 2], x[-1] = 0, -1e30
        before, y = x.copy(), fresh(n)
        try:
            trace.run(kernel, *launch(n), x, y)
            compare(y[:-1], 2 * before[:-1], letters="i", untouched=True)
            compare(y, 2 * before, letters="i", untouched=True)
            if not np.array_equal(x, before):
                raise Difference("the kernel changed its input x")
        except (Difference, trace.KernelFault) as error:
            symptom = "tail" if isinstance(error, trace.OutOfBounds) else name
            hint = exercise.symptoms.get(symptom) or HINTS[symptom]
            details = (*str(error).splitlines(), f"hint: {hint}")
            return Row("answer", FAILED, f"{name} (n={n})", details)
    return Row("answer", PASSED, f"{len(CASES)} cases on the CPU")


def traffic(kernel, exercise):
    """Counts the requests of warps to memory, and looks for races."""
    x, n = np.ones(3 * BLOCK, np.float32), 3 * BLOCK
    counted = trace.trace(kernel, *launch(n), x, np.empty_like(x))
    if trouble := [*counted.faults, *counted.races]:
        return Row("traffic", FAILED, "", tuple(str(trouble[0]).splitlines()))
    loads, stores = (counted.requests(op=op) for op in ("load", "store"))
    text = f"{counted.warps} warps: {loads} load requests, {stores} store requests"
    most = counted.warps  # one load and one store of each warp
    return Row("traffic", PASSED if stores == most and loads <= most else FAILED, text)


def this_gpu(kernel, exercise):
    """Runs the kernel on this machine's GPU."""
    if not torch.cuda.is_available():
        return Row("this GPU", ABSENT)
    x = torch.linspace(1, 2, 1_000_003, device="cuda")
    y = torch.full_like(x, torch.nan)
    kernel[(*launch(len(x)), stream())](as_array(x), as_array(y))
    compare(y.cpu(), 2 * x.cpu(), letters="i")
    return Row("this GPU", PASSED, f"n={len(x):,} on {torch.cuda.get_device_name()}")


answer.kind, traffic.kind, this_gpu.kind = "answer", "traffic", "this GPU"
WRITES = "Every thread with an element of its own writes y[i], whichever block it is in."

EXERCISES = {
    "double": Exercise(
        minutes=3,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "if i < x.shape[0]:": "96 threads start for 70 elements: the guard stops the "
                "other 26.",
            },
            instead={
                "A stride loop, for i in range(cuda.grid(1), n, cuda.gridsize(1))": "any grid "
                "will do, for one more index sum a round.",
            },
            stretch="Write it with the stride loop, and launch one block: it must still be right "
            "for any n.",
        ),
        hints=(
            "There may be more threads than elements. What should the surplus ones do?",
            "Nothing: put the work behind `if i < …`, with the number of elements of x.",
            "if i < x.shape[0]: and, inside, y[i] = 2 * x[i].",
        ),
        evidence=(
            answer,
            traffic,
            machine_code(
                float32_only(),
                at_least(1, "LDG"),
                at_least(1, "STG"),
                signature=(float32[::1],) * 2,
            ),
            this_gpu,
        ),
        symptoms={name: WRITES for name, _ in CASES},
    )
}
