"""The kernel of lesson 05 in blocks of any size: what fits on an SM, and what is there for it."""

from rwkv_lessons.lab.evidence import function_answer
from rwkv_lessons.lab.exercises import Exercise, solutions

kernel = solutions("05_float4").kernel
BLOCK = 128  # threads per block: any number of warps


def blocks(B, H, N, block):
    """How many blocks of `block` threads give each of B·H·N outputs a thread."""
    ### BEGIN SOLUTION
    return (B * H * N + block - 1) // block
    ### END SOLUTION


def resident_warps(registers, block):
    """How many warps of a kernel fit on an SM of an H200 at once.

    An SM has 65,536 registers, handed to a warp 256 at a time, and room for 64 warps and 32 blocks.
    A block is on the SM with all its warps, or not at all.

    Args:
        registers: per thread.
        block: threads per block, a multiple of 32.
    """
    ### BEGIN SOLUTION
    warps = block // 32  # of one block
    per_warp = (registers * 32 + 255) // 256 * 256
    fitting = min(65536 // per_warp, 64)
    return min(fitting // warps, 32) * warps
    ### END SOLUTION


def launch(B, T, H, N, block=BLOCK):
    """How many blocks, of how many threads."""
    return blocks(B, H, N, block), block


EXERCISES = {
    "blocks": Exercise(
        minutes=3,
        difficulty=1,
        hints=(
            "What becomes of the outputs that do not fill a last block?",
            "Divide and round up: the last block may have threads to spare, the guard stops them.",
            "(n + block - 1) // block rounds n / block up, with n = B·H·N.",
        ),
        evidence=(
            function_answer(
                ("a whole number of blocks", (8, 64, 64, 128), 256),
                ("a last block with threads to spare", (1, 3, 100, 128), 3),
                ("fewer threads than a block", (1, 1, 64, 128), 1),
            ),
        ),
    ),
    "resident_warps": Exercise(
        minutes=12,
        difficulty=2,
        hints=(
            "Three things run out: registers, places for warps, places for blocks.",
            "Registers of a warp: registers · 32, rounded up to 256. Warps that fit: 65,536 over "
            "that, at most 64. Then whole blocks of them, at most 32.",
            "min(fitting // warps, 32) * warps, with warps = block // 32 and fitting from above.",
        ),
        evidence=(
            function_answer(
                ("the 32 places for blocks run out", (32, 32), 32),
                ("the 64 places for warps run out", (32, 256), 64),
                ("the registers run out", (128, 128), 16),
                ("registers are handed out 256 at a time", (57, 64), 32),
                ("only whole blocks count", (168, 256), 8),
                ("a block too large to fit", (255, 1024), 0),
            ),
        ),
    ),
}
