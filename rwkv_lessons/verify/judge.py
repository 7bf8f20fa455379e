"""One case: its largest error beside its limit, whether its bits repeat, and the verdict."""

import math
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from rwkv_lessons.operations.entries import loaded

from .cases import CheckedCase
from .limits import by_chance

RIGHT, WRONG, UNSEEN = "right", "wrong", "not checked"
EQUAL, DIFFER, NOT_PROMISED = "equal", "differ", "not promised"


@dataclass(frozen=True)
class Judgement:
    """What came of a case."""

    case: CheckedCase
    verdict: str
    worst: str | None = None  # the result that was nearest to its limit, or beyond
    error: float | None = None
    limit: float | None = None
    bits: str | None = None
    seconds: float | None = None
    reason: str | None = None  # why it is wrong, or was not checked
    crashed: bool = False  # the GPU takes no more work from this process

    @property
    def line(self):
        parts = []
        if self.worst:
            error = "not a number" if self.error is None else f"{self.error:.1e}"
            parts.append(f"{self.worst} {error} of {self.limit:.1e}")
        if self.bits:
            parts.append(f"bits {self.bits}")
        parts += [self.reason] if self.reason else []
        mark = {RIGHT: "right", WRONG: "WRONG", UNSEEN: "-----"}[self.verdict]
        return f"{mark}  {self.case.name:68}  {', '.join(parts)}"

    def as_dict(self):
        data = asdict(self)
        case = data.pop("case")
        del data["crashed"]
        return {"name": self.case.name} | case | {k: v for k, v in data.items() if v is not None}


def look(case, device=None):
    """The `Judgement` of a case, in this process, on the GPU where there is one."""
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    started = time.monotonic()
    try:
        with poisoned():
            outcome = _look(case, device)
    except torch.OutOfMemoryError:
        outcome = {"verdict": UNSEEN, "reason": "not enough memory on the GPU"}
    except Exception as error:  # whatever a wrong kernel or a compiler does
        first = next(iter(str(error).splitlines()), "")
        outcome = {"verdict": WRONG, "reason": f"{type(error).__name__}: {first}"}
    crashed = _crashed(device)
    return Judgement(case, seconds=round(time.monotonic() - started, 3), crashed=crashed, **outcome)


def _look(case, device):
    problem = loaded(f"rwkv_lessons.verify.{case.checks.problem}")(case, device)
    results = problem.results()
    worst = (-1.0, None, None, None)  # share of the limit, result, error, limit
    for part, expected in problem.expected():
        for name, result in results.items():
            plain = name.removesuffix(" in training")
            errors, n = problem.errors(plain, result, part, expected[plain])
            error = errors.nan_to_num(math.inf).max().item()  # NaN is not at most anything
            limit = problem.limit(plain) * by_chance(n)
            worst = max(worst, (error / limit, name, error, limit), key=lambda x: x[0])
    share, name, error, limit = worst
    bits = NOT_PROMISED
    if device.type == "cuda" and case.method in case.checks.repeatable:
        repeated = problem.results()
        equal = all(torch.equal(x, repeated[name]) for name, x in results.items())
        bits = EQUAL if equal else DIFFER
    right = share <= 1 and bits != DIFFER
    return {
        "verdict": RIGHT if right else WRONG, "worst": name, "bits": bits, "limit": limit,
        "error": error if math.isfinite(error) else None,
    }  # fmt: skip


def with_training(tensors, in_training):
    """The results of a call without gradients, and of one with them: o and "o in training"."""
    return tensors | {f"{x} in training" if x in tensors else x: y for x, y in in_training.items()}


def _crashed(device):
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # other processes look at other cases
    except Exception:
        return True
    return False


@contextmanager
def poisoned():
    """Fresh memory is full of NaN, so that an element nobody wrote is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():  # torch: this operation has no deterministic form
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled
