"""Wrong answers to 13_fused_recurrent."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

grid = wrong(
    batch_forgotten=(
        "The batch rows are forgotten.",
        edit("B * H", "H"),
    ),
    keys_first=(
        "Keys and values have changed places.",
        edit("ceil_div(V, BV), ceil_div(K, BK)", "ceil_div(K, BK), ceil_div(V, BV)"),
    ),
    rounds_down=(
        "The last block of keys and of values has no program.",
        edit("ceil_div(V, BV), ceil_div(K, BK)", "V // BV, K // BK"),
    ),
)

kernel = wrong(
    always_the_first_block=(
        "Every program takes the first keys and the first values.",
        edit("i_v, i_k, i_bh = tl.program_id(0), ", "i_k, i_bh = "),
        edit("i_k * BK + tl.arange(0, BK)", "tl.arange(0, BK)"),
        edit("i_v * BV + tl.arange(0, BV)", "tl.arange(0, BV)"),
    ),
    right_for_32_keys=(
        "The blocks of keys write their shares to one place.",
        edit("(i_k * B * T * H + i_t)", "i_t"),
    ),
    decay_of_the_values=(
        "The decay multiplies columns, not rows.",
        edit("tl.exp(b_w)[:, None]", "tl.exp(b_w)[None, :]"),
    ),
    exp_forgotten=(
        "The log decay is used as the decay.",
        edit("tl.exp(b_w)", "b_w"),
    ),
    state_first=(
        "The state takes the token in before the output is computed.",
        move("b_s = tl.exp(b_w)[:, None] * b_s + b_kv", before="b_o = tl.sum("),
    ),
    sums_over_values=(
        "The sum runs over the values, not over the keys.",
        edit("b_kv + b_s), 0)", "b_kv + b_s), 1)"),
    ),
    tail_unmasked=(
        "The keys and values past the end are not masked.",
        edit("o_k < K, o_v < V", "o_k >= 0, o_v >= 0"),
    ),
)
