"""The evidence for lesson 18: small traces to read, and captures that are watched without a GPU."""

import math
from collections.abc import Callable

import numpy as np
import torch

from warplens.faults import KernelFault
from warplens.graphs import CaptureFault, Graphs, address
from warplens.steps import limited

from ...course.check import ABSENT, FAILED, PASSED, Row
from ...evidence.compare import Difference, compare
from ...evidence.functions import called, shown
from ...evidence.verdicts import failed


def event(cat, name, ts, dur):
    """An event as a Chrome trace has it."""
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def call(start, end, *kernels):
    """The events of a call from `start` to `end`: a launch and a run of each (name, ts, dur)."""
    events = [event("call", "call", start, end - start)]
    for n, (name, ts, dur) in enumerate(kernels):
        events += [
            event("launch", "cudaLaunchKernel", start + n, 1),
            event("kernel", name, ts, dur),
        ]
    return events


def made_up_calls(count=12):
    """Traces of up to 20 kernels on two streams, in no order, of a call that starts anywhere."""
    random = np.random.default_rng(0)
    for _ in range(count):
        n, start = int(random.integers(1, 20)), int(random.integers(0, 9000))
        us = [int(x) for x in random.integers(1, 30, n)]
        ts = [start + 5 + int(x) for x in np.sort(random.integers(0, 200, n))]
        names = [str(x) for x in random.choice(["gemm", "add", "copy"], n)]
        kernels = list(zip(names, ts, us, strict=True))
        totals = [sum(d for name, _, d in kernels if name == x) for x in set(names)]
        if totals.count(max(totals)) > 1:
            continue  # which takes most would be a matter of taste
        end = max(t + d for _, t, d in kernels) + int(random.integers(0, 20))
        events = call(start, end, *kernels)
        for launch in (x for x in events if x["cat"] == "launch"):
            launch["dur"] = int(random.integers(1, 60))  # longer than a kernel, some of them
        yield [events[int(i)] for i in random.permutation(len(events))]


def traces(*cases, names):
    """Calls a function on traces: (what it tests, symptom, events, what it has to return).

    Args:
        names: of what it returns; one name, one number. The solution judges made-up traces.
    """

    def gather(function, exercise):
        random = [("a made-up trace", None, x, exercise.reference(x)) for x in made_up_calls()]
        for name, symptom, events, want in (*cases, *random):
            try:
                _agree(called(function, events), want, names)
            except (Difference, KernelFault) as trouble:
                part = _part(trouble, names)
                symptom = part if part in exercise.symptoms else symptom
                return failed(name, trouble, exercise, symptom, _in_words(events))
        return Row("answer", PASSED, f"{len(cases) + len(random)} traces")

    gather.kind = "answer"
    return gather


def numbers(*cases, name, more=()):
    """Calls a function on each case: (what it tests, arguments, a number, or infinity).

    Args:
        more: further arguments, for which the solution says what is expected.
    """

    def gather(function, exercise):
        further = [("many numbers", x, exercise.reference(*x)) for x in more]
        for case, arguments, want in (*cases, *further):
            try:
                _agree(called(function, *arguments), want, (name,))
            except (Difference, KernelFault) as trouble:
                return failed(case, trouble, exercise, case, shown(function, arguments))
        return Row("answer", PASSED, f"{len(cases) + len(further)} cases")

    gather.kind = "answer"
    return gather


def _agree(got, want, names):
    """Names are compared as they are, numbers to what a few additions leave."""
    if isinstance(want, tuple) and not (isinstance(got, tuple | list) and len(got) == len(want)):
        raise Difference(f"got {got}, want {' and '.join(names)}")
    if not isinstance(want, tuple):
        got, want = (got,), (want,)
    for name, x, y in zip(names, got, want, strict=True):
        if isinstance(y, str):
            if x != y:
                raise Difference(f"{name}: {x!r}, want {y!r}")
        elif not (isinstance(x, int | float) and math.isclose(x, y, abs_tol=1e-9)):
            x = f"{x:.4g}" if isinstance(x, float) else x
            raise Difference(f"{name}: {x}, want {y:.4g}")


def _part(trouble, names):
    """Which of several results is wrong, where those before it are right."""
    name = str(trouble).partition(":")[0]
    return name if name in names[1:] else None


def _in_words(events):
    """A trace in a line: what ran, from when to when."""
    ran = [e for e in events if e["cat"] != "launch"]
    shown_ = [f"{e['name']} {e['ts']}–{e['ts'] + e['dur']}" for e in ran[:7]]
    return ", ".join(shown_) + (", …" if len(ran) > 7 else "")


class CompiledFunction:
    """A function whose first call compiles, which no capture allows; its calls are counted."""

    def __init__(self, function, cuda):
        self.function, self.cuda = function, cuda
        self.calls, self.in_capture = 0, 0

    def __call__(self, *inputs):
        if self.cuda.capturing and not self.calls:
            raise CaptureFault("the first call of f is in the capture: it would compile there")
        self.calls += 1
        self.in_capture += self.cuda.capturing
        return self.function(*inputs)


def captures(function: Callable, make: Callable):
    """Captures `function` with the learner's function, on a stand-in of torch.cuda, and replays.

    Args:
        function: of tensors, returns a tensor or several.
        make: (seed) → its inputs.
    """

    def gather(capture, exercise):
        try:
            with limited(capture):
                _captured(capture, function, make)
        except Trouble as trouble:
            return failed(trouble.case, trouble, exercise, trouble.case)
        except CaptureFault as fault:
            return failed("the capture", Difference(fault), exercise, _symptom(fault))
        except KernelFault as fault:
            return failed("the capture", fault, exercise, None)
        return Row("answer", PASSED, "one capture, four replays, no GPU: operators on the CPU")

    gather.kind = "answer"
    return gather


class Trouble(Difference):
    """A wrong result, and the case that it belongs to."""

    def __init__(self, case, text):
        super().__init__(text)
        self.case = case


def _captured(capture, function, make):
    cuda, first = Graphs(), make(0)
    f, before = CompiledFunction(function, cuda), [x.clone() for x in first]
    try:
        replay = capture(f, first, cuda)
    except (AssertionError, RuntimeError) as error:
        if isinstance(error, Difference) or "CUDA" not in str(error):
            raise
        raise Trouble("cuda", f"asks torch.cuda, not the cuda that was given: {error}") from None
    if not callable(replay):
        raise Trouble("returned", f"returns {type(replay).__name__}, want a function of new inputs")
    if not cuda.captured:
        raise Trouble("nothing captured", "no graph was captured")
    if f.in_capture != 1:
        raise Trouble("once", f"f is called {f.in_capture} times in the capture, want once")
    calls, graph = f.calls, cuda.captured[-1]
    replays = graph.replays
    results = [_copied(replay(*make(seed))) for seed in range(3)]
    wants = [_several(function(*make(seed))) for seed in range(3)]
    _agrees("the same inputs", results[0], wants[0])
    if _is(results[2], wants[1]):
        raise Trouble("one behind", "each answer is that of the inputs before")
    if _is(results[1], wants[0]) and any(_apart(replay, graph)):
        raise Trouble("elsewhere", "a result lies in memory that the graph does not write")
    _agrees("other inputs", results[1], wants[1])
    _agrees("and others", results[2], wants[2])
    _agrees("no new inputs", _copied(replay()), wants[2])
    if graph.replays - replays > 4:
        text = f"graph.replay() is called {graph.replays - replays} times in four calls"
        raise Trouble("replays", text)
    if f.calls > calls:
        raise Trouble("called again", "a replay calls f: that launches every kernel again")
    if any(not torch.equal(x, y) for x, y in zip(first, before, strict=True)):
        raise Trouble("the caller's", "the tensors of the caller have changed: replays wrote there")


def _several(results):
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _copied(results):
    """As they are now: a replay may write over them."""
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in _several(results))


def _apart(replay, graph):
    """Whether each result keeps its memory from call to call, and the graph writes elsewhere."""
    first, second = _several(replay()), _several(replay())
    return [
        address(x) == address(y) not in graph.memory for x, y in zip(first, second, strict=True)
    ]


def _is(got, want):
    return len(got) == len(want) and all(map(torch.equal, got, want))


def _agrees(case, got, want):
    if len(got) != len(want):
        raise Trouble(case, f"{case}: {len(got)} results, want {len(want)}")
    for n, (x, y) in enumerate(zip(got, want, strict=True)):
        try:
            compare(x, y, letters="abcd"[: y.dim()])
        except Difference as difference:
            raise Trouble(case, f"{case}, result {n}: {difference}") from None


def _symptom(trouble):
    text = str(trouble)
    if "first call" in text:
        return "first call"
    return "waits" if "in a capture" in text else None


def captures_here(function, make):
    """The same on this GPU, where there is one."""

    def gather(capture, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        replay = capture(function, [x.cuda() for x in make(0)])
        for seed in (1, 2):
            inputs = [x.cuda() for x in make(seed)]
            try:
                outputs = tuple(x.cpu() for x in _several(replay(*inputs)))
                _agrees("other inputs", outputs, _several(function(*make(seed))))
            except Difference as difference:
                return Row("this GPU", FAILED, "other inputs", (str(difference),))
        return Row("this GPU", PASSED, f"two replays on {torch.cuda.get_device_name()}")

    gather.kind = "this GPU"
    return gather
