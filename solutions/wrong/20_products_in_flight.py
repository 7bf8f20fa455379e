"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.course.wrong_answers import edit, wrong

holder = wrong(
    one_column_each=(
        "A lane holds one column of 8.",
        edit("j % 8 // 2", "j % 8"),
    ),
    lower_half_to_other_lanes=(
        "Each of the 16 rows has lanes of its own.",
        edit("i % 8 * 4", "i % 16 * 4"),
    ),
    lower_half_last=(
        "The registers count through all columns of the upper half first.",
        edit("j // 8 * 4 + i % 16 // 8 * 2 + j % 2", "j // 8 * 2 + i % 16 // 8 * 16 + j % 2"),
    ),
    rows_in_turn=(
        "Rows are dealt to the warps in turn.",
        edit("i // 16, i % 8 * 4", "i % 4, i % 8 * 4"),
    ),
)

within = wrong(
    scores_not_waited_for=(
        "The scores are masked while their product is still running.",
        edit("b_a = warpgroup_mma_wait(0, deps=(b_a,))\n"),
    ),
    wait_that_lets_go=(
        "The wait lets the only product keep running.",
        edit(
            "b_a = warpgroup_mma_wait(0, deps=(b_a,))", "b_a = warpgroup_mma_wait(1, deps=(b_a,))"
        ),
    ),
    old_name=(
        "The value that the wait returns is not used.",
        edit("b_a = warpgroup_mma_wait(0, deps=(b_a,))", "warpgroup_mma_wait(0, deps=(b_a,))"),
    ),
    factor_given_away=(
        "The wait does not name the left factor, so the compiler may reuse its registers.",
        edit(
            "b_o, b_a = warpgroup_mma_wait(0, deps=(b_o, b_a))",
            "b_o = warpgroup_mma_wait(0, deps=(b_o,))",
        ),
    ),
    future_tokens=(
        "Each token reads the later tokens.",
        edit("row >= col", "row <= col"),
    ),
    without_its_own=(
        "No token reads itself.",
        edit("row >= col", "row > col"),
    ),
    not_transposed=(
        "Multiplies r k instead of r kᵀ.",
        edit("s_k.permute((1, 0))", "s_k"),
    ),
)

_SCORES = """
b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True)
b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)
b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)
b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))
"""

kernel = wrong(
    five_waits=(
        "Correct, but waits for each product before it starts the next one.",
        solutions("20_products_in_flight").A_WAIT_BEHIND_EACH,
    ),
    four_waits=(
        "Correct, but waits for the state's product separately.",
        edit(
            _SCORES,
            """
            b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True)
            b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)
            b_a, b_r = warpgroup_mma_wait(1, deps=(b_a, b_r))
            """,
        ),
        edit(
            "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))",
            """
            b_o, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_a, b_r))
            b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)
            b_s = warpgroup_mma_wait(0, deps=(b_s,))
            """,
        ),
    ),
    all_three_at_once=(
        "Correct, but the wait for the scores is a wait for all three products.",
        edit("warpgroup_mma_wait(2, deps=(b_a, b_r))", "warpgroup_mma_wait(0, deps=(b_a, b_r))"),
    ),
    scores_too_early=(
        "The first wait lets the scores' product keep running, too.",
        edit("warpgroup_mma_wait(2, deps=(b_a, b_r))", "warpgroup_mma_wait(3, deps=(b_a, b_r))"),
    ),
    no_wait_for_scores=(
        "The scores are masked while their product is still running.",
        edit("b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))\n"),
    ),
    output_too_early=(
        "The last wait lets o's product keep running.",
        edit("warpgroup_mma_wait(0, deps=(b_o, b_s", "warpgroup_mma_wait(1, deps=(b_o, b_s"),
    ),
    right_most_of_the_time=(
        "r's registers are given up while r S still reads them.",
        edit(
            "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))",
            "b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))",
        ),
    ),
    output_without_the_state=(
        "Scores times v replace r S instead of adding to it.",
        edit(
            "s_v.index(i), b_o, is_async=True", "s_v.index(i), zeros, use_acc=False, is_async=True"
        ),
    ),
    state_of_one_chunk=(
        "The state starts from zero in each chunk.",
        edit(
            "s_v.index(i), b_s, is_async=True", "s_v.index(i), zeros, use_acc=False, is_async=True"
        ),
    ),
    state_transposed=(
        "Multiplies k v instead of kᵀ v.",
        edit("warpgroup_mma(k_by_channel, s_v", "warpgroup_mma(s_k.index(i), s_v"),
    ),
    next_tokens=(
        "Reads the next chunk's v, which is still in flight.",
        edit("b_o = warpgroup_mma(b_a, s_v.index(i)", "b_o = warpgroup_mma(b_a, s_v.index(1 - i)"),
    ),
)
