"""The evidence for lesson kernels of time-x, forward and gradients.

A lesson kernel takes any of the arrays in LETTERS, by these names. On the CPU most of its tiles are
made small, by other values of the global names TILE, WINDOW and ROWS, so that a few tokens are
several tiles. Some are not, so that there are several warps, and the lesson's own numbers.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import float32

from ...runtime.launch_numba import as_array, stream
from ...timex.reference import timex_reference
from ..course.check import ABSENT, FAILED, PASSED, Row
from ..course.exercises import solutions
from ..machine_code.cubin import is_kernel_function, named, plain
from ..simulator.cuda import trace
from .claims import Claim, float32_only, machine_code
from .compare import Difference, about, compare, fresh
from .cuda import milliseconds, timed
from .kernels import Problem, explained, run, unlaunchable
from .traffic import SHARED_BYTES

LETTERS = {"w": "ci", "k": "bct", "o": "bct", "do": "bct", "dw": "ci", "dk": "bct"}
SMALL = 32  # TILE in most cases; WINDOW is twice as many
OWN = None  # TILE as the lesson has it
LARGE = 1024  # a tile of which every thread of a block has outputs


@dataclasses.dataclass(frozen=True)
class CaseX:
    """Inputs small enough to run on a CPU, named by the property that fails if they do."""

    name: str
    symptom: str
    shape: tuple[int, int, int]  # B, C, T
    numbers: str = "random"  # "ones"; "late": the last token is huge, or the first of do
    reverse: bool = False  # run the threads of a block from the last to the first
    tile: int | None = SMALL
    rows: int | None = None  # ROWS, if fewer than the lesson's
    spare: bool = False


CASES = (
    CaseX("three tokens of ones, computed by hand", "by hand", (1, 1, 3), "ones"),
    CaseX("one token", "by hand", (1, 1, 1)),
    CaseX("weights that differ", "distance", (1, 1, 5)),
    CaseX("every channel has its own weights", "channel", (1, 3, 6)),
    CaseX("every batch row has its own tokens", "batch", (3, 2, 6)),
    CaseX("a token looks at none that come later", "causal", (1, 1, 9), "late"),
    CaseX("31 tokens, no multiple of 4", "tail", (2, 1, 31)),
    CaseX("75 tokens in tiles of 32", "tile", (1, 2, 75)),
    CaseX("11 batch rows, no multiple of 8", "group", (11, 1, 6)),
    CaseX("the order of the threads does not matter", "order", (2, 1, 40), reverse=True),
    CaseX("260 channels", "channel", (1, 260, 2), rows=1),
    CaseX("300 tokens, the lesson's own tile", "tail", (1, 1, 300), tile=OWN, rows=1),
    CaseX("600 tokens in tiles of 512", "tile", (1, 1, 600), tile=512, rows=1),
)
TILES = CASES[-1]  # traced, too: of two warps at least, which meet again after a tile
# And counted: of two warps, whether a thread has one output, four or eight.
TRACED = CaseX("64 tokens of 8 batch rows", "tail", (8, 1, 64), tile=64)
TRACED_FOUR = CaseX("256 tokens of 8 batch rows", "tail", (8, 1, 256), tile=256)
PART_OF_A_TILE = CaseX("300 tokens in a tile of 512", "tail", (8, 1, 300), tile=512)

# What a case that fails may mean, in every rung of lesson 10.
SYMPTOMS = {
    "by hand": "With ones, o[t] is t + 1. How many products does your output have?",
    "distance": "k[u] meets the weight of its distance: w[c, T - 1 - (t - u)], the last for u = t.",
    "channel": "w has a row for each channel, and so has k: which c has this block?",
    "batch": "Which batch row has this block? w is the same for all of them.",
    "causal": "Output t has the tokens up to t and no later one: where does the loop over u end?",
    "tail": "Which outputs are there, which tokens? Beyond T there is nothing to read or to write.",
    "tile": "Later tiles add up all tokens before them: a loop over u0 for each t0, and sums that "
    "start from 0 once a tile.",
    "group": "The last group may have fewer batch rows than ROWS: what do the others read and "
    "write?",
    "order": "Who reads what another thread has written, and do both barriers stand between?",
}


@dataclasses.dataclass(frozen=True)
class Most:
    """A limit on what a kernel does in the traced launch.

    Args:
        text: what is counted, "reads of shared memory a product".
        count: (Trace, products) → number.
        limit: the most.
    """

    text: str
    count: Callable
    limit: float

    def said(self, counted, products):
        return f"{self.count(counted, products):.2g} {self.text}"


def global_reads(limit):
    """Elements that threads ask global memory for, per product of a w and a k.

    To fill shared memory they ask for 0.06 in `TRACED`, for less in the other launches. A limit is
    below that plus what an operand costs that is read from global memory instead: 1 in `shared`,
    1/4 where a thread has four outputs, 1/16 where it has them of eight rows.
    """
    text = "global reads a product"
    return Most(text, lambda t, products: t.accesses("global", "load") / products, limit)


def shared_reads(limit):
    """Reads of shared memory by threads, of 4 or 16 bytes, per product.

    A product of single numbers takes 2. Four outputs by four tokens: 3 reads for 16, of eight rows
    10 for 128, and a quarter more for triangles. A limit is below twice as many.
    """
    text = "shared reads a product"
    return Most(text, lambda t, products: t.accesses("shared", "load") / products, limit)


def conflicts(limit=0):
    """Passes over shared memory beyond those that a conflict-free layout needs."""
    return Most("bank conflicts", lambda t, products: t.bank_conflicts, limit)


def no_atomics():
    return Most("atomics", lambda t, products: t.atomics, 0)


def imbalance(limit):
    """Reads of the busiest thread over those of the mean one that reads at all.

    Of the array in shared memory where they are most even: what is read once for two products is
    not what says how many products there are.
    """
    text = "× the mean work for the busiest thread"

    def count(counted, products):
        shared = {site.memory.name for site in counted.sites if site.memory.space == "shared"}
        works = [work_of_threads(counted, array=name) for name in shared]
        return min((spread(work) for work in works if work.any()), default=0.0)

    return Most(text, count, limit)


def work_of_threads(counted, space="shared", array=None):
    """How often each thread of the first traced block reads shared (or global) memory.

    Args:
        array: count reads of the one of this name only.
    """
    chosen = [
        s.number
        for s in counted.sites
        if s.memory.space == space and s.op == "load" and array in (None, s.memory.name)
    ]
    e = counted.events
    mask = np.isin(e.site, chosen) & (e.block == 0)
    return np.bincount(e.thread[mask], minlength=counted.threads_per_block)


def spread(work):
    """The most of these numbers over the mean of those that are not 0."""
    busy = work[work > 0]
    return float(busy.max() / busy.mean()) if len(busy) else 0.0


@functools.lru_cache(maxsize=64)
def problem(shape, numbers="random", device="cpu"):
    """Every array of LETTERS as a float64 tensor: inputs as a float32 kernel gets them, answers."""
    B, C, T = shape
    g = torch.Generator().manual_seed(100 * B + T)
    w, k, do = (torch.randn(*s, generator=g) for s in ((C, T), (B, C, T), (B, C, T)))
    if numbers == "ones":
        w, k, do = (torch.ones_like(x) for x in (w, k, do))
    if numbers == "late":
        k[..., -1] *= 1e6
        do[..., 0] *= 1e6
    w, k, do = (x.to(device).double() for x in (w, k, do))
    leaves = w.requires_grad_(), k.requires_grad_()
    o = timex_reference(*leaves)
    dw, dk = torch.autograd.grad(o, leaves, do)
    found = {"w": w, "k": k, "do": do, "o": o, "dw": dw, "dk": dk}
    return {name: x.detach() for name, x in found.items()}


def parameters(kernel):
    """The names of a kernel's arguments."""
    code = plain(kernel).__code__
    return code.co_varnames[: code.co_argcount]


def arrays(kernel, writes, shape, numbers="random"):
    """Arguments for a CPU run of `kernel`, by name, float32; what it `writes` is full of NaN."""
    return _arrays(parameters(kernel), writes, problem(tuple(shape), numbers))


def _arrays(names, writes, known):
    float32s = {name: known[name].float().numpy().copy() for name in names}
    return {name: fresh(x.shape) if name in writes else x for name, x in float32s.items()}


def sizes(kernel, tile, rows=None, seen=()):
    """Other values of TILE, WINDOW and ROWS, where the kernel or what it calls has these names.

    And of names of a learner's own for a part or a multiple of TILE, as GROUPS = TILE // 4.
    """
    found, function = {}, plain(kernel)
    own = function.__globals__.get("TILE")
    for name, value in named(function).items():
        if name == "ROWS" and rows:
            found[name] = rows
        elif tile and own and type(value) is int and name != "ROWS" and _of_tile(value, own):
            found[name] = value * tile // own
        if is_kernel_function(value) and plain(value) not in (function, *seen):
            found |= sizes(value, tile, rows, (function, *seen))
    return found


def _of_tile(value, tile):
    return value in [tile * 2**n // 8 for n in range(6)]  # from an eighth to four times as many


def _launch(launch, kernel, case, strided):
    """Grid and block, and the sizes that the kernel is run with: threads for a small tile only."""
    other = sizes(kernel, case.tile, case.rows)
    if case.tile is OWN or not ({*other} - {"ROWS"} or strided):
        return launch(*case.shape), other
    grid, block = launch(*case.shape, tile=case.tile)
    outputs = LARGE // launch(1, 1, LARGE, tile=LARGE)[1]  # of a thread
    return (grid, min(block, case.tile // outputs)), other


def compare_all(writes, got, known, numbers="random", untouched=False):
    """Raises `Difference` for the first of the arrays that is wrong."""
    for name in writes:
        want, mine = known[name].cpu().numpy(), np.asarray(got[name])
        if numbers == "late":  # the largest of the others sets the scale
            others = slice(1, None) if name == "dk" else slice(0, -1)
            compare(mine[..., others], want[..., others], LETTERS[name], untouched=untouched)
        with about(name):
            compare(mine, want, LETTERS[name], untouched=untouched)


def timex_judged(launch: Callable, writes, *most: Most, strided=False, traced=TRACED):
    """The rows "answer" and "traffic" of a lesson's kernel.

    Args:
        launch: (B, C, T), and tile where the kernel has one → (grid, block).
        writes: which of its arrays it writes.
        most: limits on what it asks of memory.
        strided: whether its threads go on in steps of the block, so that it fits any block.
        traced: the case whose accesses are counted.
    """
    seen = {}

    def given(kernel, exercise, case):
        known = problem(case.shape, case.numbers)
        (grid, block), small = _launch(launch, kernel, case, strided)
        values = _arrays(parameters(exercise.reference), writes, known)

        def judge():
            compare_all(writes, values, known, case.numbers, untouched=True)

        return Problem([(grid, block, values)], writes, judge, small or None)

    def answer(kernel, exercise):
        seen.clear()
        if reasons := unlaunchable(kernel, exercise.reference, launch(*CASES[0].shape)[1]):
            seen["trouble"] = "launch"
            return Row("answer", FAILED, "it cannot be launched", reasons)
        traces = []
        for case in (*CASES, traced):
            try:
                found = run(kernel, given(kernel, exercise, case), case, case in (TILES, traced))
            except (Difference, trace.KernelFault) as error:
                seen["trouble"] = error
                size = "B={} C={} T={}".format(*case.shape)
                return Row(
                    "answer", FAILED, f"{case.name} ({size})", explained(error, exercise, case)
                )
            traces += found
        seen["traces"] = traces
        return Row("answer", PASSED, f"{len(CASES) + 1} cases on the CPU, against float64")

    def traffic(kernel, exercise):
        trouble, traces = seen.get("trouble"), seen.get("traces")
        if trouble == "launch" or isinstance(trouble, trace.KernelFault):
            return Row("traffic", FAILED, "not counted: the kernel stops, as said above")
        if traces is None:  # a wrong answer: perhaps a race says why
            asked = given(kernel, exercise, traced)
            ((grid, block, values),) = asked.launches
            how = {"constants": asked.constants, "local": False}
            traces = [trace.trace(kernel, grid, block, *values.values(), **how)]
        for found in [x for counted in traces for x in (*counted.faults, *counted.races)]:
            return Row("traffic", FAILED, "", explained(found, exercise, None))
        if trouble is not None:
            return Row("traffic", PASSED, "no race")
        B, C, T = traced.shape
        products, counted = B * C * T * (T + 1) // 2, traces[-1]
        for limit in most:
            if limit.count(counted, products) > limit.limit:
                text = f"{limit.said(counted, products)}, want at most {limit.limit:g}"
                return Row("traffic", FAILED, text)
        said = [limit.said(counted, products) for limit in most if limit.limit]
        return Row("traffic", PASSED, " · ".join([*said, "no race"]))

    answer.kind, traffic.kind = "answer", "traffic"
    return answer, traffic


def signature(kernel):
    """The numba types of a lesson kernel's arguments."""
    of = {2: float32[:, ::1], 3: float32[:, :, ::1]}
    return tuple(of[len(LETTERS[name])] for name in parameters(kernel))


def fits():
    """No more static shared memory than a block may declare."""
    return Claim(
        f"at most {SHARED_BYTES:,} bytes of shared memory a block",
        lambda asm: asm.shared_bytes <= SHARED_BYTES,
        lambda asm: f"{asm.shared_bytes:,} B shared",
    )


def timex_gpu(launch: Callable, writes, shape=(9, 20, 1100)):
    """Runs the kernel on this machine's GPU, at its own sizes: its answer, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        known = problem(shape, device="cuda")
        given = {x: known[x].float().contiguous() for x in parameters(exercise.reference)}
        for name in writes:
            given[name].fill_(torch.nan)
        grid, block = launch(*shape)
        kernel[grid, block, stream()](*map(as_array, given.values()))
        try:
            compare_all(writes, {x: given[x].cpu().numpy() for x in writes}, known)
        except Difference as error:
            return Row("this GPU", FAILED, f"B, C, T = {shape}", (str(error),))
        return timed(kernel, grid, block, given.values(), shape, "B, C, T")

    gather.kind = "this GPU"
    return gather


def timex_kernel(kernel, launch, writes, *claims, most=(), strided=False, traced=TRACED):
    """All the evidence for a lesson kernel.

    Args:
        kernel: the solution; its parameters are the kernel's.
        launch: (B, C, T), and tile where the kernel has one → (grid, block).
        writes: which of its arrays it writes.
    """
    return (
        *timex_judged(launch, writes, *most, strided=strided, traced=traced),
        machine_code(float32_only(), *claims, signature=signature(kernel)),
        timex_gpu(launch, writes),
    )


def time_here(stem, kernel, launch, shape=(32, 768, 768)):
    """Milliseconds of a lesson's kernel on this machine's GPU; None where there is none."""
    if not torch.cuda.is_available():
        return None
    known = {"w": shape[1:], "k": shape, "o": shape, "do": shape, "dw": shape[1:], "dk": shape}
    given = [torch.rand(known[name], device="cuda") for name in parameters(kernel)]
    grid, block = getattr(solutions(stem), launch)(*shape)
    return milliseconds(kernel, grid, block, given)
