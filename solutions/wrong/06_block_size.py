"""Wrong answers to 06_block_size."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

blocks = wrong(
    one_too_many=(
        "Adds a block even when the last one is full.",
        edit("(B * H * N + block - 1) // block", "B * H * N // block + 1"),
    ),
    rounds_down=(
        "Rounds down: the outputs past the last full block get no thread.",
        edit("(B * H * N + block - 1) // block", "B * H * N // block"),
    ),
)

resident_warps = wrong(
    exact_registers=(
        "Gives a warp exactly the registers it needs, but they are given out 256 at a time.",
        edit("(registers * 32 + 255) // 256 * 256", "registers * 32"),
    ),
    forgets_the_places=(
        "Counts registers only, but an SM has just 64 warp slots and 32 block slots.",
        edit("4 * min(16384 // per_warp, 16)", "4 * (16384 // per_warp)"),
        edit("min(fitting // warps, 32) * warps", "fitting // warps * warps"),
    ),
    one_pool=(
        "Treats the SM's registers as one pool, but there are four, and a warp uses only one of "
        "them.",
        edit("4 * min(16384 // per_warp, 16)", "min(65536 // per_warp, 64)"),
    ),
    right_for_small_blocks=(
        "Lets an SM take part of a block, but it takes a whole block or none.",
        instead(
            """
            per_warp = (registers * 32 + 255) // 256 * 256
            return min(4 * (16384 // per_warp), 64, 32 * (block // 32))
            """
        ),
    ),
)
