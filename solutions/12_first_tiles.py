"""First kernels in Triton: an addition, softmax and its launch, column sums."""

from functools import partial

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import ATOMICS, at_most, wide_reads
from rwkv_lessons.lab.evidence.triton import (
    Case,
    answer,
    exps,
    gpu,
    machine_code,
    no_spills,
    reads,
    traffic,
    writes,
)
from rwkv_lessons.lab.lessons.lesson_12.evidence import (
    FLOAT32_ONLY,
    adding,
    each_program_stores,
    numbers,
    row_launches,
    row_launches_gpu,
    softmax_of,
    sums_of,
)
from rwkv_lessons.runtime.launch_numba import ceil_div


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """out = x + y, one program for every BLOCK elements; x, y, out are [n] float32."""
    ### BEGIN SOLUTION
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x + o, m, 0)
    b_y = tl.load(y + o, m, 0)
    tl.store(out + o, b_x + b_y, m)
    ### END SOLUTION


@triton.jit
def softmax(x, y, stride, N, BLOCK: tl.constexpr):
    """The softmax of each row, one program per row; x and y are [M, N] float32, BLOCK ≥ N.

    Row m of x starts at element m · stride. The rows of y follow one another without a gap.
    """
    ### BEGIN SOLUTION
    i_m, o_n = tl.program_id(0), tl.arange(0, BLOCK)
    m_n = o_n < N
    b_x = tl.load(x + i_m * stride + o_n, m_n, -float("inf"))
    b_e = tl.exp(b_x - tl.max(b_x, 0))
    tl.store(y + i_m * N + o_n, b_e / tl.sum(b_e, 0), m_n)
    ### END SOLUTION


def softmax_rows(kernel, x):
    """The softmax of each row of x, by one launch of `kernel`, which is `softmax`.

    x is [M, N] float32; its rows start x.stride(0) elements apart, and it is not copied. Returns a
    new tensor, [M, N].
    """
    ### BEGIN SOLUTION
    M, N = x.shape
    y = torch.empty(M, N, device=x.device)
    kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
    ### END SOLUTION


@triton.jit
def column_sums(x, sums, stride, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """sums[n] = Σ x[m, n] over all m, one program for every BN columns, BM rows at a time.

    x is [M, N] float32, its row m starts at element m · stride; sums is [N] float32.
    """
    ### BEGIN SOLUTION
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < N
    b_sums = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        o_m = first + tl.arange(0, BM)
        o_x = o_m[:, None] * stride + o_n[None, :]  # [BM, BN]
        b_x = tl.load(x + o_x, (o_m < M)[:, None] & m_n[None, :], 0)
        b_sums += tl.sum(b_x, 0)
    tl.store(sums + o_n, b_sums, m_n)
    ### END SOLUTION


def launch_add(n, BLOCK=1024):
    """The grid of `add`, and its sizes."""
    return (ceil_div(n, BLOCK),), {"n": n, "BLOCK": BLOCK, "num_warps": 4}


def launch_softmax(M, N, stride, BLOCK=1024):
    """The grid of `softmax`, and its sizes."""
    return (M,), {"stride": stride, "N": N, "BLOCK": BLOCK, "num_warps": 4}


def launch_column_sums(M, N, stride, BM=16, BN=128):
    """The grid of `column_sums`, and its sizes."""
    sizes = {"stride": stride, "M": M, "N": N, "BM": BM, "BN": BN}
    return (ceil_div(N, BN),), sizes | {"num_warps": 4}


def two(n, *rest, **block):
    return partial(adding, launch_add, n, *rest, **block)


def rows(x, *rest, **block):
    return partial(softmax_of, launch_softmax, x, *rest, **block)


def columns(x, *rest, **blocks):
    return partial(sums_of, launch_column_sums, x, *rest, **blocks)


HIDDEN = numbers(2, 5)  # as a mask of scores leaves it
HIDDEN[0, 1:3] = -torch.inf
NO_ATOMICS = at_most(0, *ATOMICS, text="no atomics")
WIDE = wide_reads()
SMALL = {"BM": 2, "BN": 4}

EXERCISES = {
    "add": Exercise(
        minutes=8,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)": "All element numbers of a "
                "program at once.",
                "tl.store(out + o, b_x + b_y, m)": "The store needs the mask most: memory past "
                "the end belongs to another tensor.",
            },
            instead={
                "A loop over several blocks in one program": "starts fewer programs, and the next "
                "loads can be issued before this store.",
            },
            stretch="Add a plain number `c`, passed as an argument: what is its type in the "
            "kernel, and how often is it loaded?",
        ),
        hints=(
            "Which elements belong to this program, which of them exist, load, load, store: one "
            "line each.",
            "Program p owns the elements p · BLOCK … p · BLOCK + BLOCK - 1, all at once: "
            "tl.arange(0, BLOCK) numbers them. The mask is a comparison with n, for both loads "
            "and the store.",
            "o = tl.program_id(0) * … + tl.arange(0, …)\n"
            "m = o < …\n"
            "b_x = tl.load(x + o, m, 0)\n"
            "b_y = …\n"
            "tl.store(out + o, …, m)",
        ),
        evidence=(
            answer(
                Case("one block, full", "by hand", two(4, BLOCK=4)),
                Case("three blocks, full", "blocks", two(12, BLOCK=4)),
                Case("a last block that is half empty", "mask", two(10, BLOCK=4)),
                Case("one element", "mask", two(1, BLOCK=4)),
                Case("huge numbers", "by hand", two(7, 1e38, BLOCK=4)),
                Case("300 blocks", "many", two(1200, BLOCK=4)),
                Case("the programs in reverse", "programs", two(23, BLOCK=8), reverse=True),
                Case("blocks of full size", "blocks", two(2500)),
                Case("70,000 elements", "many", two(70_000)),
            ),
            traffic(
                two(100, BLOCK=32), reads(1, "x", "y"), writes(1, "out"), each_program_stores(32)
            ),
            machine_code(two(1 << 16), WIDE, no_spills(), NO_ATOMICS, FLOAT32_ONLY),
            gpu(two(1 << 24)),
        ),
        symptoms={
            "by hand": "Element n of out is element n of x plus element n of y.",
            "blocks": "Program p starts at element p · BLOCK.",
        },
    ),
    "softmax": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                'b_x = tl.load(x + i_m * stride + o_n, m_n, -float("inf"))': "Elements that do "
                "not exist are −∞: they cannot be the largest, and their exp is 0.",
                "b_e = tl.exp(b_x - tl.max(b_x, 0))": "The largest exponent is 0, so nothing "
                "overflows.",
            },
            instead={
                "Several rows per program, as a tile [BM, BLOCK]": "suits short rows, which leave "
                "most lanes of a program idle.",
                "The row in blocks, with sums that are rescaled": "allows rows of any length: "
                "lesson 26.",
            },
            stretch="Write log softmax. Which of exp and log can you save?",
        ),
        hints=(
            "Load a row once. Everything else happens in registers: maximum, exp, sum.",
            "The lanes past the end must count neither in the maximum nor in the sum. Which "
            "`other` achieves both? Its exp has to be 0.",
            "i_m, o_n = tl.program_id(0), tl.arange(0, BLOCK)\n"
            "m_n = o_n < …\n"
            'b_x = tl.load(x + i_m * … + o_n, m_n, -float("inf"))\n'
            "b_e = tl.exp(b_x - tl.max(…, 0))\n"
            "tl.store(y + i_m * … + o_n, b_e / tl.sum(…, 0), m_n)",
        ),
        evidence=(
            answer(
                Case("a row of four zeros", "by hand", rows(torch.zeros(1, 4), BLOCK=4)),
                Case("a row as long as the block", "by hand", rows(numbers(1, 8), BLOCK=8)),
                Case("rows shorter than the block", "padding", rows(numbers(3, 5), BLOCK=8)),
                Case("rows of one element", "padding", rows(numbers(3, 1), BLOCK=4)),
                Case("large numbers", "large", rows(90 * numbers(2, 8) + 500, BLOCK=8)),
                Case("far below zero", "padding", rows(numbers(2, 5) - 150, BLOCK=8)),
                # Of one element: more would leave log(sum) few digits beside the maximum.
                Case(
                    "one element, further below", "padding", rows(numbers(3, 1) - 20_000, BLOCK=4)
                ),
                Case("scores that are masked off", "padding", rows(HIDDEN, BLOCK=8)),
                Case("rows apart", "stride", rows(numbers(3, 5), 9, BLOCK=8)),
                Case("300 rows", "many", rows(numbers(300, 3), BLOCK=4)),
                Case("the programs in reverse", "programs", rows(numbers(5, 6), BLOCK=8), True),
                Case("rows of 1,000", "padding", rows(numbers(3, 1000))),
                Case("70,000 elements", "many elements", rows(numbers(70, 1000))),
            ),
            traffic(
                rows(numbers(4, 100), BLOCK=128),
                reads(1, "x"),
                writes(1, "y"),
                exps(2 * 4 * 128),  # twice: through the log of the sum, which costs no bytes
                each_program_stores(100),
            ),
            machine_code(rows(numbers(8, 1008)), WIDE, no_spills(), NO_ATOMICS, FLOAT32_ONLY),
            gpu(rows(numbers(4099, 1000), 1024)),
        ),
        symptoms={
            "by hand": "y = exp(x - max) / Σ exp(x - max), along the row.",
            "padding": "What do the lanes past the end add to the sum? And what is the maximum "
            "of a row whose elements are all negative?",
            "large": "exp(89) does not fit into a float32: subtract the row's maximum first.",
            "stride": "Row m of x starts at m · stride, row m of y at m · N.",
        },
    ),
    "softmax_rows": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N))": "One "
                "program per row, whatever its stride; tl.arange accepts only powers of two.",
            },
            instead={
                "x.contiguous() first": "saves the stride, but copies x.",
            },
            stretch="Each new BLOCK is compiled separately. How many kernels do rows of 1 to "
            "4,096 elements need?",
        ),
        hints=(
            "How many programs, with which arguments, and where is the tensor y allocated?",
            "One program per row: the grid is (M,), a tuple. BLOCK is a power of two, at least "
            "N: triton.next_power_of_2. The stride is x.stride(0).",
            "M, N = x.shape\n"
            "y = torch.empty(M, N, device=x.device)\n"
            "kernel[(…,)](x, y, …, N, BLOCK=triton.next_power_of_2(…))\n"
            "return y",
        ),
        evidence=(
            row_launches(
                softmax,
                ("a power of two", 3, 8, 8),
                ("rows of 100", 2, 100, 100),
                ("one element", 1, 1, 1),
                ("rows of 1,500", 2, 1500, 1500),
                ("a slice: rows apart", 3, 5, 12),
            ),
            row_launches_gpu(softmax),
        ),
        symptoms={
            "rows of 100": "BLOCK is a power of two that covers a row: 128 for 100.",
            "one element": "triton.next_power_of_2(1) is 1.",
            "rows of 1,500": "BLOCK has to cover the whole row.",
            "a slice: rows apart": "Rows of a slice start further apart than they are long: "
            "x.stride(0).",
        },
    ),
    "column_sums": Exercise(
        minutes=12,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "o_x = o_m[:, None] * stride + o_n[None, :]  # [BM, BN]": "Offsets of a tile: a "
                "column with the starts of the rows, plus a row of column numbers.",
                "b_sums += tl.sum(b_x, 0)": "Axis 0 is the rows. The result has one element per "
                "column and stays in registers.",
            },
            instead={
                "A tile [BM, BN] of sums, added once after the loop": "needs no sum across "
                "threads in the loop, but BM times the registers.",
                "Cutting the rows into programs, too": "gives more programs when columns are few, "
                "but a second launch has to add their sums.",
            },
            stretch="Sum along the rows instead, with the same tile. Which axis and which mask "
            "change, and what does one load read?",
        ),
        hints=(
            "A tile is rows times columns, [BM, BN]. Which of its offsets change in the loop?",
            "o_m[:, None] * stride + o_n[None, :] are the offsets of a tile, by broadcasting. "
            "Build its mask the same way, with &. tl.sum(b_x, 0) adds its rows.",
            "o_n = tl.program_id(0) * BN + tl.arange(0, BN)\n"
            "b_sums = tl.zeros([BN], tl.float32)\n"
            "for first in range(0, M, BM):\n"
            "    o_m = first + tl.arange(0, BM)\n"
            "    o_x = o_m[:, None] * … + o_n[None, :]\n"
            "    b_x = tl.load(x + o_x, (o_m < …)[:, None] & (o_n < …)[None, :], 0)\n"
            "    b_sums += tl.sum(…, 0)\n"
            "tl.store(sums + …, b_sums, …)",
        ),
        evidence=(
            answer(
                Case("one tile", "by hand", columns(numbers(2, 4), **SMALL)),
                Case("rows for three tiles", "loop", columns(numbers(6, 4), **SMALL)),
                Case("the last tile has one row", "last rows", columns(numbers(5, 4), **SMALL)),
                Case("columns for two programs", "blocks", columns(numbers(2, 8), **SMALL)),
                Case("six columns", "mask", columns(numbers(3, 6), **SMALL)),
                Case("one row, one column", "mask", columns(numbers(1, 1), **SMALL)),
                Case("rows apart", "stride", columns(numbers(4, 6), 11, **SMALL)),
                Case("huge numbers", "by hand", columns(1e30 * numbers(4, 4), **SMALL)),
                Case("600 rows", "loop", columns(numbers(600, 3), **SMALL)),
                Case("1,200 columns", "many", columns(numbers(2, 1200), **SMALL)),
                Case("the programs in reverse", "programs", columns(numbers(3, 9), **SMALL), True),
                Case("tiles of full size", "loop", columns(numbers(37, 200))),
                Case("70,000 rows", "many elements", columns(numbers(70_000, 2), BM=64, BN=2)),
            ),
            traffic(
                columns(numbers(7, 10), **SMALL),
                reads(1, "x"),
                writes(1, "sums"),
                each_program_stores(4),
            ),
            machine_code(columns(numbers(64, 1024)), WIDE, no_spills(), NO_ATOMICS, FLOAT32_ONLY),
            gpu(columns(numbers(4099, 4000), 4032)),
        ),
        symptoms={
            "by hand": "The sum goes down a column: over the rows of the tile, axis 0.",
            "loop": "Each iteration takes the next BM rows and adds to the sum so far.",
            "last rows": "range(0, M, BM) includes the last, incomplete tile: its surplus rows are "
            "masked, and count as 0.",
            "blocks": "Program p starts at column p · BN.",
            "stride": "The next row starts stride elements later.",
        },
    ),
}
