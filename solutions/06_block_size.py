"""The kernel of lesson 05 in blocks of any size: how many warps fit on an SM, and how many come."""

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

    An SM has four quarters. Each has 16,384 registers, given to a warp 256 at a time, and 16 warp
    slots. The SM as a whole has 32 block slots, and takes a block with all its warps or not at all.

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


ROUNDING = "A warp's registers are 32 times those of a thread, rounded up to a multiple of 256."
QUARTERS = (
    "A warp takes its registers from one quarter; what is left over there is useless to the others."
)
PLACES = (
    "Registers are not the only limit: a quarter has 16 warp slots, the SM 32 block slots. If you "
    "get fewer: round up the registers of a warp, not of a thread, and return warps, not blocks."
)
WHOLE = (
    "An SM takes whole blocks only. How many blocks of block // 32 warps fit, and how many warps "
    "is that?"
)

EXERCISES = {
    "blocks": Exercise(
        minutes=3,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return (B * H * N + block - 1) // block": "This division rounds up: the last "
                "block may be partly idle, and the guard stops its extra threads.",
            },
            instead={
                "-(-n // block)": "the same value; n // block + 1 is one block too many when n "
                "is a multiple of block.",
            },
            stretch="Launch only as many blocks as fit at once, and let each loop over its "
            "share. When does that pay off?",
        ),
        hints=(
            "What happens to the outputs that do not fill a last block?",
            "Divide and round up: the last block may have extra threads, and the guard stops them.",
            "(n + block - 1) // block rounds n / block up, with n = B·H·N.",
        ),
        evidence=(
            function_cases(
                ("a whole number of blocks", (8, 64, 64, 128), 256),
                ("a last block with idle threads", (1, 3, 100, 128), 3),
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
            "a whole number of blocks": "There are B·H·N outputs, and a block handles `block` of "
            "them.",
            "a last block with idle threads": "The outputs past the last full block need "
            "threads too: round up.",
            "fewer threads than a block": "The outputs past the last full block need threads "
            "too: round up.",
            "more outputs than float32 can count": "Divide integers with //: float32 cannot "
            "represent 2^24 + 1.",
        },
    ),
    "resident_warps": Exercise(
        minutes=12,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "per_warp = (registers * 32 + 255) // 256 * 256": "Registers are given out 256 "
                "at a time.",
                "return min(fitting // warps, 32) * warps": "Only whole blocks fit, and there "
                "are 32 block slots.",
            },
            instead={
                "65,536 // per_warp, for the whole SM at once": "that is too many: what is left "
                "over in one quarter cannot be used by another.",
            },
            stretch="Add shared memory: each block takes some of the SM's 227 KB. Which limit "
            "applies in lesson 07?",
        ),
        hints=(
            "Three resources can run out: registers, warp slots and block slots.",
            "A warp needs registers · 32, rounded up to 256. A quarter fits 16,384 divided by "
            "that, at most 16 warps; the SM fits four times as many. Then count whole blocks, at "
            "most 32.",
            "fitting = 4 * min(16384 // per_warp, 16), then min(fitting // warps, 32) * warps, "
            "with warps = block // 32.",
        ),
        evidence=(
            function_cases(
                ("the 32 block slots run out", (32, 32), 32),
                ("the 64 warp slots run out", (24, 256), 64),
                ("the registers run out", (128, 128), 16),
                ("every quarter has its own registers", (131, 32), 12),
                ("registers are given out 256 at a time", (41, 64), 40),
                ("only whole blocks count", (168, 256), 8),
                ("a block too large to fit", (255, 1024), 0),
                more=[(n, 32 * warps) for n in range(16, 256, 3) for warps in range(1, 33, 2)],
            ),
        ),
        symptoms={
            "the 32 block slots run out": PLACES,
            "the 64 warp slots run out": PLACES,
            "the registers run out": "How many registers does one warp of 32 threads need, and "
            "how often does that fit into a quarter?",
            "every quarter has its own registers": f"{QUARTERS} Did you round up to 256 first?",
            "registers are given out 256 at a time": ROUNDING,
            "only whole blocks count": WHOLE,
            "a block too large to fit": WHOLE,
        },
    ),
}
