"""The evidence for lesson kernels of WKV-6: forward, with states, and gradients.

A lesson kernel takes any of the arrays in LETTERS, by these names. One problem has all of them,
inputs and answers; a kernel's own parameters say which it is given and which it has to write.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import float32

from warplens.compiled.functions import is_kernel_function, named, plain
from warplens.cuda import trace

from ...inputs import rwkv6_inputs
from ...runtime.launch_numba import as_array, stream
from ...wkv6.reference import wkv6_reference
from ..course.check import ABSENT, FAILED, Row
from .claims import Claim, float32_only, machine_code
from .compare import Difference, about, compare, fresh
from .cuda import timed
from .kernels import FEWER, Counted, CudaCase, N, Problem, judged
from .traffic import FEW, MANY

# Array → what its axes are called: i keys, j values, c chunks.
LETTERS = dict.fromkeys(("r", "k", "w", "dr", "dk", "dw", "rdr", "kdk"), "bthi")
LETTERS |= dict.fromkeys(("v", "o", "do", "dv"), "bthj")
LETTERS |= dict.fromkeys(("s0", "s1", "ds0", "ds1"), "bhij")
LETTERS |= {"u": "hi", "du": "bhi", "a": "bchi", "states": "bchji", "kept": "bchij"}
TOKENS = ("r", "k", "v", "w", "do")  # what a kernel may get in 16 bits
# Gradients through the state alone, without the bonus.
LETTERS |= {"dr_s": "bthi", "dk_s": "bthi", "dv_s": "bthj"}


@dataclasses.dataclass(frozen=True)
class StateCase(CudaCase):
    """A case with a state before the tokens, gradients after them, and a choice of decays."""

    states: bool = True  # s0 and ds1 are not zero
    decay: str = "text"  # as the text makes it; "strong": from 1e-6 to 1e-2; "edge": 0 or 1
    split: int = 0  # run as two launches: so many tokens, then the rest


FORWARD = (
    StateCase("one token", "by hand", (1, 1, 1, N), states=False),
    StateCase("the state decays by exp(w)", "decay", (1, 3, 1, N), states=False),
    StateCase("every head has its own state, decay and bonus", "head", (1, 2, 2, N), states=False),
    StateCase("the state before the first token is s0", "state in", (1, 2, 1, N)),
    StateCase("every batch row has its own tokens and states", "batch", (3, 2, 1, N)),
    StateCase("strong decays", "decay", (1, 4, 1, N), decay="strong"),
    StateCase("decay 0 forgets, decay 1 keeps", "decay", (1, 4, 1, N), decay="edge"),
    StateCase("a token looks at none that come later", "state", (1, 5, 1, N), numbers="huge"),
    StateCase("5 tokens, then 3 from the state they left", "state out", (1, 8, 1, N), split=5),
    StateCase("the order of the threads does not matter", "order", (2, 3, 1, N), reverse=True),
)
BACKWARD = (
    StateCase("one token, no states", "by hand", (1, 1, 1, N), states=False),
    StateCase("one token between two states", "last", (1, 1, 1, N)),
    StateCase("two tokens", "state", (1, 2, 1, N), states=False),
    StateCase("two tokens between two states", "last", (1, 2, 1, N)),
    StateCase("every head has its own states, decay and bonus", "head", (1, 3, 2, N)),
    StateCase("every batch row has its own tokens and states", "batch", (3, 2, 1, N)),
    StateCase("8 tokens in two whole chunks", "chunk", (1, 8, 1, N)),
    StateCase("5 tokens, the last chunk has one", "chunk", (1, 5, 2, N)),
    StateCase("strong decays", "decay", (1, 4, 1, N), decay="strong"),
    StateCase("decay 0 forgets, decay 1 keeps", "decay", (1, 4, 1, N), decay="edge"),
    StateCase("the order of the threads does not matter", "order", (2, 3, 1, N), reverse=True),
)
MANY_SIZES = (
    StateCase("small heads", "head", (1, 3, 2, FEWER)),
    StateCase("1,030 tokens", "state", (1, 1030, 1, FEWER)),
    StateCase("20 batch rows of 27 heads", "batch", (20, 1, 27, FEWER)),
)
HEADS = StateCase("two batch rows of two heads", "batch", (2, 3, 2, N))
TWO, SIX, LONG = (StateCase(f"{n} tokens", "state", (1, n, 1, N)) for n in (2, FEW, MANY))
# The same with heads of 16: of a block of 16 threads, too, each barrier is needed.
THIN = 16
THIN_SIX, THIN_LONG = (StateCase(f"{n} tokens", "state", (1, n, 1, THIN)) for n in (FEW, MANY))
WITH_CHUNKS = (HEADS, TWO, SIX, LONG, THIN_SIX, THIN_LONG)
CHUNK, SMALL_CHUNK = 64, 4  # tokens: C, and what stands for it in all other cases


@functools.lru_cache(maxsize=64)
def problem(
    shape, C=CHUNK, states=True, decay="text", device="cpu", numbers="text", dtype=torch.float32
):
    """Every array of LETTERS as a float64 tensor: inputs as a float32 kernel gets them, answers.

    Gradients are autograd's, through `wkv6_reference` in float64. `do` and `ds1` are random.

    Args:
        shape: B, T, H, N, or B, T, H, K, V where keys and values differ in size.
        dtype: to which r, k, v, w and do are rounded.
    """
    B, T, H, K, V = (*shape, shape[3])[:5]
    generator = torch.Generator().manual_seed(T)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(device).double()

    tokens = rwkv6_inputs(B, T, H, max(K, V), device=device)
    inputs = {x: y[..., : V if x == "v" else K].double() for x, y in tokens._asdict().items()}
    s0, ds1, do = random(B, H, K, V), random(B, H, K, V), random(B, T, H, V)
    inputs |= {"s0": s0 * states, "ds1": ds1 * states, "do": do}
    if decay == "strong":
        inputs["w"] = -4.6 - 9.2 * torch.sigmoid(random(B, T, H, K)).float().double()
    if decay == "edge":
        inputs["w"] = torch.where(random(B, T, H, K) < 0, -torch.inf, 0.0).double()
    if numbers == "huge":
        inputs["k"][:, -1] *= 1e6
    inputs |= {x: inputs[x].to(dtype).double() for x in TOKENS}
    rows = [
        _one_row({x: y if x == "u" else y[b : b + 1] for x, y in inputs.items()}, C)
        for b in range(B)
    ]
    return inputs | {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def _one_row(inputs, C):
    """The answers for one batch row."""
    answers = _gradients(inputs, C)
    # Without a bonus, all of dr and dk comes through the state.
    no_bonus = _gradients(inputs | {"u": torch.zeros_like(inputs["u"])}, C)
    answers |= {f"d{x}_s": no_bonus[f"d{x}"] for x in "rkv"}
    answers |= {"rdr": inputs["r"] * no_bonus["dr"], "kdk": inputs["k"] * no_bonus["dk"]}
    return answers | {"du": answers["du"][None]}  # [1, H, N]: callers add up the batch


def _gradients(inputs, C):
    """o, s1 and all gradients for one batch row, and S and S·G at the ends of its chunks."""
    leaves = {x: inputs[x].clone().requires_grad_() for x in ("r", "k", "v", "w", "u", "s0")}
    r, k, v, w, u, s = leaves.values()
    o, ends = [], []
    for t in range(0, r.shape[1], C):
        o_chunk, s = wkv6_reference(*(x[:, t : t + C] for x in (r, k, v, w)), u, s)
        s.retain_grad()
        o, ends = [*o, o_chunk], [*ends, s]
    o = torch.cat(o, 1)
    ((o * inputs["do"]).sum() + (s * inputs["ds1"]).sum()).backward()
    answers = {"o": o, "s1": s} | {f"d{x}": leaf.grad for x, leaf in leaves.items()}
    S, G = torch.stack(ends, 1), torch.stack([end.grad for end in ends], 1)
    answers |= {"states": S.transpose(-1, -2), "kept": S, "a": (S * G).sum(-1)}
    return {name: x.detach() for name, x in answers.items()}


def parameters(kernel):
    """The names of a kernel's arguments."""
    code = plain(kernel).__code__
    return code.co_varnames[: code.co_argcount]


def arrays(kernel, writes, shape, C=64, **choice):
    """Arguments for a CPU run of `kernel`, by name, float32; what it `writes` is full of NaN."""
    return _arrays(parameters(kernel), writes, problem(tuple(shape), C, **choice))


def _arrays(names, writes, exact):
    float32s = {name: exact[name].float().numpy().copy() for name in names}  # C-contiguous
    return {name: fresh(x.shape) if name in writes else x for name, x in float32s.items()}


def _names(function, constant, number):
    """Whether a kernel, or a function that it calls, reads a global of this name and value.

    Names of attributes count as well, so that a function may seem to call itself: `shared` of
    `cuda.shared.array`, where a notebook has a kernel of that name.
    """
    visited, waiting = set(), [function]
    while waiting:
        function = waiting.pop()
        visited.add(function)
        for name, value in named(function).items():
            if name == constant and type(value) is int and value == number:
                return True
            if is_kernel_function(value) and plain(value) not in visited:
                waiting.append(plain(value))
    return False


def wkv6_signature(kernel):
    """The numba types of a lesson kernel's arguments."""
    layouts = {n: float32[(slice(None),) * (n - 1) + (slice(None, None, 1),)] for n in (2, 3, 4, 5)}
    return tuple(layouts[len(LETTERS[name])] for name in parameters(kernel))


def compare_written(writes, got, exact, untouched=False):
    """Raises `Difference` for the first of the arrays that is wrong."""
    for name in writes:
        # dw is what is left of a difference: as exact as the numbers that are subtracted.
        of = ("a", "rdr", "kdk") if name == "dw" else (name,)
        scale = max(float(exact[x].abs().max()) for x in of)
        want, letters = exact[name].cpu().numpy(), LETTERS[name]
        # Gradients of a token come from those before and after it: an axis tells nothing of them.
        with about(name, by_axes=name == "o"):
            compare(got[name], want, letters, scale, untouched=untouched)


def _launches(case, arguments):
    """(shape, arguments) of a launch, or of two: the second goes on from the first one's state."""
    if not case.split:
        return [(case.shape, arguments)]
    first, rest = (
        {x: y[:, tokens].copy() if "t" in LETTERS[x] else y for x, y in arguments.items()}
        for tokens in (slice(0, case.split), slice(case.split, None))
    )
    rest |= {"s0": first["s1"], "s1": fresh(first["s1"].shape)}
    return [((*part["r"].shape,), part) for part in (first, rest)]


def answer_and_traffic(launch: Callable, writes: tuple[str, ...], cases, budgets=()):
    """Runs the kernel on the CPU, holds what it `writes` against float64, counts its traffic.

    Args:
        budgets: a tuple; or a function that makes one for a head size. Then the long launch is
            traced with heads of 16 where the kernel is right with them, which takes a twentieth of
            the time; with whole heads its answers are compared.
    """

    def problem_of(kernel, exercise, case):
        names = parameters(exercise.reference)
        C = SMALL_CHUNK if case not in WITH_CHUNKS and _names(plain(kernel), "C", CHUNK) else CHUNK
        exact = problem(case.shape, C, case.states, case.decay, numbers=case.numbers)
        parts = _launches(case, _arrays(names, writes, exact))
        chunked = {"C": C} if C != CHUNK else {}
        thin = {"N": case.shape[3]} if case.shape[3] != N else {}

        def judge():
            if case.numbers == "huge":  # the largest of the others sets the scale
                earlier = {"o": exact["o"][:, :-1]}
                compare_written(("o",), {"o": parts[0][1]["o"][:, :-1]}, earlier, untouched=True)
            whole = {x: _join(x, [arguments[x] for _, arguments in parts]) for x in writes}
            compare_written(writes, whole, exact, untouched=True)

        launches = [(*launch(*size, **chunked), arguments) for size, arguments in parts]
        return Problem(launches, writes, judge, chunked | thin or None)

    if not callable(budgets):
        counted = (Counted((SIX, LONG), budgets=budgets),)
        return judged(launch, problem_of, cases, (HEADS,), counted, many=MANY_SIZES)
    long = Counted((SIX, LONG), budgets=budgets(N))
    few = Counted((TWO, SIX), (2, FEW), budgets(N))
    thin = Counted((THIN_SIX, THIN_LONG), budgets=budgets(THIN))
    cases = (*cases, LONG)
    return judged(launch, problem_of, cases, (HEADS,), (few, long), (thin,), MANY_SIZES)


def _join(name, parts):
    """Tokens of several launches one after another; of a state, the last."""
    return np.concatenate(parts, 1) if "t" in LETTERS[name] else parts[-1]


def gpu(launch: Callable, writes: tuple[str, ...], shape=(2, 139, 8, 64)):
    """Runs the kernel on this machine's GPU: its answer at full head size, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        exact = problem(shape, device="cuda")
        tensors = {x: exact[x].float().contiguous() for x in parameters(exercise.reference)}
        for name in writes:
            tensors[name].fill_(torch.nan)
        grid, block = launch(*shape)
        kernel[grid, block, stream()](*map(as_array, tensors.values()))
        try:
            compare_written(writes, {x: tensors[x].cpu().numpy() for x in writes}, exact)
        except Difference as error:
            return Row("this GPU", FAILED, f"B, T, H, N = {shape}", (str(error),))
        return timed(kernel, grid, block, tensors.values(), shape)

    gather.kind = "this GPU"
    return gather


def wkv6_kernel(kernel, launch, writes, cases, *claims: Claim, budgets=()):
    """All the evidence for a lesson kernel.

    Args:
        kernel: the solution; its parameters are the kernel's.
        launch: (B, T, H, N), and C where the kernel has one → (grid, block).
        writes: which of its arrays it writes.
        cases: FORWARD or BACKWARD.
    """
    return (
        *answer_and_traffic(launch, writes, cases, budgets),
        machine_code(float32_only(), *claims, signature=wkv6_signature(kernel)),
        gpu(launch, writes),
    )


def one_after_another(launches, shape, C):
    """Runs kernels on the CPU, each on what those before it wrote, and compares with autograd.

    Args:
        launches: (kernel, what it writes, its launch function) each.
        shape: (B, T, H, N) of the problem; C: tokens of a chunk.

    Returns:
        array → its largest error, in units of its largest element.
    """
    exact, written = problem(shape, C), {}
    for kernel, writes, launch in launches:
        arguments = _arrays(parameters(kernel), writes, exact)
        arguments |= {name: written[name] for name in arguments if name in written}
        grid, block = launch(*shape, C)
        constants = {"C": C} if _names(plain(kernel), "C", CHUNK) else {}
        constants |= {"N": shape[3]} if "N" in named(plain(kernel)) else {}
        trace.run(kernel, grid, block, *arguments.values(), constants=constants)
        written |= {name: arguments[name] for name in writes}
    want = {name: exact[name].numpy() for name in written}
    return {x: np.abs(written[x] - want[x]).max() / np.abs(want[x]).max() for x in written}
