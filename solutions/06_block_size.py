"""The kernel of lesson 05 in blocks of any size: what fits on an SM, and what is there for it."""

from numba import cuda

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise, solutions
from rwkv_lessons.lab.evidence.functions import function_cases

kernel = solutions("05_float4").kernel
BLOCK = 128  # threads per block: any number of warps

# The same kernel; the compiler is told: blocks of at most BLOCK threads, and one on an SM will do.
generous = cuda.jit(launch_bounds=(BLOCK, 1))(kernel.py_func)


def blocks(B, H, N, block):
    """How many blocks of `block` threads give each of B·H·N outputs a thread."""
    ### BEGIN SOLUTION
    return (B * H * N + block - 1) // block
    ### END SOLUTION


def resident_warps(registers, block):
    """How many warps of a kernel fit on an SM of an H200 at once.

    An SM has four quarters. Each has 16,384 registers, handed to a warp 256 at a time, and 16
    places for warps. The SM as a whole has 32 places for blocks, and takes a block with all its
    warps or not at all.

    Args:
        registers: per thread.
        block: threads per block, a multiple of 32.
    """
    ### BEGIN SOLUTION
    warps = block // 32  # of one block
    per_warp = (registers * 32 + 255) // 256 * 256
    fitting = 4 * min(16384 // per_warp, 16)
    return min(fitting // warps, 32) * warps
    ### END SOLUTION


def launch(B, T, H, N, block=BLOCK):
    """How many blocks, of how many threads."""
    return blocks(B, H, N, block), block


ROUNDING = "Registers of a warp are 32 times those of a thread, rounded up to a multiple of 256."
QUARTERS = "A warp's registers come from one quarter: what is left over there is of no use to it."
PLACES = "Registers are not all: a quarter has 16 places for warps, the SM 32 for blocks."
WHOLE = "A block moves in whole: how many blocks of block // 32 warps fit, and so how many warps?"

EXERCISES = {
    "blocks": Exercise(
        minutes=3,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return (B * H * N + block - 1) // block": "Division rounded up: the last block "
                "may be partly idle, and the guard stops it.",
            },
            instead={
                "-(-n // block)": "the same; n // block + 1 is one block too many where it "
                "divides.",
            },
            stretch="Launch no more blocks than fit at a time, and let each loop over its share. "
            "When does it pay?",
        ),
        hints=(
            "What becomes of the outputs that do not fill a last block?",
            "Divide and round up: the last block may have threads to spare, the guard stops them.",
            "(n + block - 1) // block rounds n / block up, with n = B·H·N.",
        ),
        evidence=(
            function_cases(
                ("a whole number of blocks", (8, 64, 64, 128), 256),
                ("a last block with threads to spare", (1, 3, 100, 128), 3),
                ("fewer threads than a block", (1, 1, 64, 128), 1),
                ("more outputs than float32 can count", (262_145, 1, 65, 32), 532_483),
                more=[
                    (B, H, N, 32 * n)
                    for B in (1, 3)
                    for H in (1, 7)
                    for N in (64, 100)
                    for n in range(1, 33, 3)
                ]
                + [(262_145, 1, 65, 32), (65_537, 65, 513, 32)],  # past a float32, past an int32
                whole=True,
            ),
        ),
        symptoms={
            "a whole number of blocks": "B·H·N outputs, `block` of them to a block.",
            "a last block with threads to spare": "The outputs behind the last full block need "
            "threads too: round up.",
            "fewer threads than a block": "The outputs behind the last full block need threads "
            "too: round up.",
            "more outputs than float32 can count": "Divide integers with //: 2^24 + 1 is not in "
            "float32.",
        },
    ),
    "resident_warps": Exercise(
        minutes=12,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "per_warp = (registers * 32 + 255) // 256 * 256": "Registers are handed out 256 "
                "at a time.",
                "return min(fitting // warps, 32) * warps": "Blocks move in whole, and there are "
                "32 places for them.",
            },
            instead={
                "16384 // per_warp without quarters": "65,536 // per_warp: too many, since what a "
                "quarter has left is of no use to the others.",
            },
            stretch="Add shared memory: a block takes some of 227 KB. Which of the limits binds "
            "in lesson 07?",
        ),
        hints=(
            "Three things run out: registers, places for warps, places for blocks.",
            "A warp needs registers · 32, rounded up to 256. A quarter fits 16,384 over that, at "
            "most 16 warps; the SM four times as many. Then whole blocks of them, at most 32.",
            "fitting = 4 * min(16384 // per_warp, 16), then min(fitting // warps, 32) * warps, "
            "with warps = block // 32.",
        ),
        evidence=(
            function_cases(
                ("the 32 places for blocks run out", (32, 32), 32),
                ("the 64 places for warps run out", (24, 256), 64),
                ("the registers run out", (128, 128), 16),
                ("every quarter has registers of its own", (131, 32), 12),
                ("registers are handed out 256 at a time", (41, 64), 40),
                ("only whole blocks count", (168, 256), 8),
                ("a block too large to fit", (255, 1024), 0),
                more=[(n, 32 * warps) for n in range(16, 256, 3) for warps in range(1, 33, 2)],
            ),
        ),
        symptoms={
            "the 32 places for blocks run out": PLACES,
            "the 64 places for warps run out": PLACES,
            "the registers run out": "What does one warp of 32 threads take, and how often does a "
            "quarter have that?",
            "every quarter has registers of its own": QUARTERS,
            "registers are handed out 256 at a time": ROUNDING,
            "only whole blocks count": WHOLE,
            "a block too large to fit": WHOLE,
        },
    ),
}
