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

from warplens.compiled.functions import is_kernel_function, named, plain
from warplens.cuda import trace

from ....runtime.launch_numba import as_array, stream
from ....timex.reference import timex_reference
from ...course.check import ABSENT, FAILED, PASSED, Row
from ...course.exercises import solutions
from ...evidence.claims import Claim, float32_only, machine_code
from ...evidence.compare import Difference, about, compare, fresh
from ...evidence.cuda import milliseconds, timed
from ...evidence.kernels import STOPPED, Problem, cause_in, caused, mishap, run, unlaunchable, why
from ...evidence.traffic import SHARED_BYTES

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
    CaseX("520 channels", "channel", (1, 520, 2), rows=1),
    CaseX("150 batch rows", "batch", (150, 1, 3)),
    CaseX("301 tokens, the lesson's own tile", "tail", (1, 1, 301), tile=OWN, rows=1),
    CaseX("1,031 tokens in tiles of 128", "tile", (1, 1, 1031), tile=128, rows=1),
)
# Counted: of two warps, whether a thread has one output, four or eight.
TRACED = CaseX("64 tokens of 8 batch rows", "tail", (8, 1, 64), tile=64)
TRACED_FOUR = CaseX("256 tokens of 8 batch rows", "tail", (8, 1, 256), tile=256)
PART_OF_A_TILE = CaseX("300 tokens in a tile of 512", "tail", (8, 1, 300), tile=512)


def two_warps(outputs):
    """Traced, too: two tiles of two warps, which meet again after the first."""
    tokens, tile = 75 * outputs, 64 * outputs
    return CaseX(f"{tokens} tokens in tiles of {tile}", "tile", (1, 1, tokens), tile=tile, rows=1)


# What a failing case may mean, in the kernels of lesson 10 that use shared memory.
SYMPTOMS = {
    "by hand": "With ones, o[t] is t + 1. How many products does your output add up?",
    "distance": "Token u has the weight w[c, T - 1 - (t - u)]; token t itself has the last one.",
    "channel": "Both w and k have a row for each channel. Which channel does this block compute?",
    "batch": "Which batch row does this block compute? All of them use the same w.",
    "causal": "Output t reads no token after t: where does the loop over u end?",
    "tail": "Which outputs and which tokens exist? Read and write nothing at T or beyond.",
    "tile": "A later tile also adds the tokens of all earlier tiles: loop over u0 for each t0, and "
    "set the sums to 0 once a tile.",
    "group": "A block computes one row, so nothing here depends on how many there are.",
    "bounds": "A tile may reach past the row: load only tokens below T, and weights of distances "
    "from 0 to T - 1.",
    "order": "A thread reads what another has written: are both barriers in place?",
}


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
    values = {"w": w, "k": k, "do": do, "o": o, "dw": dw, "dk": dk}
    return {name: x.detach() for name, x in values.items()}


def parameters(kernel):
    """The names of a kernel's arguments."""
    code = plain(kernel).__code__
    return code.co_varnames[: code.co_argcount]


def arrays(kernel, writes, shape, numbers="random"):
    """Arguments for a CPU run of `kernel`, by name, float32; what it `writes` is full of NaN."""
    return _arrays(parameters(kernel), writes, problem(tuple(shape), numbers))


def _arrays(names, writes, values):
    float32s = {name: values[name].float().numpy().copy() for name in names}
    return {name: fresh(x.shape) if name in writes else x for name, x in float32s.items()}


def sizes(kernel, tile, rows=None, visited=()):
    """Other values of TILE, WINDOW and ROWS, where the kernel or what it calls has these names.

    And of names of a learner's own for a part or a multiple of TILE, as GROUPS = TILE // 4.
    """
    by_name, function = {}, plain(kernel)
    own = function.__globals__.get("TILE")
    for name, value in named(function).items():
        if name == "ROWS" and rows:
            by_name[name] = rows
        elif tile and own and type(value) is int and name != "ROWS" and _of_tile(value, own):
            by_name[name] = value * tile // own
        if is_kernel_function(value) and plain(value) not in (function, *visited):
            by_name |= sizes(value, tile, rows, (function, *visited))
    return by_name


def _of_tile(value, tile):
    return value in [tile * 2**n // 8 for n in range(6)]  # from an eighth to four times as many


def _launch(launch, kernel, case, strided):
    """Grid and block, and the sizes that the kernel is run with: threads for a small tile only."""
    own_sizes = sizes(kernel, case.tile, case.rows)
    if case.tile is OWN or not ({*own_sizes} - {"ROWS"} or strided):
        return launch(*case.shape), own_sizes
    grid, block = launch(*case.shape, tile=case.tile)
    return (grid, min(block, case.tile // outputs_of(launch))), own_sizes


def outputs_of(launch):
    """How many outputs a thread has in each tile."""
    return LARGE // launch(1, 1, LARGE, tile=LARGE)[1]


def compare_all(writes, got, wants, numbers="random", untouched=False):
    """Raises `Difference` for the first of the arrays that is wrong."""
    for name in writes:
        want, mine = wants[name].cpu().numpy(), np.asarray(got[name])
        if numbers == "late":  # the largest of the others sets the scale
            compared = slice(1, None) if name == "dk" else slice(0, -1)
            compare(mine[..., compared], want[..., compared], LETTERS[name], untouched=untouched)
        with about(name):
            compare(mine, want, LETTERS[name], untouched=untouched)


def timex_judged(launch: Callable, writes, *most, strided=False, traced=TRACED):
    """The evidence of a lesson's kernel: the rows "answer" and "traffic", of the same runs.

    Args:
        launch: (B, C, T), and tile where the kernel has one → (grid, block).
        writes: which of its arrays it writes.
        most: `Most`s, limits on what it asks of memory.
        strided: whether its threads go on in steps of the block, so that it fits any block.
        traced: the case whose accesses are counted.
    """
    cases = (*CASES, two_warps(outputs_of(launch)))

    def given(kernel, exercise, case):
        wants = problem(case.shape, case.numbers)
        (grid, block), small = _launch(launch, kernel, case, strided)
        values = _arrays(parameters(exercise.reference), writes, wants)

        def judge():
            compare_all(writes, values, wants, case.numbers, untouched=True)

        return Problem([(grid, block, values)], writes, judge, small or None)

    def gather(kernel, exercise):
        if reasons := unlaunchable(kernel, launch(*CASES[0].shape)[1]):
            return Row("answer", FAILED, "it cannot be launched", reasons), STOPPED
        traces = []
        for case in (*cases, traced):
            try:
                watched = case in (cases[-1], traced)
                traces += run(kernel, given(kernel, exercise, case), case, watched)
            except (Difference, trace.KernelFault) as error:
                return wrong(kernel, exercise, case, error)
        text = f"{len(cases) + 1} cases on the CPU, against float64"
        return Row("answer", PASSED, text), traffic(exercise, traces)

    def wrong(kernel, exercise, case, error):
        name = "{} (B={} C={} T={})".format(case.name, *case.shape)
        answer = Row("answer", FAILED, name, why(error, exercise, case))
        if isinstance(error, trace.KernelFault):
            return answer, STOPPED
        for tried in (case, traced):  # perhaps a race says why
            example = given(kernel, exercise, tried)
            if cause := cause_in(kernel, *example.launches[0], example.constants):
                return caused(name, error, cause, exercise, case)
        return answer, Row("traffic", PASSED, "no race")

    def traffic(exercise, traces):
        if row := mishap(traces, exercise):
            return row
        B, C, T = traced.shape
        products, warnings = B * C * T * (T + 1) // 2, []
        for limit in most:
            count, text = limit.of(traces, products)
            if count > limit.refused:
                return Row("traffic", FAILED, f"{text}, want at most {limit.limit:g}")
            if count > limit.limit:
                warnings.append(f"{text}: {limit.limit:g} or fewer would be better")
        counts = [limit.of(traces, products)[1] for limit in most if limit.limit]
        return Row("traffic", PASSED, " · ".join([*counts, "no race"]), tuple(warnings))

    gather.kind = "answer"
    return (gather,)


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
        absence=True,
    )


def timex_gpu(launch: Callable, writes, shape=(9, 20, 1100)):
    """Runs the kernel on this machine's GPU, at its own sizes: its answer, and its time."""

    def gather(kernel, exercise):
        if not torch.cuda.is_available():
            return Row("this GPU", ABSENT)
        wants = problem(shape, device="cuda")
        tensors = {x: wants[x].float().contiguous() for x in parameters(exercise.reference)}
        for name in writes:
            tensors[name].fill_(torch.nan)
        grid, block = launch(*shape)
        kernel[grid, block, stream()](*map(as_array, tensors.values()))
        try:
            compare_all(writes, {x: tensors[x].cpu().numpy() for x in writes}, wants)
        except Difference as error:
            return Row("this GPU", FAILED, f"B, C, T = {shape}", (str(error),))
        return timed(kernel, grid, block, tensors.values(), shape, "B, C, T")

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
    shapes = {"w": shape[1:], "k": shape, "o": shape, "do": shape, "dw": shape[1:], "dk": shape}
    arrays = [torch.rand(shapes[name], device="cuda") for name in parameters(kernel)]
    grid, block = getattr(solutions(stem), launch)(*shape)
    return milliseconds(kernel, grid, block, arrays)
