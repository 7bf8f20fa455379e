"""The evidence for functions that launch kernels: each launch is watched, and interpreted.

A function names its kernels as the lesson does; here a `Launcher` stands under each of these names.
Any grid and any block sizes will do, as long as the answers come out right and no program is idle.
The outputs are the function's own: they are filled with NaN before they are written.
"""

import dataclasses
import inspect
from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode

from warplens.compiled.functions import plain, with_values
from warplens.faults import KernelFault
from warplens.steps import unlimited
from warplens.triton import run as interpreter

from ..course.borrowed import unwatched
from ..course.check import ABSENT, FAILED, PASSED, Row
from .compare import TOLERANCE, ClearMistake, Difference, about, compare
from .functions import called
from .triton import LAUNCHABLE, Flaw
from .verdicts import failed

OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


class Launcher:
    """Stands for a kernel in `kernel[grid](…)`.

    Args:
        name: of the kernel, for messages.
        kernel: the reference, which is run.
        outputs: its parameters that it writes.
        run: whether to run it; else the arguments are kept, and only NaN is written.
        exact: whether it may not be told to round float32 operands to TF32.

    Attributes:
        launches: the arguments of each launch, by name, with options such as num_warps.
    """

    def __init__(self, name, kernel, outputs, run=True, exact=False):
        self.name, self.kernel, self.outputs, self.run = name, kernel, outputs, run
        self.exact = exact
        self.launches = []
        self.homeless = Homeless()

    def __getitem__(self, grid):
        return lambda *args, **named: self._launch(grid, args, named)

    def __call__(self, *args, **named):
        raise Flaw(f"a launch needs a grid: {self.name}[grid](…)", "launch")

    def _launch(self, grid, args, named):
        bound = self._bound(args, named)
        self.launches.append(bound | {name: x for name, x in named.items() if name in OPTIONS})
        for name in self.outputs:
            bound[name].fill_(torch.nan)  # a number that was there before is no answer
        if not self.run:
            return
        sizes = {name: x for name, x in bound.items() if not isinstance(x, torch.Tensor)}
        grid = grid(sizes) if callable(grid) else grid
        programs = programs_in(grid)
        try:
            # What the interpreter makes and does is not the function's.
            with unlimited(), unwatched(), torch._C.DisableTorchFunction():
                watched = interpreter.run(self.kernel, grid, **bound)
        except KernelFault as fault:
            raise Flaw(_first_line(fault), "sizes") from None
        for race in watched.races.values():
            raise Flaw(_first_line(race), "programs")
        if self.exact and watched.arithmetic.tf32:
            message = f"{self.name} rounds float32 operands of tl.dot to 11 bits (TF32)"
            raise Flaw(message, "input_precision")
        working = {x.program for x in watched.accesses if x.op == "store" and len(x.offsets)}
        if len(working) < programs:
            text = f"{programs - len(working)} of {programs} programs of {self.name} write nothing"
            raise Flaw(text, "idle")

    def _bound(self, args, named):
        """{parameter: argument}; options like num_warps are left out."""
        parameters = inspect.signature(plain(self.kernel)).parameters
        named = {name: x for name, x in named.items() if name not in OPTIONS}
        if strange := [name for name in named if name not in parameters]:
            raise Flaw(f"{self.name} has no parameter {strange[0]}", "launch")
        if len(args) > len(parameters):
            raise Flaw(
                f"{self.name} takes {len(parameters)} arguments, and gets {len(args)}", "launch"
            )
        bound = dict(zip(parameters, args, strict=False))
        if twice := sorted(bound.keys() & named.keys()):
            raise Flaw(f"{self.name} gets {twice[0]} twice", "launch")
        bound |= named
        if missing := [name for name in parameters if name not in bound]:
            raise Flaw(f"{self.name} is launched without {', '.join(missing)}", "launch")
        for name, x in bound.items():
            self.homeless.refuse(f"{name} of {self.name}", x)
        for name in self.outputs:
            x = bound[name]
            if not isinstance(x, torch.Tensor) or not x.is_contiguous():
                raise Flaw(f"{name} of {self.name} is no contiguous tensor", "launch")
            for other_name, y in bound.items():
                if other_name != name and isinstance(y, torch.Tensor) and _overlap(x, y):
                    raise Flaw(f"{name} is written over {other_name}", "launch")
        return bound


def programs_in(grid):
    """How many programs a grid has; raises `Flaw` if Triton would not launch it."""
    if not isinstance(grid, tuple | list):
        raise Flaw(f"the grid is {grid!r}, want a tuple: kernel[({grid},)](…)", None)
    if not 1 <= len(grid) <= 3 or any(n < 1 for n in grid):
        raise Flaw(f"the grid is {tuple(grid)}, want one to three numbers of at least 1", "grid")
    return torch.Size(grid).numel()


class Homeless(TorchFunctionMode):
    """Keeps the tensors that are made without a device: on the CPU, wherever the inputs are."""

    MAKERS = {"empty", "zeros", "ones", "full", "arange", "eye", "tensor", "rand", "randn"}

    def __init__(self):
        super().__init__()
        self.created = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in self.MAKERS and (kwargs or {}).get("device") is None:
            self.created.append(out)
        return out.clone() if name in ("to", "cuda") else out  # moved: another tensor

    def refuse(self, label, x):
        """Raises `Flaw` if x is one of them, or a part."""
        if isinstance(x, torch.Tensor) and any(_memory(x) == _memory(y) for y in self.created):
            raise Flaw(
                f"{label} is made without a device: on the CPU, where the inputs are on a GPU",
                "device",
            )


def _memory(x):
    return x.untyped_storage().data_ptr()


def _first_line(trouble):
    """Without the line of the kernel, which may be one that the learner is to write."""
    return str(trouble).splitlines()[0]


def _overlap(x, y):
    (start, end), (other_start, last) = _extent(x), _extent(y)
    return start < last and other_start < end


def _extent(x):
    """Where a tensor's elements begin in memory, and where they end."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size() * bool(x.numel())


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a function that launches.

    Args:
        name: what it tests; also the key of its hint.
        problem: () → (arguments, {result: (float64 tensor, a letter per axis)}).
        tolerance: the largest error allowed, over the largest wanted.
        size: of the problem, for messages.
        dtype: of the results; dtypes: of those that have another.
        passed: {kernel: {parameter: the number that it has to get}}; a parameter is the key of its
            hint, too.
    """

    name: str
    problem: Callable
    tolerance: float = TOLERANCE
    size: str = ""
    dtype: torch.dtype = torch.float32
    dtypes: dict = dataclasses.field(default_factory=dict)
    passed: dict = dataclasses.field(default_factory=dict)


def launches(kernels, *calls: Call, exact=False):
    """Calls a function with its kernels watched: one launch of each, and the right answers.

    Args:
        kernels: {name of a kernel in the function: (its reference, the parameters it writes)}.
        exact: whether products of float32 operands have to keep all their bits.
    """

    def answer(function, exercise):
        if missing := interpreter.what_is_missing():
            return Row("answer", ABSENT, missing)
        for call in calls:
            try:
                _judge(function, exercise.reference, kernels, call, exact)
            except (Difference, KernelFault, Flaw) as error:
                size = f" ({call.size})" if call.size else ""
                return failed(f"{call.name}{size}", error, exercise, call.name)
        return Row("answer", PASSED, f"{len(calls)} shapes, no idle program")

    answer.kind = "answer"
    return answer


def _idle(function, kernels, inputs):
    """What a function returns where its kernels write NaN, and these."""
    dry = {x: Launcher(x, *kernel, run=False) for x, kernel in kernels.items()}
    got = called(with_values(function, dry), *inputs)
    return got if isinstance(got, tuple | list) else (got,), dry


def _from_kernels(got, idle, wants):
    """Raises `Flaw` if a result has numbers where the reference has what its kernels wrote."""
    for name, x, y in zip(wants, got, idle, strict=True):
        if isinstance(y, torch.Tensor) and bool((y.isnan() & ~x.isnan()).any()):
            raise Flaw(
                f"{name} is computed without the launch: it has numbers where that writes NaN", None
            )


def _as_wide(watched, dry):
    """Raises `Flaw` if a kernel is to write numbers of fewer bits than the reference has there."""
    for name, launcher in watched.items():
        for output in launcher.outputs:
            dtype, want = (x.launches[0][output].dtype for x in (launcher, dry[name]))
            if dtype.itemsize < want.itemsize:
                raise Flaw(f"{output} of {name} is {dtype}, want {want}", "type of an output")


def _judge(function, reference, kernels, call, exact):
    watched = {name: Launcher(name, *kernel, exact=exact) for name, kernel in kernels.items()}
    inputs, wants = call.problem()
    homeless = Homeless()
    for launcher in watched.values():
        launcher.homeless = homeless
    with homeless:
        got = called(with_values(function, watched), *inputs)
    for n, x in enumerate(got if isinstance(got, tuple | list) else [got]):
        homeless.refuse(f"result {n}", x)
    for name, launcher in watched.items():
        if len(launcher.launches) != 1:
            text = f"launches of {name}: {len(launcher.launches)}, want 1"
            raise Flaw(text, "launch")
    for name, numbers in call.passed.items():
        for parameter, want in numbers.items():
            if (x := watched[name].launches[0][parameter]) != want:
                raise Flaw(f"{name} gets {parameter} = {x}, want {want}", parameter)
    idle, dry = _idle(reference, kernels, inputs)
    _as_wide(watched, dry)
    _judge_results(got, wants, call)
    _from_kernels(_idle(function, kernels, inputs)[0], idle, wants)


def _judge_results(got, wants, call):
    got = got if isinstance(got, (tuple, list)) else (got,)
    if len(got) != len(wants):
        raise Difference(f"returns {len(got)} things, want {len(wants)}: {', '.join(wants)}")
    for (name, (want, letters)), x in zip(wants.items(), got, strict=True):
        if x is not None and not isinstance(x, torch.Tensor):
            raise Difference(f"{name} is a {type(x).__name__}, want a tensor")
        try:
            with about(name):
                got = None if x is None else x.cpu().double()
                compare(got, want, letters, tolerance=call.tolerance)
        except ClearMistake:
            raise
        except Difference as difference:
            missing = isinstance(x, torch.Tensor) and x.isnan().any()
            raise Flaw(str(difference), "grid" if missing else None) from None
        dtype = call.dtypes.get(name, call.dtype)
        if x.dtype != dtype:
            raise Flaw(f"{name} is {x.dtype}, want {dtype}", None)  # the case has a hint


def launchable(kernels, call: Call, arch="sm_90"):
    """Compiles the kernels for an H200, without one, with what the function gives them."""

    def machine_code(function, exercise):
        from warplens.compiled.assembly import CompileError, assembly, what_is_missing

        watched = {name: Launcher(name, *kernel, run=False) for name, kernel in kernels.items()}
        with_values(function, watched)(*call.problem()[0])
        resources = []
        for name, launcher in watched.items():
            if missing := what_is_missing(launcher.kernel):
                return Row("machine code", ABSENT, missing)
            try:
                asm = assembly(launcher.kernel, arch=arch, **launcher.launches[0])
            except CompileError as error:
                text = f"{name} does not compile with these sizes"
                return Row("machine code", FAILED, text, tuple(str(error).splitlines()))
            used = f"{name}: {asm.registers} registers, {-(-asm.shared_bytes // 1024)} KB shared"
            for wrong in (claim for claim in LAUNCHABLE if not claim.holds(asm)):
                details = (f"want {wrong.text}, found {wrong.counts(asm)}",)
                return Row("machine code", FAILED, used, details)
            resources.append(used)
        return Row("machine code", PASSED, f"{' · '.join(resources)} ({arch})")

    machine_code.kind = "machine code"
    return machine_code


def launches_gpu(kernels, call: Call):
    """Calls the function on this machine's GPU, with the reference kernels."""

    def this_gpu(function, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        inputs, wants = call.problem()
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
        real = with_values(function, {name: kernel for name, (kernel, _) in kernels.items()})
        _judge_results(real(*inputs), wants, call)
        return Row("this GPU", PASSED, f"{call.size} on {torch.cuda.get_device_name()}")

    this_gpu.kind = "this GPU"
    return this_gpu
