"""The table of what is looked at. A row is a product: methods × dtypes × shapes × options × decays.

To add an operation: a module like recurrence.py, whose `problem(case, device)` gives results and
float64; an `Operation` here with its shapes, options and rows. tests/verify/test_verify.py asks
that each of its methods and dtypes stands in a row.
"""

from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product

DTYPES = ("float32", "float16", "bfloat16")
HALF = ("float16", "bfloat16")
TILED = ("float32", "bfloat16")  # where a shape is there for its tiles: halves take the same
BOTH = ("tame", "strong")  # strong: w down to -20, some keys and some tokens -inf, some 0
ANYWHERE, GPU, HOPPER = "anywhere", "a GPU", "a Hopper GPU"


@dataclass(frozen=True)
class Case:
    """One call of one method, forward and, where it has any, with all gradients."""

    operation: str
    method: str  # a key of the operation's METHODS, or a function that picks one of them
    dtype: str
    shape: str  # a key of the operation's `shapes`
    option: str  # a key of its `options`
    decay: str  # "tame" or "strong"; "" where there is none
    needs: str = GPU
    gradients: bool = True

    @property
    def name(self):
        """What `--only` looks at."""
        parts = (self.operation, self.method, self.dtype, self.shape, self.option, self.decay)
        return " / ".join(part for part in parts if part)

    @property
    def sizes(self):
        return OPERATIONS[self.operation].shapes[self.shape]

    @property
    def options(self):
        return OPERATIONS[self.operation].options[self.option]


@dataclass(frozen=True)
class Product:
    """Every combination of these: a block of the table."""

    methods: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[str, ...]
    options: tuple[str, ...]
    decays: tuple[str, ...] = BOTH
    needs: str = GPU
    gradients: bool = True


@dataclass(frozen=True)
class Operation:
    """An operation of the library as this table sees it.

    Attributes:
        module: of this package; its `problem(case, device)` computes.
        package: of the library; its METHODS have to stand in rows.
        shapes: name → sizes. options: name → keyword arguments of `problem`'s making.
        rows: what is looked at.
    """

    module: str
    package: str
    shapes: dict
    options: dict
    rows: tuple[Product, ...]


# Sizes are B, T, H, K, V. Each shape is there for a path through the code:
WKV_SHAPES = {
    "token": (2, 1, 3, 64, 64),
    "short": (2, 33, 3, 24, 70),  # no power of 2, values over two programs
    "small": (2, 200, 3, 64, 64),  # no multiple of a chunk; few heads
    "many heads": (4, 70, 70, 64, 64),  # other tiles in numba; wkv6 takes numba in float32
    "segments": (1, 2100, 2, 64, 64),  # several programs along one sequence
    "odd": (1, 100, 2, 100, 36),
    "large": (1, 70, 2, 256, 80),  # the most keys that chunks take
    "huge": (1, 20, 2, 600, 24),  # beyond chunks
    # On Hopper, 16 bits and heads of multiples of 64 have kernels of their own: "small" has them.
    # In these shapes programs fill all SMs; there was a fault that no smaller shape had shown.
    "many chunks": (8, 2048, 64, 64, 64),
    "many segments": (1, 32768, 32, 64, 64),
    "many blocks": (8, 512, 64, 128, 128),  # of 64 keys and values, of which results are sums
}
WKV6_OPTIONS = {
    "plain": {},  # no state before, and none asked for: what a training step does
    "state": {"state": True},  # s0 given, and gradients through s1
    "scale": {"scale": 0.3},
    "raw": {"raw_decay": True},
    "packed": {"packed": True},  # cu_seqlens; sequences of 0 and of 1 token among them
    "w float32": {"w_dtype": "float32"},
    "all but packed": {"state": True, "scale": 0.3, "raw_decay": True},
    "all": {"state": True, "scale": 0.3, "raw_decay": True, "packed": True},
}
FEW = ("plain", "all")  # where another shape only makes another kernel of the same source
EVERY = ("plain", "state", "scale", "raw", "packed", "all but packed", "all")
# The scale is a constant of kernels for tiles, which are compiled for each: it comes with others.
BUT_SCALE = tuple(option for option in EVERY if option != "scale")
STEPS = ("plain", "scale", "raw", "all")

WKV5 = Operation(
    module="recurrence",
    package="wkv5",
    shapes=WKV_SHAPES | {"token": (2, 1, 3, 100, 36)},  # heads as "odd" has them: its kernels
    options={"plain": {}, "state": {"state": True}},
    rows=(
        Product(("chunked",), ("float64",), ("short",), ("state",), needs=ANYWHERE),
        Product(("reference",), DTYPES, ("short",), ("plain", "state"), needs=ANYWHERE),
        Product(("chunked",), DTYPES, ("token",), ("plain", "state"), needs=ANYWHERE),
        Product(("chunked",), DTYPES, ("short",), ("plain", "state"), needs=ANYWHERE),
        # One kernel per size of head and dtype, for any T; compiling it is what takes the time.
        Product(("wkv5",), DTYPES, ("token", "odd"), ("plain", "state"), needs=ANYWHERE),
        Product(("cuda",), DTYPES, ("odd",), ("plain", "state")),
    ),
)

WKV6 = Operation(
    module="recurrence",
    package="wkv6",
    shapes=WKV_SHAPES,
    options=WKV6_OPTIONS,
    rows=(
        Product(("doubling",), ("float64",), ("short",), EVERY, needs=ANYWHERE),
        Product(("reference",), DTYPES, ("short",), FEW, needs=ANYWHERE),
        Product(("doubling", "wkv6"), DTYPES, ("token",), FEW, needs=ANYWHERE),
        Product(("doubling",), DTYPES, ("short",), EVERY, needs=ANYWHERE),
        # numba compiles for long: dtypes only choose how it loads and stores, sizes its tiles. So
        # each size that has other tiles comes with another dtype. Halves that are scaled, or of raw
        # decays, are float32 to the kernels.
        Product(("cuda",), ("float32",), ("small",), EVERY),
        Product(("cuda",), ("bfloat16",), ("odd",), ("plain", "packed")),
        Product(("cuda",), ("float16",), ("huge",), ("plain", "packed")),
        Product(("cuda",), HALF, ("small",), ("all but packed", "all")),
        Product(("cuda",), ("float32",), ("many heads",), FEW),
        Product(("recurrent",), DTYPES, ("small",), EVERY),
        Product(("recurrent",), DTYPES, ("token", "odd", "short", "many heads", "huge"), FEW),
        # float16 takes the branches of float32 where it is made into pieces, of bfloat16 elsewhere.
        Product(("chunked", "wkv6"), ("float32",), ("small",), EVERY),
        Product(("chunked", "wkv6"), ("bfloat16",), ("small",), BUT_SCALE),
        Product(("chunked", "wkv6"), ("float16",), ("small",), ("plain", "state", "all")),
        Product(("chunked", "wkv6"), ("bfloat16",), ("small",), ("w float32",)),
        Product(("chunked",), DTYPES, ("token", "many heads"), FEW),
        Product(("chunked",), TILED, ("segments",), ("all",)),
        Product(("chunked",), TILED, ("odd",), ("all",)),
        Product(("chunked",), ("float32",), ("large",), ("all",)),
        Product(("chunked",), ("bfloat16",), ("many chunks",), BUT_SCALE, needs=HOPPER),
        Product(("chunked",), ("float16",), ("many chunks",), FEW, needs=HOPPER),
        Product(("chunked",), ("bfloat16",), ("many segments",), ("all but packed",), needs=HOPPER),
        Product(("chunked",), ("float16",), ("many segments",), ("plain",), needs=HOPPER),
        Product(("chunked",), ("bfloat16",), ("many blocks",), ("all",), needs=HOPPER),
        Product(("wkv6",), DTYPES, ("many heads",), FEW),
        Product(("wkv6",), ("float32",), ("huge",), ("all",)),
        Product(("wkv6",), ("bfloat16",), ("many chunks",), ("plain",), needs=HOPPER),
    ),
)

STEP = Operation(
    module="recurrence",
    package="wkv6",
    shapes={  # the tokens are decoded one after the other, in place
        "few heads": (2, 3, 3, 64, 64),
        "many heads": (8, 3, 64, 64, 64),
        "odd": (2, 3, 3, 100, 36),
    },
    options={
        "plain": {"state": True},
        "scale": {"state": True, "scale": 0.3},
        "raw": {"state": True, "raw_decay": True},
        "all": {"state": True, "scale": 0.3, "raw_decay": True},
    },
    rows=(
        Product(("wkv6_step",), DTYPES, ("odd",), STEPS, needs=ANYWHERE, gradients=False),
        Product(("wkv6_step",), DTYPES, ("few heads", "many heads"), STEPS, gradients=False),
    ),
)

WKV7_OPTIONS = {
    "plain": {},
    "state": {"state": True},
    "scale": {"scale": 0.3},
    "raw": {"decay": "raw"},
    "clamp": {"decay": "clamp"},
    "packed": {"packed": True},
    "w float32": {"w_dtype": "float32"},
    "all but packed": {"state": True, "scale": 0.3, "decay": "raw"},
    "all": {"state": True, "scale": 0.3, "decay": "raw", "packed": True},
}
OF_7 = tuple(WKV7_OPTIONS)
TOKENS_7 = (15, 16, 17, 1000)  # about a chunk, and many; 1 and 100 have shapes of other names
WKV7 = Operation(
    module="delta_rule",
    package="wkv7",
    shapes={name: WKV_SHAPES[name] for name in ("token", "short", "small", "odd", "huge")}
    | {
        "many heads": (4, 70, 70, 64, 64),  # values in one program
        "long": (1, 2100, 2, 64, 64),  # several programs along one sequence
        **{f"{T} tokens": (2, T, 3, 64, 64) for T in TOKENS_7},
        "128": (1, 100, 2, 128, 128),
        "256": (1, 70, 2, 256, 80),  # the most keys that kernels take
    },
    options=WKV7_OPTIONS,
    rows=(
        Product(("wy",), ("float64",), ("short",), ("plain", "clamp", "all"), needs=ANYWHERE),
        Product(("reference", "wy"), DTYPES, ("short",), FEW, needs=ANYWHERE),
        Product(("wkv7",), DTYPES, ("token",), FEW, needs=ANYWHERE),
        Product(("recurrent", "backstepping"), DTYPES, ("small",), OF_7),
        Product(("recurrent", "backstepping"), DTYPES, ("token", "odd", "256"), FEW),
        # Its kernels take long to compile: every option in bfloat16, and what float32 and float16
        # do otherwise, products in pieces and other tiles, with all options at the same time.
        Product(("chunked",), ("bfloat16",), ("small",), OF_7),
        Product(("chunked",), ("bfloat16",), ("token", "many heads"), FEW),
        Product(("chunked",), ("bfloat16",), ("odd", "128", "256"), ("all",)),
        Product(("chunked",), ("float32",), ("short", "256"), ("all",)),
        Product(("chunked",), ("bfloat16",), ("long",), ("all but packed", "all")),
        Product(("chunked",), ("float32", "float16"), ("small",), ("plain", "clamp", "all")),
        Product(("chunked",), ("float32", "float16"), ("token",), FEW),
        Product(("chunked",), ("float32",), ("many heads",), FEW),
        Product(("chunked",), DTYPES, tuple(f"{T} tokens" for T in TOKENS_7), ("state",)),
        Product(("wkv7",), DTYPES, ("small", "many heads"), FEW),
        Product(("wkv7",), ("float32",), ("huge",), ("all",)),
    ),
)

STEP_7 = Operation(
    module="delta_rule",
    package="wkv7",
    shapes=STEP.shapes,
    options={name: {"state": True} | WKV7_OPTIONS[name] for name in ("plain", "scale", "clamp")}
    | {"all": WKV7_OPTIONS["all but packed"]},
    rows=(
        Product(
            ("wkv7_step",), DTYPES, ("odd",), ("plain", "all"), needs=ANYWHERE, gradients=False
        ),
        Product(
            ("wkv7_step",), DTYPES, ("few heads", "many heads"),
            ("plain", "scale", "clamp", "all"), gradients=False,
        ),
    ),
)  # fmt: skip

# Sizes are B, M, H, N, K, R, P, V. M query tokens decide which kernel and which form is taken.
MLA_SHAPES = {
    "tiny": (3, 4, 2, 70, 20, 36, 12, 20),
    "rank 256": (3, 1, 40, 1500, 64, 256, 32, 64),  # MiniCPM3
    "rank 256, 2 queries": (3, 2, 40, 1500, 64, 256, 32, 64),
    "rank 512": (3, 1, 16, 1500, 128, 512, 64, 128),  # an eighth of DeepSeek-V3
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
DECODE = ("rank 256", "rank 512", "rank 72")
MORE = ("rank 256, 2 queries", "rank 512, 128 heads")
IN_PAGES = ("rank 512, 128 heads", "rank 512, 2 queries")
LATENT = ("rank 256, 40 queries", "rank 512, 40 queries")
EXPANDED = ("rank 512, 200 queries", "rank 256, 200 queries", "rank 72, 200 queries")

MLA = Operation(
    module="latent",
    package="mla",
    shapes=MLA_SHAPES,
    options=MLA_OPTIONS,
    rows=(
        Product(("absorbed",), ("float64",), ("tiny",), RAGGED, ("",), ANYWHERE),
        Product(("reference", "absorbed", "mla"), DTYPES, ("tiny",), RAGGED, ("",), ANYWHERE),
        Product(("decode",), DTYPES, DECODE, RAGGED, ("",), gradients=False),
        Product(("decode", "mla"), DTYPES, MORE, ("plain", "all"), ("",), gradients=False),
        # With more than 16 rows of queries, in pages of 64: a page for each tile, on Hopper.
        Product(("decode",), HALF, IN_PAGES, ("pages",), ("",), gradients=False),
        # One dtype: 6 GB a case, of which three may be looked at together.
        Product(
            ("decode",), ("bfloat16",), ("rank 512, many tiles",),
            ("lengths", "left padding", "both", "pages", "all"), ("",), gradients=False,
        ),
        Product(("prefill",), DTYPES, LATENT, ("plain", "both", "all"), ("",), gradients=False),
        # What plain leaves out does not depend on the rank. The first takes 36 s in float32.
        Product(("prefill",), HALF, EXPANDED[:1], ("both", "all"), ("",)),
        Product(("prefill",), DTYPES, EXPANDED[1:], ("plain", "both", "all"), ("",)),
        Product(("mla",), HALF, EXPANDED[:1], ("all",), ("",)),
        Product(("mla",), DTYPES, EXPANDED[1:], ("all",), ("",)),
    ),
)  # fmt: skip

# Sizes are B, C, T.
TIMEX = Operation(
    module="convolution",
    package="timex",
    shapes={
        "short": (2, 3, 17),
        "odd": (5, 3, 333),  # several tiles of every kernel, none of them whole
        "aligned": (33, 4, 512),  # wider loads, and a group of batch rows more
    },
    options={"plain": {}, "eps": {"eps": 0.3}, "all": {"eps": 0.3, "w_dtype": "float32"}},
    rows=(
        Product(("fft",), ("float64",), ("short",), ("all",), ("",), ANYWHERE),
        Product(
            ("reference", "fft", "timex"), DTYPES, ("short",), ("plain", "all"), ("",), ANYWHERE
        ),
        Product(("cuda", "toeplitz"), DTYPES, ("odd",), ("plain", "eps", "all"), ("",)),
        Product(("cuda", "toeplitz", "timex"), DTYPES, ("aligned",), ("plain", "all"), ("",)),
        Product(("fft",), DTYPES, ("odd",), ("plain",), ("",), ANYWHERE),
    ),
)

OPERATIONS = {"wkv5": WKV5, "wkv6": WKV6, "wkv6_step": STEP, "timex": TIMEX, "mla": MLA}
OPERATIONS |= {"wkv7": WKV7, "wkv7_step": STEP_7}


def table(only=()):
    """Every `Case` whose name has one of the patterns in it ("wkv6*raw"), all where none is given.

    A combination that stands in two rows is one case.
    """
    found = {}
    for operation, entry in OPERATIONS.items():
        for row in entry.rows:
            parts = (row.methods, row.dtypes, row.shapes, row.options, row.decays)
            for combination in product(*parts):
                case = Case(operation, *combination, row.needs, row.gradients)
                if not only or any(fnmatch(case.name, f"*{pattern}*") for pattern in only):
                    found.setdefault(case.name, case)
    return list(found.values())


def weight(case):
    """Numbers in r or in q: what the memory and the time of a case grow with."""
    if case.operation == "mla":
        B, M, H, N, K, *_ = case.sizes
        return B * H * (M * K + M * N)
    if case.operation == "timex":
        B, C, T = case.sizes
        return B * C * T
    B, T, H, K, _ = case.sizes
    return B * T * H * K
