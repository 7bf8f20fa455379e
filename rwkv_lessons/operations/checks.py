"""What verify looks at of an operation: products of methods, dtypes, shapes, options and decays."""

from collections.abc import Callable
from dataclasses import dataclass

ALL_DTYPES = ("float32", "float16", "bfloat16")
HALF = ("float16", "bfloat16")
TILED = ("float32", "bfloat16")  # where a shape is there for its tiles: halves take the same
DECAYS = ("tame", "strong")  # strong: w down to -20, some keys and some tokens -inf, some 0
ANYWHERE, GPU, HOPPER = "anywhere", "a GPU", "a Hopper GPU"


@dataclass(frozen=True)
class Combinations:
    """Every combination of these: a block of the table."""

    methods: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[str, ...]
    options: tuple[str, ...]
    decays: tuple[str, ...] = DECAYS
    needs: str = GPU
    gradients: bool = True


@dataclass(frozen=True)
class Checks:
    """An operation as verify sees it. Each method and dtype of the package stands in a row."""

    name: str  # of the package, or of a function that computes one token
    problem: str  # "file:Class" of verify/: inputs, results and float64 of a case
    shapes: dict  # name → sizes
    options: dict  # name → what the problem makes of a call
    rows: tuple[Combinations, ...]
    others: Combinations | None = None  # of the methods that stand in no row
    repeatable: tuple[str, ...] = ()  # kernels that add in a fixed order: twice the same bits
    # As few shapes as stand for a method: looked at before a time is recorded.
    few: tuple[str, ...] = ()
    # Sizes → numbers in r or in q: what the memory and the time of a case grow with.
    numbers: Callable = lambda B, T, H, K, V: B * T * H * K
    # (pattern of the rest of a case's name, seconds), see verify/schedule.py. The first one counts.
    seconds: tuple = ()


# What the operations with a matrix state share. Sizes are B, T, H, K, V.
# Each shape is there for a path through the code:
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
    "many segments": (1, 32768, 64, 64, 64),  # whose states come in pieces
    "two segments": (1, 22016, 96, 64, 64),  # and the first tokens are swept meanwhile
    "whole heads": (8, 512, 64, 128, 128),  # of bfloat16, whose programs take all keys of a head
    "many blocks": (8, 512, 64, 192, 128),  # of 64 keys and values, of which results are sums
}
STEP_SHAPES = {  # the tokens are decoded one after the other, in place
    "few heads": (2, 3, 3, 64, 64),
    "many heads": (8, 3, 64, 64, 64),
    "odd": (2, 3, 3, 100, 36),
}
FEW = ("plain", "all")  # where another shape only makes another kernel of the same source
