"""Wrong answers to 07_shared_memory."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

shared = wrong(
    one_warp_fetches=(
        "Only the first half of the threads load, so half of each row is never filled.",
        edit(
            "s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]",
            """
            if j < N // 2:
                s_r[j], s_k[j] = r[b, t, h, j], k[b, t, h, j]
            """,
        ),
    ),
    one_barrier=(
        "There is no barrier between reading a token and overwriting it with the next.",
        edit("cuda.syncthreads()  # everyone has read before the next token overwrites"),
    ),
    reads_global_anyway=(
        "Fills shared memory, but then reads r and k from global memory anyway.",
        edit("kv = s_k[i]", "kv = k[b, t, h, i]"),
        edit("o_j += s_r[i]", "o_j += r[b, t, h, i]"),
    ),
    reads_too_early=(
        "There is no barrier between filling shared memory and reading it.",
        edit("cuda.syncthreads()  # every element is there before anyone reads"),
    ),
)

state_in_shared = wrong(
    every_lane_in_one_bank=(
        "The answer is right, but rows and columns are swapped: all 32 lanes use the same bank.",
        edit("s_state[i, j] = 0", "s_state[j, i] = 0"),
        edit("(s_u[i] * kv + s_state[i, j])", "(s_u[i] * kv + s_state[j, i])"),
        edit(
            "s_state[i, j] = s_decay[i] * s_state[i, j]",
            "s_state[j, i] = s_decay[i] * s_state[j, i]",
        ),
    ),
    not_cleared=(
        "The state starts with whatever the previous block left in shared memory.",
        edit(
            """
            for i in range(N):
                s_state[i, j] = 0  # neighbours in j are neighbours in memory: 32 lanes, 32 banks
            """
        ),
    ),
    one_column_for_all=(
        "All threads of the block share one column of the state.",
        edit("s_state[i, j] = 0", "s_state[i, 0] = 0"),
        edit("(s_u[i] * kv + s_state[i, j])", "(s_u[i] * kv + s_state[i, 0])"),
        edit(
            "s_state[i, j] = s_decay[i] * s_state[i, j]",
            "s_state[i, 0] = s_decay[i] * s_state[i, 0]",
        ),
    ),
)
