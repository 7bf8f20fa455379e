"""WKV-6 with decays from none to total: how long both kinds of call take, case by case.

Rows: a method and a case, and ", both passes" where gradients are taken as well. An error is that
of the first `CHECKED` heads of the first sequence, against float64.
"""

import math
from importlib.util import find_spec
from itertools import product

import torch

from rwkv_lessons.bench import methods, timing
from rwkv_lessons.bench.commands.run import choose, time_rows
from rwkv_lessons.bench.measure import LIMITS, PEER_LIMIT, one_line, relative_error
from rwkv_lessons.bench.peers import fla_wkv6
from rwkv_lessons.bench.taken import methods_taken
from rwkv_lessons.operations.wkv6 import WKV6_DECAYS
from rwkv_lessons.records.schema import Measurement, code
from rwkv_lessons.wkv6 import wkv6, wkv6_doubling

SOURCES = ("rwkv_lessons/wkv6/__init__.py::wkv6",)
CHECKED = 2
BUDGET_MS = 60  # of repetitions of a row
TAME = math.exp(-1.5)


def decays(case, x):
    """w of a case: x are normal numbers of its shape `[B, T, H, N]`."""
    tame = -TAME * (0.3 * x).exp()
    if case == "tame":
        return tame
    if case == "median exp(-2)":
        return -2 * (0.5 * x).exp()
    if case == "one channel in 64 at -5":
        return torch.where(torch.arange(x.shape[3], device=x.device) % 64 == 5, -5.0, tame)
    if case == "40 tokens of -4":
        t = torch.arange(x.shape[1], device=x.device)[:, None, None] - x.shape[1] // 4
        return torch.where((t >= 0) & (t < 40), -4.0, tame)
    return torch.full_like(x, float(case.removeprefix("w = ")))


CASES = (
    "tame",
    "40 tokens of -4",
    "one channel in 64 at -5",
    "median exp(-2)",
    "w = -5",
    "w = -20",
    "w = 0",
)
PEER_CASES = ("tame", "w = -5")  # it does the same work whatever w is


METHODS = {"wkv6": (wkv6, CASES), "fla chunk": (fla_wkv6, PEER_CASES)}


def command(options):
    """`python -m rwkv_lessons.bench wkv6-decays`."""
    names = options.methods or [name for name in METHODS if name == "wkv6" or find_spec("fla")]
    chosen = choose(METHODS, names)

    def rows(shape, _, device):
        for name, (f, cases) in chosen.items():
            for case, both in product(cases, (False, True)):
                yield measure(name, f, case, both, shape, device)

    time_rows(options, WKV6_DECAYS, rows)


def make_inputs(case, shape, device):
    """r, k, v, w in bfloat16 and u in float32; the same numbers at every call, but w."""
    generator = torch.Generator(device).manual_seed(0)

    def numbers(*size):
        return torch.randn(*size, generator=generator, device=device)

    r, k, v = (numbers(*shape).bfloat16() for _ in range(3))
    w = decays(case, numbers(*shape)).bfloat16()
    return r, k / math.sqrt(shape[3]), v, w, numbers(*shape[2:])


@torch.no_grad()
def measure(name, f, case, both, shape, device):
    """The row of a method and a case."""
    row = {"method": f"{name}, {case}" + ", both passes" * both, "shape": tuple(shape)}
    row |= {"dtype": "bfloat16"}
    if name == "wkv6":
        row |= code(*SOURCES)
    try:
        x = make_inputs(case, shape, device)
        if both:
            run = methods.with_gradients(f, x)
        else:
            run = lambda: methods.first(f(*x))  # noqa: E731
        with methods_taken() as methods_called:
            result = run()
        row |= code(*SOURCES, *sorted(methods_called)) if name == "wkv6" else {}
        error = error_of(result, x, both)
        if not error <= (LIMITS["bfloat16"] if name == "wkv6" else PEER_LIMIT):
            return Measurement(**row, error=error if math.isfinite(error) else None,
                               problem=f"relative error {error:.2g}: not timed")  # fmt: skip
        times = timing.device_times(run, device, BUDGET_MS)
        return Measurement(**row, **times._asdict(), error=error)
    except Exception as problem:  # of one row: the others go on
        return Measurement(**row, problem=one_line(problem))


def error_of(result, x, both):
    """The largest, of o and of the gradients of r, k and v, of the first heads.

    Where nothing is kept the gradient of w vanishes, and u's is of all sequences.
    """
    few = [y[:1, :, :CHECKED].double() for y in x[:4]] + [x[4][:CHECKED].double()]
    if not both:
        return relative_error(result[:1, :, :CHECKED], wkv6_doubling(*few)[0])
    want = methods.with_gradients(wkv6_doubling, few)()
    pairs = zip(result[:4], want[:4], strict=True)
    return max(relative_error(a[:1, :, :CHECKED], b) for a, b in pairs)
