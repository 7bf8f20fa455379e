"""Latent attention: what is measured of it and recorded; see the package's docstring."""

from dataclasses import replace

from rwkv_lessons.operations.checks import (
    ALL_DTYPES,
    ANYWHERE,
    HALF,
    Checks,
    Combinations,
)
from rwkv_lessons.operations.entries import Headline, Operation, own
from rwkv_lessons.operations.work import Work

DEEPSEEK_SHAPE = (64, 4096, 128, 512, 64, 128)
# (H, R, P, V): heads, rank, sizes of rope and value.
MINICPM3, DEEPSEEK_V3, ITS_8TH_PART = (40, 256, 32, 64), (128, 512, 64, 128), (16, 512, 64, 128)
ITS_16TH_PART = (8, 512, 64, 128)

# Sizes are B, M, H, N, K, R, P, V. M query tokens decide which kernel and which form is taken.
MLA_SHAPES = {
    "tiny": (3, 4, 2, 70, 20, 36, 12, 20),
    "rank 256": (3, 1, 40, 1500, 64, 256, 32, 64),  # MiniCPM3
    "rank 256, 2 queries": (3, 2, 40, 1500, 64, 256, 32, 64),
    "rank 512": (3, 1, 16, 1500, 128, 512, 64, 128),  # an eighth of DeepSeek-V3
    "rank 512, 8 heads": (3, 1, 8, 1500, 128, 512, 64, 128),
    "rank 512, 128 heads": (3, 1, 128, 300, 128, 512, 64, 128),
    # Two tiles of rows a sequence: 132 programs, one for each SM of an H200. None is cut up, and
    # each takes all of 65 tiles of tokens, one after the other.
    "rank 512, many tiles": (66, 1, 128, 4100, 128, 512, 64, 128),
    "rank 512, 2 queries": (3, 2, 40, 1500, 128, 512, 64, 128),
    "rank 72": (3, 2, 5, 1500, 20, 72, 12, 40),
    "rank 256, 40 queries": (3, 40, 8, 600, 64, 256, 32, 64),  # prefill in the latent space
    "rank 512, 40 queries": (3, 40, 8, 600, 128, 512, 64, 128),
    # Expanded, as in multi-head. N that are multiples of 16, as they always are in pages of 16:
    # both take the same machine code then. Of rank 72, and of few queries, they are none.
    "rank 256, 200 queries": (3, 200, 8, 208, 64, 256, 32, 64),
    "rank 512, 200 queries": (3, 200, 8, 336, 128, 512, 64, 128),
    "rank 72, 200 queries": (3, 200, 3, 260, 20, 72, 12, 40),
}
MLA_OPTIONS = {  # what no length reaches is NaN
    "plain": {},
    "lengths": {"lengths": True},
    "left padding": {"left_padding": True},
    "both": {"lengths": True, "left_padding": True},
    "pages": {"pages": 64},
    "all": {"pages": 16, "left_padding": True},
}
RAGGED = tuple(MLA_OPTIONS)
COMPACT = {  # an FP8 cache, and lists of tokens, of which some count as none
    "FP8": {"lengths": True, "fp8": True},
    "FP8, pages": {"pages": 16, "fp8": True},
    "lists": {"lengths": True, "listed": 700},
    "FP8, lists": {"lengths": True, "fp8": True, "listed": 700},
    "FP8, lists, pages": {"pages": 64, "fp8": True, "listed": 700},
}
MLA_OPTIONS |= COMPACT
DECODE = ("rank 256", "rank 512", "rank 72")
MORE = ("rank 256, 2 queries", "rank 512, 128 heads")
IN_PAGES = ("rank 512, 128 heads", "rank 512, 2 queries")
LATENT = ("rank 256, 40 queries", "rank 512, 40 queries")
EXPANDED = ("rank 512, 200 queries", "rank 256, 200 queries", "rank 72, 200 queries")
CHECKS = Checks(
    "mla",
    problem="latent:Latent",
    shapes=MLA_SHAPES,
    options=MLA_OPTIONS,
    rows=(
        Combinations(("absorbed",), ("float64",), ("tiny",), RAGGED, ("",), ANYWHERE),
        Combinations(
            ("reference", "absorbed", "mla"), ALL_DTYPES, ("tiny",), RAGGED, ("",), ANYWHERE
        ),
        Combinations(("decode",), ALL_DTYPES, DECODE, RAGGED, ("",), gradients=False),
        Combinations(("decode", "mla"), ALL_DTYPES, MORE, ("plain", "all"), ("",), gradients=False),
        # With more than 16 rows of queries, in pages of 64: a page for each tile, on Hopper.
        Combinations(("decode",), HALF, IN_PAGES, ("pages",), ("",), gradients=False),
        # One dtype: 6 GB a case, of which three may be looked at together.
        Combinations(
            ("decode",), ("bfloat16",), ("rank 512, many tiles",),
            ("lengths", "left padding", "both", "pages", "all"), ("",), gradients=False,
        ),
        Combinations(
            ("reference", "absorbed", "mla"), ("float32",), ("tiny",), tuple(COMPACT), ("",),
            ANYWHERE, gradients=False,
        ),
        Combinations(("decode",), HALF, DECODE, tuple(COMPACT), ("",), gradients=False),
        Combinations(
            ("decode", "mla"), ("bfloat16",), ("rank 512, 8 heads", *MORE, "rank 512, 2 queries"),
            ("FP8", "FP8, lists, pages"), ("",), gradients=False,
        ),
        Combinations(
            ("prefill",), ALL_DTYPES, LATENT, ("plain", "both", "all"), ("",), gradients=False
        ),
        # What plain leaves out does not depend on the rank. The first takes 36 s in float32.
        Combinations(("prefill",), HALF, EXPANDED[:1], ("both", "all"), ("",)),
        Combinations(("prefill",), ALL_DTYPES, EXPANDED[1:], ("plain", "both", "all"), ("",)),
        Combinations(("mla",), HALF, EXPANDED[:1], ("all",), ("",)),
        Combinations(("mla",), ALL_DTYPES, EXPANDED[1:], ("all",), ("",)),
    ),
    others=Combinations((), ALL_DTYPES, ("tiny",), RAGGED, ("",)),
    repeatable=("decode",),
    few=("rank 256", "rank 256, 200 queries"),
    numbers=lambda B, M, H, N, K, *_: B * H * (M * K + M * N),
    seconds=(
        ("prefill / float32 / *", 8),
        ("prefill / *", 4),
        ("decode / *", 6),
        ("* / tiny / *", 6),
        ("*", 3),
    ),
)  # fmt: skip


def least_mla_decode(B, N, H, R, P, V, itemsize):
    """One query token a sequence, absorbed, and w_v.

    bytes: the cache, B·N·(R + P); queries, H·(R + P), and o, H·V, of B sequences; w_v, H·V·R; the
    log-sum-exps, B·H float32.
    flops: R + P multiply-adds for a score and R for its part of the sum, B·H·N of each; B·H·R·V.
    """
    elements = B * N * (R + P) + B * H * (R + P + V) + H * V * R
    return Work(elements * itemsize + 4 * B * H, 2 * B * H * (N * (2 * R + P) + R * V))


def least_mla_compact(B, N, H, R, P, V, tokens, fp8):
    """As `least_mla_decode` in bfloat16, of some tokens of a sequence, of an FP8 cache or none."""
    whole = least_mla_decode(B, tokens, H, R, P, V, 2)
    saved = B * tokens * (R - R // 32) if fp8 else 0  # a scale of 4 bytes for 128 values
    return Work(whole.bytes - saved + 4 * B * tokens * (tokens < N), whole.flops)


def least_mla_ladder(B, N, H, K, R, P, V, itemsize):
    """The same with w_k, which absorbs a query of K numbers, and without log-sum-exps."""
    elements = B * N * (R + P) + B * H * (K + P + V) + H * (K + V) * R
    return Work(elements * itemsize, 2 * B * H * (N * (2 * R + P) + R * (K + V)))


def least_mla_prefill(B, T, H, K, R, P, V, itemsize):
    """Every token a query, in the expanded form.

    flops: keys and values of B·T tokens, and the pairs of a query and a token that it sees.
    """
    elements = B * T * (H * (K + P + V) + R + P) + H * (K + V) * R
    pairs = B * H * T * (T + 1) // 2
    return Work(elements * itemsize, 2 * pairs * (K + P + V) + 2 * B * T * R * H * (K + V))


MLA_DECODE = Operation(
    "mla-decode",
    "time a query token against a latent cache",
    "mla",
    shapes=(
        *((*x, *MINICPM3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 1024))),
        (64, 16384, *MINICPM3),
        *((*x, *DEEPSEEK_V3) for x in ((1, 16384), (16, 4096), (64, 4096), (128, 4096))),
        (64, 4096, *ITS_8TH_PART),
        (64, 4096, *ITS_16TH_PART),
        (64, 65536, *ITS_8TH_PART),
    ),
    quick=(2, 70, 3, 32, 16, 16),
    work=least_mla_decode,
    letters="B, N, H, R, P, V",
    command="mla_decode:command",
    dtypes=("bfloat16",),
    verified_as=dict.fromkeys(("paged", "padded", "fp8", "lists", "fp8 lists"), "decode"),
    records=(own("mla-decode", "mla-decode", table="beside torch"),),
    headline=Headline(
        "MLA decode, DeepSeek-V3", "mla-decode", "decode", "torch absorbed", "torch", DEEPSEEK_SHAPE
    ),
    public=("mla", "__getattr__"),
    checks=CHECKS,
    calls="rwkv_lessons.mla.calls:calls",
)

MLA_LADDER = Operation(
    "mla-ladder",
    "time a step of latent attention, rung by rung",
    "mla",
    shapes=((64, 4096, 40, 64, 256, 32, 64), (1, 16384, 40, 64, 256, 32, 64)),
    quick=(2, 20, 3, 16, 32, 16, 16),
    work=least_mla_ladder,
    letters="B, N, H, K, R, P, V",
    command="mla_ladder:command",
    dtypes=("bfloat16",),
    records=(
        replace(own("mla-ladder", "mla-ladder"), holds=(("27_split_decode.combine", "bfloat16"),)),
    ),
)

MLA_PREFILL = Operation(
    "mla-prefill",
    "time latent attention of a whole prompt",
    "mla",
    shapes=(  # MiniCPM3, the first with the seed's 32 heads, and DeepSeek-V3
        (1, 2048, 32, 64, 256, 32, 64),
        (1, 4096, 40, 64, 256, 32, 64),
        (16, 1024, 40, 64, 256, 32, 64),
        (1, 2048, 128, 128, 512, 64, 128),
    ),
    quick=(1, 20, 2, 16, 32, 16, 16),
    work=least_mla_prefill,
    letters="B, T, H, K, R, P, V",
    command="mla_prefill:command",
    dtypes=("bfloat16",),
    records=(own("mla-prefill", "mla-prefill", table="milliseconds by shape"),),
    public=("mla_prefill",),
    verified_as={"kernel": "prefill", "prefill absorbed": "prefill"},
)

MLA_GENERATE = Operation(
    "mla-generate",
    "time a whole MiniCPM3-4B that writes text",
    "mla",
    shapes=((1, 512, 20), (16, 512, 20), (1, 4096, 20), (16, 4096, 20)),
    quick=(2, 6, 5),
    work=None,
    letters="sequences, tokens in, tokens out",
    command="mla_generate:command",
    dtypes=(),  # none to choose: the model's own
    records=(
        own("mla-generate", "mla-generate", 120, "tokens per second by shape", "transformers"),
    ),
    verified_as={"latent": "mla", "latent graph": "mla"},
)
