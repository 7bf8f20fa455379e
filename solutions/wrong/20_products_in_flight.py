"""Wrong answers to this lesson's exercises."""

from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.course.wrong_answers import edit, wrong

holder = wrong(
    one_column_each=(
        "A lane has one column of 8.",
        edit("j % 8 // 2", "j % 8"),
    ),
    lower_half_to_other_lanes=(
        "16 rows are 16 lanes' rows.",
        edit("i % 8 * 4", "i % 16 * 4"),
    ),
    lower_half_last=(
        "All columns of the upper half come first.",
        edit("j // 8 * 4 + i % 16 // 8 * 2 + j % 2", "j // 8 * 2 + i % 16 // 8 * 16 + j % 2"),
    ),
    rows_in_turn=(
        "Rows go to warps in turn.",
        edit("i // 16, i % 8 * 4", "i % 4, i % 8 * 4"),
    ),
)

within = wrong(
    scores_not_waited_for=(
        "The scores are masked while they are on their way.",
        edit("b_a = warpgroup_mma_wait(0, deps=(b_a,))\n"),
    ),
    wait_that_lets_go=(
        "The wait lets the only product go on.",
        edit(
            "b_a = warpgroup_mma_wait(0, deps=(b_a,))", "b_a = warpgroup_mma_wait(1, deps=(b_a,))"
        ),
    ),
    old_name=(
        "The result of the wait is not used.",
        edit("b_a = warpgroup_mma_wait(0, deps=(b_a,))", "warpgroup_mma_wait(0, deps=(b_a,))"),
    ),
    factor_given_away=(
        "The wait does not name the left factor: the compiler may give its registers away.",
        edit(
            "b_o, b_a = warpgroup_mma_wait(0, deps=(b_o, b_a))",
            "b_o = warpgroup_mma_wait(0, deps=(b_o,))",
        ),
    ),
    future_tokens=(
        "Each token reads the later ones.",
        edit("row >= col", "row <= col"),
    ),
    without_its_own=(
        "No token reads itself.",
        edit("row >= col", "row > col"),
    ),
    not_transposed=(
        "r k in place of r kᵀ.",
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
        "Right, but each product is waited for before the next one starts.",
        solutions("20_products_in_flight").A_WAIT_BEHIND_EACH,
    ),
    four_waits=(
        "Right, but the state is waited for by itself.",
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
    scores_too_early=(
        "The first wait lets the scores go on, too.",
        edit("warpgroup_mma_wait(2, deps=(b_a, b_r))", "warpgroup_mma_wait(3, deps=(b_a, b_r))"),
    ),
    no_wait_for_scores=(
        "The scores are masked while they are on their way.",
        edit("b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))\n"),
    ),
    output_too_early=(
        "The last wait lets o go on.",
        edit("warpgroup_mma_wait(0, deps=(b_o, b_s", "warpgroup_mma_wait(1, deps=(b_o, b_s"),
    ),
    right_most_of_the_time=(
        "r is given away while r S still reads it.",
        edit(
            "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))",
            "b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))",
        ),
    ),
    output_without_the_state=(
        "Scores times v replace r S.",
        edit(
            "s_v.index(i), b_o, is_async=True", "s_v.index(i), zeros, use_acc=False, is_async=True"
        ),
    ),
    state_of_one_chunk=(
        "The state starts anew with each chunk.",
        edit(
            "s_v.index(i), b_s, is_async=True", "s_v.index(i), zeros, use_acc=False, is_async=True"
        ),
    ),
    state_transposed=(
        "k v in place of kᵀ v.",
        edit("warpgroup_mma(k_by_channel, s_v", "warpgroup_mma(s_k.index(i), s_v"),
    ),
    next_tokens=(
        "v of the next chunk, which is on its way.",
        edit("b_o = warpgroup_mma(b_a, s_v.index(i)", "b_o = warpgroup_mma(b_a, s_v.index(1 - i)"),
    ),
)
