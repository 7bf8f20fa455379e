"""Wrong answers to 00_start_here."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

double = wrong(
    every_block_the_same=(
        "Every block computes the first 32 elements: a thread's number in its block will not do.",
        edit("cuda.grid(1)  # the number of this thread among all threads", "cuda.threadIdx.x"),
    ),
    guard_one_too_far=(
        "The guard lets one thread too many through: the last index is n - 1.",
        edit("if i < x.shape[0]:", "if i <= x.shape[0]:"),
    ),
    right_for_64=(
        "The surplus threads of the last block write behind the end of y.",
        edit(
            """
            if i < x.shape[0]:
                y[i] = 2 * x[i]
            """,
            "y[i] = 2 * x[i]",
        ),
    ),
)
