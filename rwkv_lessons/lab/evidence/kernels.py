"""How a CUDA kernel is judged on the CPU: launches that fit, answers, races, traffic.

Cases have the lesson's own head size: a kernel may be written for it. The last of them are traced:
two batch rows, and 70 tokens, more than two batches of 32 and more than one of 64. Then, of a
kernel that takes smaller heads, too, many tokens and many of those.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from warplens.cuda import trace
from warplens.faults import UninitialisedRead

from ..course.check import FAILED, PASSED, Row
from .compare import AddsToMemory, ChangedInput, Difference
from .traffic import FEW, MANY, SHARED_BYTES
from .verdicts import explained

N = 64  # head size
FEWER = 8  # and a small one


@dataclasses.dataclass(frozen=True)
class CudaCase:
    """Inputs small enough to run on a CPU, named by the property that fails if they do."""

    name: str
    symptom: str
    shape: tuple[int, int, int, int]  # B, T, H, N
    reverse: bool = False  # run the threads of a block from the last to the first
    spare: bool = False  # with one block more than there are outputs
    numbers: str = "text"  # as a model makes them; "wild"; "huge": the last token is


@dataclasses.dataclass
class Problem:
    """What a kernel is given for a case, and how its answers are judged.

    Args:
        launches: (grid, block, {array's name: array}) each, one after another.
        writes: which of the arrays the kernel writes.
        judge: called without arguments after the launches; raises `Difference`.
        constants: new values of global names in the kernel.
    """

    launches: list
    writes: tuple
    judge: Callable
    constants: dict | None = None


@dataclasses.dataclass(frozen=True)
class Counted:
    """Two traced launches of so many tokens, and what their difference may be.

    Args:
        cases: of few tokens and of many.
        tokens: of each.
        budgets: what may be asked of memory.
    """

    cases: tuple
    tokens: tuple = (FEW, MANY)
    budgets: tuple = ()


STOPPED = Row("traffic", FAILED, "not counted: the kernel stops (see above)")


def judged(
    launch: Callable, problem: Callable, cases, traced, counted, quick=None, many=(), remarks=()
):
    """The evidence of a lesson's kernel: the rows "answer" and "traffic", of the same runs.

    Args:
        launch: (B, T, H, N) → (grid, block).
        problem: (kernel, exercise, case) → `Problem`.
        cases: to run. traced: to run with every access written down.
        counted: `Counted`s, of which the last one's last case is long.
        quick: `Counted`s in place of the last of `counted`. They can only accept: where one of them
            does not run clean, that is run after all, and decides.
        many: cases of small heads. Of a kernel that is right for the first, the others decide.
        remarks: functions of the first of `traced` that return what to say of it, in lines.
    """

    def gather(kernel, exercise):
        if reasons := unlaunchable(kernel, launch(*cases[0].shape)[1]):
            return Row("answer", FAILED, "it cannot be launched", reasons), STOPPED
        traces, pairs = {}, counted

        def trace_once(case):
            if case not in traces:
                (traces[case],) = run(kernel, problem(kernel, exercise, case), case, True)

        try:
            for case in cases:
                run(kernel, problem(kernel, exercise, case), case)
            for case in traced:
                trace_once(case)
            if many and _right(kernel, problem(kernel, exercise, many[0]), many[0]):
                for case in many[1:]:
                    run(kernel, problem(kernel, exercise, case), case)
            if quick and _clean(kernel, exercise, problem, quick, traces):
                pairs = (*counted[:-1], *quick)
            for pair in pairs:
                for case in pair.cases:
                    trace_once(case)
        except (Difference, trace.KernelFault) as error:
            return wrong(kernel, exercise, case, error)
        text = f"{len({*cases, *traces})} cases on the CPU, against float64"
        return Row("answer", PASSED, text), traffic(exercise, traces, pairs)

    def wrong(kernel, exercise, case, error):
        name = "{} (B={} T={} H={} N={})".format(case.name, *case.shape)
        if isinstance(error, trace.KernelFault):
            return Row("answer", FAILED, name, why(error, exercise, case)), STOPPED
        for tried in (case, counted[0].cases[0]):  # this one may be too small for it to show
            example = problem(kernel, exercise, tried)
            if cause := cause_in(kernel, *example.launches[0], example.constants):
                return caused(name, error, cause, exercise, case)
        longer = problem(kernel, exercise, counted[0].cases[-1])
        ((grid, block, arrays), *_) = longer.launches
        race = mishap([traced_launch(kernel, grid, block, arrays, longer.constants)], exercise)
        answer = Row("answer", FAILED, name, why(error, exercise, case))
        return answer, race or Row("traffic", PASSED, "no race")

    def traffic(exercise, traces, pairs):
        if row := mishap(traces.values(), exercise):
            return row
        for pair in pairs:
            if lines := _excess(pair, traces):
                return Row("traffic", FAILED, lines[0], lines[1:])
        warnings = [line for pair in pairs for line in _warnings(pair, traces)]
        warnings += [line for remark in remarks for line in remark(traces[traced[0]])]
        text = " · ".join([*_counts(pairs[0], traces), "no race"])
        return Row("traffic", PASSED, text, tuple(warnings))

    gather.kind = "answer"
    return (gather,)


def caused(name, error, cause, exercise, case):
    """The rows of a wrong answer that a fault or a race explains: the hint is for the cause."""
    answer = Row("answer", FAILED, f"{name}: {error}", why(cause, exercise, case))
    return answer, Row("traffic", FAILED, "not counted (see above)")


def mishap(traces, exercise):
    """The failed row of the first fault or race, or of too much shared memory; or None."""
    for traced in traces:
        for trouble in (*traced.faults, *traced.races):
            return Row("traffic", FAILED, "", why(trouble, exercise))
    if (most := max(traced.shared_bytes for traced in traces)) > SHARED_BYTES:
        text = f"{most:,} bytes of shared memory, a block may declare {SHARED_BYTES:,}"
        return Row("traffic", FAILED, text)


def cause_in(kernel, grid, block, arrays, constants=None):
    """Why a launch may be wrong whatever it computes: a fault or a race; or None."""
    traced = trace.trace(kernel, grid, block, *arrays.values(), constants=constants, local=False)
    return next(iter((*traced.faults, *traced.races)), None)


def _right(kernel, problem, case):
    """Whether its answers are right; if not, it may have been written for other sizes."""
    try:
        run(kernel, problem, case)
    except Exception:
        return False
    return True


def _clean(kernel, exercise, problem, quick, traces):
    """Whether the kernel runs without a fault in these launches too, which join `traces`."""
    runs = {}
    try:
        for case in (case for pair in quick for case in pair.cases):
            (runs[case],) = run(kernel, problem(kernel, exercise, case), case, True)
    except (Difference, trace.KernelFault, ValueError):
        return False
    dirty = any(t.faults or t.races for t in runs.values())
    if dirty or any(_excess(pair, runs) for pair in quick):
        return False
    traces |= runs
    return True


def _excess(pair, traces):
    few, many = (traces[case] for case in pair.cases)
    excess = (budget.excess(few, many, pair.tokens) for budget in pair.budgets)
    return next(filter(None, excess), None)


def _warnings(pair, traces):
    few, many = (traces[case] for case in pair.cases)
    return filter(None, (budget.warning(few, many, pair.tokens) for budget in pair.budgets))


def _counts(pair, traces):
    few, many = (traces[case] for case in pair.cases)
    for unit in ("warp", "thread"):
        some = [b for b in pair.budgets if b.unit == unit and not b.least]
        counts = " · ".join(b.counted(b.per_token(few, many, pair.tokens)) for b in some)
        if counts:
            yield f"{counts} per {unit} and token"


def run(kernel, problem, case, traced=False):
    """The launches of a problem, and what is wrong with their answers; the traces if `traced`.

    Raises:
        Difference: an answer is wrong, or an input was changed.
        KernelFault: the kernel stopped.
    """
    traces = []
    for grid, block, arrays in problem.launches:
        before = {name: array.copy() for name, array in arrays.items()}
        if case.spare:
            grid += 1
        if traced:
            traces.append(traced_launch(kernel, grid, block, arrays, problem.constants))
            for fault in traces[-1].faults:
                raise fault
            for array, now in zip(arrays.values(), traces[-1].arguments, strict=True):
                array[...] = now
        else:
            how = {"constants": problem.constants, "reverse": case.reverse}
            try:
                trace.run(kernel, grid, block, *arrays.values(), **how)
            except Exception as error:
                _note_sizes(error, problem.constants)
                raise
        for name in arrays.keys() - set(problem.writes):
            if not np.array_equal(arrays[name], before[name]):
                raise ChangedInput(f"the kernel changed its input {name}")
    try:
        problem.judge()
    except Difference as difference:
        if difference.symptom == "unset" and not traced:
            _raise_unset(kernel, problem)
        if difference.unwritten:
            _raise_added(kernel, problem)
        raise
    return traces


def traced_launch(kernel, grid, block, arrays, constants):
    """The trace of one launch, whose faults say which sizes are not those of the lesson."""
    traced = trace.trace(kernel, grid, block, *arrays.values(), constants=constants, local=False)
    for fault in traced.faults:
        _note_sizes(fault, constants)
    return traced


def _note_sizes(error, constants):
    """Says which sizes are not those of the lesson."""
    if constants:
        sizes = " and ".join(f"{name} is {value}" for name, value in constants.items())
        error.add_note(f"In this case {sizes}, so that a CPU has little to do.")


def _raise_unset(kernel, problem):
    """Raises the fault that explains a NaN: an element is read that nobody has written."""
    for grid, block, arrays in problem.launches:
        for fault in traced_launch(kernel, grid, block, arrays, problem.constants).faults:
            if isinstance(fault, UninitialisedRead):
                raise fault


def _raise_added(kernel, problem):
    """Raises what explains a NaN that was in fresh memory: sums are added to it."""
    for grid, block, arrays in problem.launches:
        for name in problem.writes:
            arrays[name][...] = 0
        trace.run(kernel, grid, block, *arrays.values(), constants=problem.constants)
    try:
        problem.judge()
    except Difference:
        return
    if not all(arrays[name].any() for name in problem.writes):
        return  # zeros are right there, written or not
    names = " and ".join(problem.writes)
    raise AddsToMemory(f"{names}: right if it held zeros before the launch, but it does not")


def why(trouble, exercise, case=None):
    """`explained` of a CUDA kernel: what is wrong in a case, or in a traced launch."""
    outside = "tail" if case is not None and case.spare else "bounds"
    symptom = None if case is None else case.symptom
    return explained(trouble, exercise, symptom, outside, by_axes=True)


def unlaunchable(kernel, block):
    """Why `kernel[grid, block](…)` would fail whatever it computes, in lines; or None.

    That it is a kernel, and takes what the launch gives it, was looked at before.
    """
    name = getattr(kernel, "__name__", "it")
    options = getattr(kernel, "targetoptions", {})
    if options.get("device"):
        return (f"{name} has device=True: a function for kernels to call, not one to launch",)
    bounds = options.get("launch_bounds")
    most = bounds[0] if isinstance(bounds, (tuple, list)) else bounds
    if most is not None and block > most:
        return (f"launch_bounds lets a block have {most} threads, and the launch gives it {block}",)
    return None
