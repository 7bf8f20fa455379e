"""Launches of the first kernels in Triton (an addition, softmax, column sums), and of a launcher.

Inputs are exact in float32. What lies between two rows is NaN: who reads it will know.
"""

import torch

from warplens.faults import KernelFault
from warplens.steps import limited, unlimited
from warplens.triton import run as interpreter

from ...course.check import ABSENT, PASSED, Row
from ...evidence.claims import at_most
from ...evidence.compare import Difference, compare
from ...evidence.launching import Homeless, programs_in
from ...evidence.triton import Flaw, Launch, Limit
from ...evidence.verdicts import failed

LARGEST_BLOCK = 1 << 16  # for rows of hundreds it is no row's tile any more
FLOAT32_ONLY = at_most(0, "DADD", "DMUL", "DFMA", text="arithmetic in float32")


def numbers(*shape):
    """Float32 numbers from -9/8 to 9/8, both signs, no two neighbours alike."""
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return ((7 * n + 5) % 19 - 9).view(shape) / 8


def rows_apart(x, stride):
    """The rows of x, [M, N], `stride` elements apart in a tensor [M, stride], NaN in between."""
    wide = torch.full((x.shape[0], stride or x.shape[1]), torch.nan)
    wide[:, : x.shape[1]] = x
    return wide


def adding(launch, n, scale=1.0, **block):
    """out = x + y of n elements; `launch(n, …)` gives grid and sizes."""
    x, y = scale * numbers(n), scale * numbers(2 * n)[n:].clone()
    grid, constants = launch(n, **block)
    return Launch(
        grid,
        {"x": x, "y": y},
        {"out": (n,)},
        {"out": x.double() + y.double()},
        constants,
        letters={"out": "n"},
        size=_size(n=n, **block),
    )


def softmax_of(launch, x, stride=None, **block):
    """The softmax of each row of x, [M, N], whose rows start `stride` elements apart."""
    M, N = x.shape
    grid, constants = launch(M, N, stride or N, **block)
    return Launch(
        grid,
        {"x": rows_apart(x, stride)},
        {"y": (M, N)},
        {"y": x.double().softmax(1)},
        constants,
        letters={"y": "mn"},
        size=_size(M=M, N=N, stride=stride or N, **block),
    )


def sums_of(launch, x, stride=None, **blocks):
    """The sums of the columns of x, [M, N], whose rows start `stride` elements apart."""
    M, N = x.shape
    grid, constants = launch(M, N, stride or N, **blocks)
    return Launch(
        grid,
        {"x": rows_apart(x, stride)},
        {"sums": (N,)},
        {"sums": x.double().sum(0)},
        constants,
        letters={"sums": "n"},
        scales={"sums": float(x.abs().sum(0).max())},  # sums may cancel, their roundings do not
        size=_size(M=M, N=N, stride=stride or N, **blocks),
    )


def _size(**sizes):
    return " ".join(f"{name}={n}" for name, n in sizes.items())


def each_program_stores(most):
    """No program stores more elements than its share: the work is dealt out."""

    def count(trace):
        stored = {}
        for a in trace.accesses:
            if a.op == "store":
                stored[a.program] = stored.get(a.program, 0) + len(a.offsets)
        return max(stored.values(), default=0)

    return Limit(count, lambda trace: f"{count(trace)} stored by the busiest program", most)


# A function that launches.


class RowLauncher:
    """Stands for a kernel in `kernel[grid](…)` on x: judges the launch, then interprets it."""

    def __init__(self, kernel, x):
        self.kernel, self.x, self.launches, self.roomy = kernel, x, [], None

    def __getitem__(self, grid):
        def launched(*args, **named):
            arguments = dict(zip(("x", "y", "stride", "N", "BLOCK"), args, strict=False)) | named
            programs = grid(arguments) if callable(grid) else grid
            self.judge(programs, arguments)
            self.launches.append(arguments)
            arguments["y"].fill_(torch.nan)  # a number that was there before is no answer
            with unlimited(), torch._C.DisableTorchFunction():
                interpreter.run(self.kernel, programs, **arguments)

        return launched

    def __call__(self, *args, **named):
        raise Difference("a launch needs a grid: kernel[grid](…)")

    def judge(self, grid, arguments):
        """Raises `Difference` for a grid or a BLOCK that is not what rows of x ask for."""
        M, N = self.x.shape
        programs = programs_in(grid)
        if programs != M:
            raise Difference(f"programs: {programs}, want {M}: one for each row")
        least, block = 1 << (N - 1).bit_length(), arguments.get("BLOCK")
        if not isinstance(block, int) or block & block - 1 or not least <= block <= LARGEST_BLOCK:
            raise Difference(f"BLOCK: {block}, want {least} for rows of {N}")
        if block > least:
            self.roomy = f"BLOCK: {block} for rows of {N}, where {least} lanes are enough"
        x, y = arguments.get("x"), arguments.get("y")
        if not isinstance(x, torch.Tensor) or x.data_ptr() != self.x.data_ptr():
            raise Difference("the kernel does not get x, but something else or a copy of it")
        if not isinstance(y, torch.Tensor) or y.dtype != torch.float32 or not y.is_contiguous():
            raise Difference("y is no contiguous tensor of float32")


def row_launches(kernel, *cases):
    """Calls a function (kernel, x) that has to launch the softmax `kernel`, in the interpreter.

    Args:
        kernel: the reference, which the function gets in a `RowLauncher`.
        cases: (name, M, N, stride) each, of x.
    """

    def answer(function, exercise):
        if missing := interpreter.what_is_missing():
            return Row("answer", ABSENT, missing)
        roomy = []
        for name, M, N, stride in cases:
            try:
                roomy += _one_launch(function, kernel, rows_apart(numbers(M, N), stride)[:, :N])
            except (Difference, KernelFault, Flaw) as error:
                symptom = name if isinstance(error, Difference) else None
                size = _size(M=M, N=N, stride=stride)
                return failed(f"{name} ({size})", error, exercise, symptom)
        text = f"{len(cases)} shapes: one launch, a program for each row"
        return Row("answer", PASSED, text, tuple(roomy[:1]))

    answer.kind = "answer"
    return answer


def _one_launch(function, kernel, x):
    """Raises `Difference` unless the function's launch on x is right; what of it could be less."""
    launcher, before = RowLauncher(kernel, x), x.clone()
    homeless = Homeless()
    with limited(function), homeless:
        y = function(launcher, x)
    homeless.refuse("y", y)
    if len(launcher.launches) != 1:
        raise Difference(f"launches: {len(launcher.launches)}, want 1")
    if not torch.equal(before, x):
        raise Difference("x was changed")
    if y is None:
        raise Difference("nothing was returned, want y")
    if not isinstance(y, torch.Tensor) or y.data_ptr() != launcher.launches[0]["y"].data_ptr():
        raise Difference("what is returned is not the tensor that the kernel wrote to")
    compare(y, x.double().softmax(1), letters="mn")
    return [launcher.roomy] if launcher.roomy else []


def row_launches_gpu(kernel, shape=(4099, 1000)):
    """Calls the function with the reference kernel on this machine's GPU."""

    def this_gpu(function, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        x = rows_apart(numbers(*shape), shape[1] + 24).cuda()[:, : shape[1]]
        compare(function(kernel, x).cpu(), x.cpu().double().softmax(1), letters="mn")
        return Row("this GPU", PASSED, f"M, N = {shape} on {torch.cuda.get_device_name()}")

    this_gpu.kind = "this GPU"
    return this_gpu
