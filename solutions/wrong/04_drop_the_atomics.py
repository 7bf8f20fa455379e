"""Wrong answers to 04_drop_the_atomics."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

kernel = wrong(
    state_first=(
        "The state is updated before it is used, so the current token counts twice.",
        move("s[i] = decay[h, i] * s[i] + kv", before="o_j +="),
    ),
    adds_to_fresh_memory=(
        "Adds the sum to whatever the memory of o holds, which is no longer zeroed.",
        edit("o[b, t, h, j] = o_j", "o[b, t, h, j] += o_j"),
    ),
    still_atomic=(
        "The answer is right, but every product still goes to memory through an atomic.",
        edit("o_j = float32(0)", "o[b, t, h, j] = 0"),
        edit(
            "o_j += r[b, t, h, i] * (u[h, i] * kv + s[i])",
            "cuda.atomic.add(o, (b, t, h, j), r[b, t, h, i] * (u[h, i] * kv + s[i]))",
        ),
        edit("o[b, t, h, j] = o_j"),
    ),
    sum_in_float64=(
        "The sum starts from a Python 0, an integer, so numba computes the sum in float64.",
        edit("o_j = float32(0)", "o_j = 0"),
    ),
    sum_never_reset=(
        "The sum of one token continues into the next.",
        move("o_j = float32(0)", before="for t in range(T):"),
    ),
    sums_in_memory=(
        "The answer is right, but every product makes the kernel read and write the sum in memory.",
        edit("o_j = float32(0)", "o[b, t, h, j] = 0"),
        edit("o_j +=", "o[b, t, h, j] +="),
        edit("o[b, t, h, j] = o_j"),
    ),
)
