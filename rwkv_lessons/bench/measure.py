"""One method at one shape: check against float64 first, then time."""

import math

import torch

from rwkv_lessons.bench import methods, timing
from rwkv_lessons.bench.taken import methods_taken
from rwkv_lessons.operations import OPERATIONS, work
from rwkv_lessons.operations.entries import BOTH, loaded
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.verify.judge import poisoned

# The largest ‖o − ref‖ / ‖ref‖ that is timed. float32: the decay exp(w) is rounded by up to 6e-8,
# and a channel that remembers 400 tokens makes 2.4e-5 of that. The others: o itself is rounded to
# 11 and 8 bits (rms 2e-4 and 1.7e-3), and a matrix product rounds its operands once more.
LIMITS = {"float32": 2.4e-5, "float16": 1e-3, "bfloat16": 1e-2}
PEER_LIMIT = 1e-2  # a peer may use TF32 or bf16 inside: the row says how far off it is


def make_inputs(operation, shape, dtype, device):
    """The project's inputs of an operation's name: r, k, v, w, u for WKV-5 and WKV-6."""
    make = loaded(OPERATIONS[operation].inputs)
    return make(*shape, dtype=getattr(torch, dtype), device=device)


@torch.no_grad()
def in_float64(operation, inputs):
    """The reference's o on the same numbers, upcast, on the same device; or what is compared.

    Where both passes are timed, o and the gradients of the inputs, by matrix products in torch:
    the tests hold them against the recurrence, which would keep every state.
    """
    operation = OPERATIONS[operation]
    reference, doubles = loaded(operation.reference), [x.double() for x in inputs]
    if operation.timed == BOTH:
        return methods.with_gradients(reference, doubles, operation.like)()
    results = reference(*doubles)
    return methods.first(results) if operation.compared == 1 else results[: operation.compared]


@torch.no_grad()
def measure(operation, method, inputs, expected, budget_ms=timing.BUDGET_MS, ceilings=None):
    """Checks `method` on `inputs` and, if it is right, times it.

    Args:
        operation: a key of `OPERATIONS`.
        method: a `Method`.
        inputs: as `make_inputs` makes them.
        expected: o in float64, or a tuple that starts with it: then the largest error counts.
        budget_ms: of repetitions, for each kind of time.
        ceilings: bytes and flops per second of this GPU; None if not measured.

    Returns:
        A `Measurement`. One that was wrong, or could not run, says so in `problem`, and has no
        times.
    """
    r = inputs[OPERATIONS[operation].like]
    dtype = str(r.dtype).removeprefix("torch.")
    row = {"method": method.name, "shape": tuple(r.shape), "dtype": dtype, "note": method.note}
    limit = LIMITS[dtype] if method.precise else PEER_LIMIT
    limit *= OPERATIONS[operation].slack
    with methods_taken() as methods_called:
        run, error, problem = checked(lambda: method.prepare(*inputs), expected, limit)
    if method.sources:
        row |= code(*dict.fromkeys((*method.sources, *sorted(methods_called))))
    row |= {"error": error} | (_facts(method, run) if run else {})
    if problem:
        return Measurement(**row, problem=problem)

    times = timing.all_times(run, r.device, budget_ms)
    least, unit = work(operation, r.shape, dtype), OPERATIONS[operation].unit_of(method.name)
    speed = rates(least, dtype, times["median_ms"], ceilings, unit)
    return Measurement(**row, **times, **speed)


def checked(prepare, expected, limit):
    """What `prepare` returns, if it does; its result's error; and why it is not to be timed.

    Args:
        prepare: () → run; run() returns what is held against `expected`.
        limit: the largest error that is timed. One that is not finite is None in what is returned.
    """
    try:
        with poisoned():
            run = prepare()
            error = _error(run(), expected)
    except Exception as problem:  # a peer may refuse a shape or a dtype: the others go on
        return None, None, one_line(problem)
    problem = f"relative error {error:.2g}, more than {limit:g}: not timed"
    finite = error if math.isfinite(error) else None
    return run, finite, None if error <= limit else problem  # NaN is not at most anything


def checked_row(about, prepare, expected, limit, times):
    """A `Measurement` of what `prepare` returns, if it is right; else with the problem.

    Args:
        about: the fields that are known before.
        prepare, expected, limit: as of `checked`.
        times: run → the fields that are measured.
    """
    run, error, problem = checked(prepare, expected, limit)
    measured = {"problem": problem} if problem else times(run)
    return Measurement(**about, error=error, **measured)


def one_line(problem):
    """An exception in a line: its first sentence."""
    first_line = next(iter(str(problem).splitlines()), "").split(". ")[0]
    return f"{type(problem).__name__}: {first_line}"


def _facts(method, run):
    """Registers and the like, where this version of numba or cuda.core tells them."""
    try:
        return method.facts(run)
    except (AttributeError, TypeError):
        return {}


def _error(result, expected):
    result = result if isinstance(result, tuple) else (result,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    errors = [relative_error(*pair) for pair in zip(result, expected, strict=False)]
    return max(errors, key=lambda error: (math.isnan(error), error))


def relative_error(o, expected):
    """‖o − ref‖ / ‖ref‖ in float64; NaN if any element is."""
    return float((o.double() - expected).norm() / expected.norm())
