"""Launches of lesson kernels of WKV-6 in Triton: any size, keys and values apart, partial sums.

A lesson kernel's parameters have the names of `evidence_wkv6.LETTERS`, then sizes and constexprs.
An output `x_parts` has one axis more than x, in front: programs that each see a block of the keys
(or values) leave their shares of the sum there, [NK, B, T, H, V] (or [NV, …]), and x is the total.
"""

import dataclasses
import functools

import torch

from warplens.faults import KernelFault

from ...wkv6.reference import wkv6_reference
from ..course.check import PASSED, Row
from . import launches
from .compare import TOLERANCE, Difference, compare_each
from .functions import called, several, shown
from .launching import Call
from .triton import Case, Launch, answer, gpu, machine_code, traffic
from .verdicts import failed
from .wkv6 import LETTERS, TOKENS, problem

PARTS = "_parts"


@dataclasses.dataclass(frozen=True)
class Size:
    """A problem: B, T, H, K, V, and how it is filled; see `wkv6.StateCase`."""

    shape: tuple[int, int, int, int, int]
    states: bool = True
    decay: str = "text"
    C: int = 64  # tokens of a chunk, where a kernel has chunks
    dtype: torch.dtype = torch.float32  # of r, k, v, w and do


ODD = (1, 5, 2, 10, 7)  # neither K nor V is a multiple of a block of 4
IN_BFLOAT16 = ("bfloat16", "16 bits", Size((1, 5, 2, 10, 7), dtype=torch.bfloat16))
# More programs, tokens, keys and values than any number that a kernel could have learned by heart.
LONG = ("1,030 tokens", "long", Size((1, 1030, 1, 2, 3)))
MANY_HEADS = ("260 heads of batch rows", "many", Size((13, 1, 20, 2, 3)))
MANY_VALUES = ("520 values", "many", Size((1, 2, 1, 3, 520)))
MANY = (LONG, MANY_HEADS, MANY_VALUES, ("520 keys", "many", Size((1, 2, 1, 520, 3))))
FORWARD = (
    ("one token", "by hand", Size((1, 1, 1, 4, 4), states=False)),
    ("the state decays by exp(w)", "decay", Size((1, 3, 1, 4, 4), states=False)),
    ("more keys and values than fit in a block", "blocks", Size((1, 3, 1, 8, 8), states=False)),
    ("every head has its own state, decay and bonus", "head", Size((1, 3, 2, 8, 8), states=False)),
    ("the state before the first token is s0", "state in", Size((1, 2, 1, 4, 4))),
    ("every batch row has its own tokens and states", "batch", Size((2, 3, 2, 8, 8))),
    ("10 keys, 7 values, blocks of 4", "mask", Size(ODD)),
    ("strong decays", "decay", Size((1, 5, 1, 4, 4), decay="strong")),
    ("decay 0 forgets, decay 1 keeps", "decay", Size((1, 4, 1, 8, 8), decay="edge")),
    ("17 tokens, odd sizes", "state", Size((3, 17, 1, 5, 3))),
    *MANY,
    IN_BFLOAT16,
    ("the order of the programs does not matter", "programs", Size((2, 3, 2, 6, 9))),
)
BACKWARD = (
    ("one token, no states", "by hand", Size((1, 1, 1, 4, 4), states=False)),
    ("one token between two states", "last", Size((1, 1, 1, 4, 4))),
    ("two tokens", "state", Size((1, 2, 1, 4, 4), states=False)),
    ("more keys and values than fit in a block", "blocks", Size((1, 2, 1, 8, 8), states=False)),
    ("two tokens between two states", "last", Size((1, 2, 1, 8, 8))),
    ("every head has its own states, decay and bonus", "head", Size((1, 3, 2, 8, 8))),
    ("every batch row has its own tokens and states", "batch", Size((2, 3, 2, 8, 8))),
    ("10 keys, 7 values, blocks of 4", "mask", Size(ODD)),
    ("strong decays", "decay", Size((1, 9, 1, 4, 4), decay="strong")),
    ("decay 0 forgets, decay 1 keeps", "decay", Size((1, 6, 1, 8, 8), decay="edge")),
    ("17 tokens, odd sizes", "state", Size((2, 17, 1, 5, 3))),
    *MANY,
    IN_BFLOAT16,
    ("the order of the programs does not matter", "programs", Size((2, 3, 2, 6, 9))),
)
SMALL = {"BK": 4, "BV": 4}  # blocks in the interpreter, so that tiny sizes have several
OWN_HEADS = Size((5, 1, 12, 40, 32))  # of states, more elements than 16 bits count
COUNTED = Size((1, 8, 2, 10, 10))  # 3 blocks each way
OWN_BLOCKS = Size((2, 70, 3, 40, 32))  # in the lesson's own blocks: two of keys, the last not full
COMPILED_SIZE = Size((2, 75, 4, 100, 100))  # more than a chunk of tokens, more than a block of keys


def wkv6_launch(launch, names, writes, size=COMPILED_SIZE, **blocks):
    """A `Launch` of a lesson kernel of WKV-6.

    Args:
        launch: (B, T, H, K, V, **blocks) → (grid, {parameter: size, constexpr, num_warps, …}).
        names: of the kernel's tensors; those in `writes` are its outputs.
        size: a Size.
        blocks: block sizes in place of the lesson's own, SMALL for example; `C` is the size's, too.
    """
    B, T, H, K, V = size.shape
    C = blocks.get("C", size.C)
    exact = problem(size.shape, C, size.states, size.decay, dtype=size.dtype)
    grid, constants = launch(B, T, H, K, V, **blocks)
    inputs = {name: _input(name, exact, size) for name in names if name not in writes}
    wants = {name.removesuffix(PARTS): exact[name.removesuffix(PARTS)] for name in writes}
    return Launch(
        grid,
        inputs,
        {name: _shape(name, exact, constants) for name in writes},
        wants,
        constants,
        _totals,
        LETTERS,
        _scales(wants, exact),
        size=_text(size),
    )


def _input(name, exact, size):
    return exact[name].to(size.dtype if name in TOKENS else torch.float32).contiguous()


def wkv6_call(name, takes, returns, size):
    """A `Call` of a function that launches kernels; du is summed over the batch.

    Args:
        name: what it tests; also the key of its hint.
        takes, returns: names of arrays.
        size: a Size; results with tokens have its dtype, those of the states alone float32.
    """

    def make():
        exact = problem(size.shape, size.C, size.states, size.decay, dtype=size.dtype)
        wants = {x: (exact[x], LETTERS[x]) for x in returns}
        if "du" in wants:
            wants["du"] = exact["du"].sum(0), LETTERS["u"]
        return [_input(x, exact, size) for x in takes], wants

    low = size.dtype != torch.float32
    tolerance = BFLOAT16_TOLERANCE if low else TOLERANCE
    dtypes = dict.fromkeys(("o", "dr", "dk", "dv", "dw"), size.dtype)
    return Call(name, make, tolerance, _text(size), dtypes=dtypes)


def _text(size):
    low = " bfloat16" if size.dtype == torch.bfloat16 else ""
    return "B={} T={} H={} K={} V={}".format(*size.shape) + low


def _shape(name, exact, constants):
    """The shape of an output; of partial sums, with the number of blocks in front."""
    whole = name.removesuffix(PARTS)
    shape = tuple(exact[whole].shape)
    if whole == name:
        return shape
    # An array with a key axis is a sum over values, and the other way round.
    block, axis = ("BV", "v") if "i" in LETTERS[whole] else ("BK", "k")
    return (-(-exact[axis].shape[-1] // constants[block]), *shape)


def _totals(written):
    return {x.removesuffix(PARTS): y.sum(0) if x.endswith(PARTS) else y for x, y in written.items()}


def _scales(wants, exact):
    """dw is what is left of a difference: as exact as the numbers that are subtracted."""
    of = ("a", "rdr", "kdk")
    return {"dw": max(float(exact[x].abs().max()) for x in of)} if "dw" in wants else {}


def cases(launch, names, writes, chosen, **blocks):
    """`Case`s of FORWARD or BACKWARD, and two in the lesson's own blocks.

    What tells the order of programs runs them in reverse.
    """
    blocks = SMALL | blocks
    small = tuple(
        Case(
            name,
            symptom,
            _later(launch, names, writes, size, blocks),
            reverse=symptom == "programs",
            may_refuse=size.dtype != torch.float32,
        )
        for name, symptom, size in chosen
    )
    whole, heads = (_later(launch, names, writes, size, {}) for size in (OWN_BLOCKS, OWN_HEADS))
    return (
        *small,
        Case("70 tokens, the lesson's own blocks", "own blocks", whole),
        Case("60 heads, the lesson's own blocks", "many elements", heads),
    )


def _later(launch, names, writes, size, blocks):
    return lambda: wkv6_launch(launch, names, writes, size, **blocks)


# Operands of products are rounded to bfloat16's 8 bits: r and the state, k, v and scores. Sums of
# many such errors of 2⁻⁹ stay below three of them, at the size of the largest answer.
BFLOAT16_TOLERANCE = 6e-3


def in_bfloat16(launch):
    """The `Launch` of a forward kernel with r, k, v and w rounded to bfloat16, and its answers."""
    tokens = {x: launch.inputs[x].bfloat16() for x in "rkvw"}
    inputs = launch.inputs | tokens
    doubles = [inputs[x].double() for x in ("r", "k", "v", "w", "u", "s0")]
    wants = dict(zip(("o", "s1"), wkv6_reference(*doubles), strict=True))
    size = f"{launch.size.removesuffix(' bfloat16')} bfloat16"
    return dataclasses.replace(
        launch,
        inputs=inputs,
        wants=wants,
        tolerance=BFLOAT16_TOLERANCE,
        operands="bf16",
        size=size,
    )


def quick_decays(launch):
    """The same, with w between −2 and −1.

    Sums of log decays reach −20 in a chunk, where a bfloat16 is off by up to 0.06: so, as factors,
    would be all that tokens read of their neighbours.
    """
    w = launch.inputs["w"]
    drawn = torch.rand(w.shape, generator=torch.Generator().manual_seed(0))
    inputs = launch.inputs | {"w": -1 - drawn}
    return in_bfloat16(dataclasses.replace(launch, inputs=inputs))


def much_in_the_state(launch):
    """The same, for a state of 256 that does not decay, and tokens that add very little to it.

    In 16 bits what a chunk adds is less than half of the last digit, and is lost. All numbers are
    powers of two and r is 0 so that nothing else is rounded: float32 answers are exact.
    """
    small = {x: torch.full_like(launch.inputs[x], 2.0**-6) for x in "kv"}
    none = {x: torch.zeros_like(launch.inputs[x]) for x in "rw"}
    state = torch.full_like(launch.inputs["s0"], 256.0)
    low = in_bfloat16(dataclasses.replace(launch, inputs=launch.inputs | small | none))
    low = in_bfloat16(dataclasses.replace(low, inputs=low.inputs | {"s0": state}))
    added = float((low.wants["s1"] - 256).max())
    return dataclasses.replace(low, scales={"s1": added, "o": 256.0})


def wkv6_triton_kernel(launch, names, writes, chosen, *claims, limits=(), blocks=SMALL):
    """All the evidence for a lesson kernel of WKV-6 in Triton.

    Args:
        launch, names, writes: as for `wkv6_launch`.
        chosen: FORWARD or BACKWARD.
        claims: about the machine code of a launch of size COMPILED_SIZE.
        limits: of the traffic, counted at size COUNTED.
        blocks: of answers and traffic.
    """
    counted = _later(launch, names, writes, COUNTED, blocks)
    whole = _later(launch, names, writes, COMPILED_SIZE, {})
    return (
        answer(*cases(launch, names, writes, chosen, **blocks)),
        traffic(counted, *limits),
        machine_code(whole, *claims),
        gpu(whole),
    )


def wkv6_function(takes, returns, chosen):
    """Calls a plain torch function of lesson arrays and holds what it returns against float64.

    Args:
        takes, returns: names of arrays; of gradients, what comes through the bonus alone.
        chosen: FORWARD or BACKWARD.
    """

    def gather(function, exercise):
        for name, symptom, size in chosen:
            exact = problem(size.shape, size.C, size.states, size.decay, dtype=size.dtype)
            arguments = [exact[x].float() for x in takes]
            try:
                got = several(called(function, *arguments), len(returns))
                wants = [
                    exact[x] - exact[f"{x}_s"] if f"{x}_s" in exact else exact[x] for x in returns
                ]
                letters = [LETTERS[x] for x in returns]
                compare_each(zip(returns, got, wants, letters, strict=True))
            except (Difference, KernelFault) as trouble:
                call = shown(function, arguments)
                return failed(f"{name} ({_text(size)})", trouble, exercise, symptom, call)
        return Row("answer", PASSED, f"{len(chosen)} cases, against float64")

    gather.kind = "answer"
    return gather


one_after_another = functools.partial(launches.one_after_another, wkv6_launch)
