"""Chunks of RWKV-6 as launches to be judged: of lesson kernels on Hopper, and of the library's."""

from functools import cache

import torch

from ....wkv6.chunked.sizes import CHECKPOINT
from ....wkv6.reference import wkv6_reference
from ...course import exercises
from ...evidence.compare import Difference
from ...evidence.wkv6_triton import BFLOAT16_TOLERANCE
from .evidence import GluonLaunch, watched

TOKENS = ("r", "k", "v", "w")
# Of what is rounded to bfloat16 o has 1.66e-3, and as much of the scores and S: 2.35e-3 together.
# With one more factor not split it is 2.6e-3 to 2.9e-3, so three chunks tell; one alone differs
# by some percent from the next. State: high and low parts leave 16 bits of k.
LIMITS = {"one chunk": 2.8e-3, "three chunks": 2.48e-3, "s1": 5e-5}


def inputs(B, T, H, decay, states):
    """r, k, v, w in bfloat16, u and s0 in float32.

    decay: of w: "none", 0; "some", channels from weak to strong; "most", as strong as a chunk that
    is split at its end can take.
    """
    generator = torch.Generator().manual_seed(T)
    r, k, v, w = torch.randn(4, B, T, H, 64, generator=generator).unbind()
    rates = torch.logspace(-3, -0.2, 64)  # some channels keep a state for long, some do not
    w = {"none": 0 * w, "some": -rates * (0.3 * w).exp(), "most": 0 * w - 1.06}[decay]
    u, s0 = torch.randn(H, 64, generator=generator), torch.randn(B, H, 64, 64, generator=generator)
    return [x.bfloat16() for x in (r, k, v, w)] + [u, s0 * states]


@cache
def chunks(launch, B, T, H, decay="some", states=True):
    """A `GluonLaunch` of a kernel (r, k, v, w, u, s0, o, s1, …), tokens in bfloat16.

    Args:
        launch: (B, T, H) → (grid, {parameter: size}).
        decay, states: as for `inputs`.
    """
    tensors = inputs(B, T, H, decay, states)
    o, s1 = wkv6_reference(*(x.double() for x in tensors))
    grid, sizes = launch(B, T, H)
    return GluonLaunch(
        grid,
        dict(zip((*TOKENS, "u", "s0"), tensors, strict=True)),
        {"o": o.shape, "s1": s1.shape},
        {"o": o, "s1": s1},
        sizes,
        letters={"o": "bthj", "s1": "bhij"},
        dtypes={"o": torch.bfloat16},
        tolerance=BFLOAT16_TOLERANCE,
        size=f"B={B} T={T} H={H} N=64",
        described=dict.fromkeys((*TOKENS, "o"), H * 64),
    )


class TwoPieces(GluonLaunch):
    """A launch whose o is judged as a whole, too."""

    def judge(self, tensors, watched=None, names=None):
        super().judge(tensors, watched, names)
        off, want = norm_of_error(tensors["o"], self.wants["o"]), self.wants["o"]
        limit = LIMITS["three chunks" if want[..., 0].numel() >= 192 else "one chunk"]
        if not off <= limit:
            message = f"o: off by {1e3 * off:.2f} thousandths over all its elements"
            raise Difference(f"{message}, want at most {1e3 * limit:.2f}")


class LibraryLaunch(TwoPieces):
    """Of the library's kernel, which gets o twice: as tiles, and as rows for a last chunk."""

    def kernel_arguments(self, tensors):
        return super().kernel_arguments(tensors) | {"o_rows": tensors["o"]}


def norm_of_error(got, want):
    """Of all elements, over that of what is wanted."""
    return float((got.double().cpu() - want).norm() / want.norm())


@cache
def split_chunks(launch, *size):
    """`chunks`, held to the errors of r and k split into high and low parts."""
    plain = chunks(launch, *size)
    scales = {"o": BFLOAT16_TOLERANCE, "s1": LIMITS["s1"]}
    scales = {name: x * float(plain.wants[name].abs().max()) for name, x in scales.items()}
    return TwoPieces(**vars(plain) | {"scales": scales, "tolerance": 1.0})


def library(B, T, H, *more):
    """A launch of the library's `wkv6_hopper_kernel`: no packing, no segments, nothing kept."""
    absent = dict.fromkeys(("cu_seqlens", "segment_states", "segment_decays", "checkpoints"))
    sizes = {"has_s0": 1, "T": T, "H": H, "skip": 0, "segments": 1, "span": T, "pieces": 1}
    sizes |= {"scale": 1.0, "tokens": B * T, "K": 64, "V": 64}
    sizes |= {"CHECKPOINT": CHECKPOINT, "RAW": False, "SCALED": False, "HALF": False}
    plain = split_chunks(_one_program_a_head, B, T, H, *more)
    return LibraryLaunch(**vars(plain) | {"constants": absent | sizes})


def _one_program_a_head(B, T, H):
    return (B * H, 1, 1), {}


@cache
def alone(B, T, H):
    """A `GluonLaunch` of a kernel (r, k, v, o): chunks of 64 without decay and without a state."""
    tensors = dict(zip("rkv", inputs(B, T, H, "none", 0)[:3], strict=True))
    r, k, v = (x.double().unflatten(1, (-1, 64)).transpose(2, 3) for x in tensors.values())
    o = ((r @ k.mT).tril() @ v).transpose(2, 3).flatten(1, 2)
    return GluonLaunch(
        (B * T // 64, H),
        tensors,
        {"o": o.shape},
        {"o": o},
        letters={"o": "bthj"},
        dtype=torch.bfloat16,
        tolerance=BFLOAT16_TOLERANCE,
        size=f"B={B} T={T} H={H} N=64",
        described=dict.fromkeys((*tensors, "o"), H * 64),
    )


def variants(id, **edits):
    """{name: an exercise's solution after these edits, and after those before it}."""
    text, by_name = exercises.solved(id), {}
    for name, changes in edits.items():
        for change in changes:
            text = change.apply(text)
        by_name[name] = exercises.defined(id, text, f"<{id}, {name}>")
    return by_name


def errors(kernel, launch):
    """How far o and s1 of a kernel are off, over all their elements, as text."""
    tensors = launch.arguments()
    trace = watched(kernel, launch, tensors)
    for fault in trace.faults:
        raise fault
    o, s1 = (norm_of_error(tensors[x], launch.wants[x]) for x in ("o", "s1"))
    return f"{1e3 * o:.2f} thousandths, s1 {1e3 * s1:.3f}"
