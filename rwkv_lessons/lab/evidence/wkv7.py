"""Problems of WKV-7 for lesson kernels in Triton: inputs, float64 answers, launches of any size.

A lesson kernel's parameters have the names of LETTERS, then sizes and constexprs. An output
`x_parts` has one axis more in front, `[NV, …]`: programs that each see a block of the values leave
their shares of a sum over values there, and x is the total.
"""

import dataclasses
import functools

import torch

from ...wkv7.options import CLAMP
from ...wkv7.reference import wkv7_reference
from . import launches
from .cuda import TOLERANCE
from .launches import Case, Launch
from .triton import answer, gpu, machine_code, traffic
from .wkv6_triton import BFLOAT16_TOLERANCE, MANY_HEADS, MANY_VALUES, PARTS, Size

# Array → what its axes are called: i keys, j values, c spans of C tokens.
LETTERS = dict.fromkeys([*"rwkab", *(f"d{x}" for x in "rwkab")], "bthi")
LETTERS |= dict.fromkeys(("v", "o", "z", "do", "dv"), "bthj")
LETTERS |= dict.fromkeys(("s0", "s1", "ds0", "ds1"), "bhij") | {"kept": "bchij"}
INPUTS = ("r", "w", "k", "v", "a", "b", "s0")

LONG = ("300 tokens", "long", Size((1, 300, 1, 2, 3), decay="slow"))
MANY = (LONG, MANY_HEADS, MANY_VALUES)
# More keys than values: what adds up along the wrong axis of the state does not even fit.
FORWARD = (
    ("one token, no state", "by hand", Size((1, 1, 1, 8, 4), states=False)),
    ("one token and a state", "one token", Size((1, 1, 1, 8, 4))),
    ("two tokens", "state", Size((1, 2, 1, 4, 4), states=False)),
    ("more values than fit in a block", "blocks", Size((1, 3, 1, 4, 8))),
    ("every head has its own state", "head", Size((1, 3, 2, 8, 8), states=False)),
    ("every batch row has its own tokens and states", "batch", Size((2, 3, 2, 8, 8))),
    ("five tokens", "span", Size((1, 5, 1, 4, 4))),
    ("10 keys, 7 values", "mask", Size((1, 5, 2, 10, 7))),
    ("strong decays", "decay", Size((1, 5, 1, 4, 4), decay="strong")),
    ("decay 0 forgets, decay 1 keeps", "decay", Size((1, 4, 1, 8, 8), decay="edge")),
    ("17 tokens, odd sizes", "state", Size((3, 17, 1, 5, 3))),
    *MANY,
    ("the order of the programs does not matter", "programs", Size((2, 3, 2, 6, 9))),
)
# Spans of 4 tokens, or of 3 where K is 5.
BACKWARD = (
    ("one token, no states", "by hand", Size((1, 1, 1, 8, 4), states=False)),
    ("one token between two states", "one token", Size((1, 1, 1, 8, 4))),
    ("two tokens", "state", Size((1, 2, 1, 4, 4), states=False)),
    ("two tokens between two states", "state", Size((1, 2, 1, 4, 4))),
    ("four tokens, a whole span", "state", Size((1, 4, 1, 4, 4))),
    ("two spans, the last one has a token", "span", Size((1, 5, 1, 4, 4))),
    ("more values than fit in a block", "blocks", Size((1, 3, 1, 4, 8))),
    ("every head has its own states", "head", Size((1, 3, 2, 8, 8))),
    ("every batch row has its own tokens and states", "batch", Size((2, 3, 2, 8, 8))),
    ("10 keys, 7 values", "mask", Size((1, 5, 2, 10, 7))),
    ("the strongest decay of RWKV-7, at every token", "decay", Size((1, 9, 1, 4, 4), decay="most")),
    ("40 tokens of that decay", "span", Size((1, 40, 1, 4, 4), decay="most")),
    ("17 tokens, odd sizes", "state", Size((2, 17, 1, 5, 3))),
    *MANY,
    ("the order of the programs does not matter", "programs", Size((2, 3, 2, 6, 9))),
)
COUNTED = Size((1, 8, 2, 10, 10))
OWN_BLOCKS = Size((1, 37, 2, 40, 32))
COMPILED_SIZE = Size((2, 75, 4, 100, 100))


def log_decays(kind, draw):
    """w, float32's numbers in float64, from numbers drawn with a mean of 0 and a deviation of 1.

    Args:
        kind: "text", as a model has them, between -0.6065 and 0; "most", -0.6065; "slow", at least
            -0.001; "strong", decays from 1e-6 to 1e-2; "edge", decays of 0 or 1.
    """
    if kind == "edge":
        return torch.where(draw < 0, -torch.inf, 0.0).double()
    if kind == "most":
        return torch.full_like(draw, -CLAMP).float().double()
    if kind == "strong":
        w = -4.6 - 9.2 * draw.sigmoid()
    else:
        w = -(1e-3 if kind == "slow" else CLAMP) * (2 * draw).sigmoid()
    return w.float().double()


def inputs(shape, states=True, decay="text", alike=False):
    """r, w, k, v, a, b, s0, do and ds1 in float64, of float32's numbers.

    a and b point in different directions, so that one in place of the other is told. A model's a
    are unit vectors and its b such times a rate from 0 to 1; here a are shorter, too, by half at
    most, so that a kernel that norms them is told.

    Args:
        shape: B, T, H, K, V.
        states: s0 and ds1 are not zero.
        decay: as for `log_decays`.
        alike: all tokens of a head have nearly the same κ, a = -κ = -b: each replaces all that the
            one before it wrote.
    """
    B, T, H, K, V = shape
    generator = torch.Generator().manual_seed(T)

    def random(*shape):
        return torch.randn(*shape, generator=generator).double()

    x = {"r": random(B, T, H, K), "k": random(B, T, H, K), "v": random(B, T, H, V)}
    direction_a, direction_b, rate = (
        random(B, T, H, K),
        random(B, T, H, K),
        random(B, T, H, 1).sigmoid(),
    )
    if alike:
        direction_a, rate = direction_a[:, :1] + 0.01 * direction_a, torch.ones_like(rate)
        direction_b = direction_a
    direction_a, direction_b = (
        y / y.norm(dim=-1, keepdim=True) for y in (direction_a, direction_a + direction_b)
    )
    x |= {"w": log_decays(decay, random(B, T, H, K)), "a": -direction_a, "b": direction_b * rate}
    x |= {"s0": random(B, H, K, V) * states, "ds1": random(B, H, K, V) * states}
    x |= {"do": random(B, T, H, V)}
    if not alike:
        x["a"] *= 0.5 + 0.5 * random(B, T, H, 1).sigmoid()
    return {name: y.float().double() for name, y in x.items()}


@functools.lru_cache(maxsize=64)
def problem(shape, C=64, states=True, decay="text", alike=False):
    """Every array of LETTERS in float64: `inputs`, and answers by autograd.

    z[t] is what token t reads of the state before it; `kept` has the state after every C tokens,
    and the last one.
    """
    x = inputs(shape, states, decay, alike)
    return x | _answers(x, C)


def _answers(inputs, C):
    *tokens, s = (inputs[name].clone().requires_grad_() for name in INPUTS)
    leaves = (*tokens, s)
    o, z, states, T = [], [], [], inputs["r"].shape[1]
    for t in range(T):
        token = [x[:, t : t + 1] for x in tokens]
        z.append(torch.einsum("bhi,bhij->bhj", token[4][:, 0], s))
        o_t, s = wkv7_reference(*token, s)
        o.append(o_t)
        if (t + 1) % C == 0 or t == T - 1:
            states.append(s)
    o = torch.cat(o, 1)
    ((o * inputs["do"]).sum() + (s * inputs["ds1"]).sum()).backward()
    answers = {"o": o, "s1": s, "z": torch.stack(z, 1), "kept": torch.stack(states, 1)}
    answers |= {f"d{name}": leaf.grad for name, leaf in zip(INPUTS, leaves, strict=True)}
    return {name: x.detach() for name, x in answers.items()}


def wkv7_launch(launch, names, writes, size=COMPILED_SIZE, alike=False, **blocks):
    """A `Launch` of a lesson kernel of WKV-7.

    Args:
        launch: (B, T, H, K, V, **blocks) → (grid, {parameter: size, constexpr, num_warps, …}).
        names: of the kernel's tensors; those in `writes` are its outputs.
        size: a `Size`.
        alike: as for `inputs`.
        blocks: block sizes in place of the lesson's own.
    """
    grid, constants = launch(*size.shape, **blocks)
    C = constants.get("C", size.C)
    exact = problem(size.shape, C, size.states, size.decay, alike)
    wants = {name.removesuffix(PARTS): exact[name.removesuffix(PARTS)] for name in writes}
    outputs = {name: tuple(exact[name.removesuffix(PARTS)].shape) for name in writes}
    count = -(-size.shape[4] // constants.get("BV", size.shape[4]))
    outputs |= {x: (count, *shape) for x, shape in outputs.items() if x.endswith(PARTS)}
    return Launch(
        grid,
        {name: exact[name].float().contiguous() for name in names if name not in writes},
        outputs,
        wants,
        constants,
        lambda written: {
            x.removesuffix(PARTS): y.sum(0) if x.endswith(PARTS) else y for x, y in written.items()
        },
        LETTERS,
        tolerance=TOLERANCE if "kept" not in names or "kept" in writes else _after(exact["w"], C),
        size="B={} T={} H={} K={} V={}".format(*size.shape),
    )


def in_bfloat16(launch):
    """The `Launch` of a forward kernel with its tokens rounded to bfloat16, and its answers.

    As in RWKV-6, sums of errors of 2⁻⁹ stay below three of them, at the size of the largest answer:
    factors, scores, the inverse and z are each rounded once, and no entry of the inverse is large.
    """
    inputs = launch.inputs | {x: launch.inputs[x].bfloat16() for x in INPUTS if x != "s0"}
    exact = wkv7_reference(*(inputs[x].double() for x in INPUTS))
    return dataclasses.replace(
        launch,
        inputs=inputs,
        wants=dict(zip(("o", "s1"), exact, strict=True)),
        tolerance=BFLOAT16_TOLERANCE,
        operands="bf16",
        size=f"{launch.size} bfloat16",
    )


def much_in_the_state(launch):
    """The same, for a state of 256 that does not decay, and tokens that add very little to it.

    In 16 bits what a chunk adds is less than half of the last digit, and is lost. All numbers are
    powers of two and nothing is read, so float32 answers are exact.
    """
    inputs = {x: torch.zeros_like(launch.inputs[x]) for x in "rwab"}
    inputs |= {x: torch.full_like(launch.inputs[x], 2.0**-6) for x in "kv"}
    inputs |= {"s0": torch.full_like(launch.inputs["s0"], 256.0)}
    low = in_bfloat16(dataclasses.replace(launch, inputs=inputs))
    added = float((low.wants["s1"] - 256).max())
    return dataclasses.replace(low, scales={"s1": added, "o": 256.0})


def _after(w, C):
    """The error of a state that was stepped back to the start of its span, four roundings a token.

    Each step divides by the decay what rounding has left.
    """
    spans = [float(-x.sum(1).min()) for x in w.split(C, 1)]
    return max(TOLERANCE, 4 * 2.0**-24 * float(torch.tensor(max(spans)).exp()))


def wkv7_triton_kernel(launch, names, writes, chosen, *claims, limits=(), blocks=None):
    """All the evidence for a lesson kernel of WKV-7.

    Args:
        launch, names, writes: as for `wkv7_launch`.
        chosen: FORWARD or BACKWARD.
        claims: about the machine code of a launch of size COMPILED_SIZE.
        limits: of the traffic, counted at size COUNTED.
        blocks: of answers and traffic, a function of K.
    """

    def later(size, small=True):
        own = blocks(size.shape[3]) if small else {}
        return lambda: wkv7_launch(launch, names, writes, size, **own)

    cases = [Case(n, symptom, later(size), symptom == "programs") for n, symptom, size in chosen]
    cases.append(Case("37 tokens, the lesson's own blocks", "own blocks", later(OWN_BLOCKS, False)))
    return (
        answer(*cases),
        traffic(later(COUNTED), *limits),
        machine_code(later(COMPILED_SIZE, False), *claims),
        gpu(later(COMPILED_SIZE, False)),
    )


one_after_another = functools.partial(launches.one_after_another, wkv7_launch)
