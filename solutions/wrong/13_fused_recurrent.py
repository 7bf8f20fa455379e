"""Wrong answers to 13_fused_recurrent."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

grid = wrong(
    batch_forgotten=(
        "Forgets the batch rows.",
        edit("B * H", "H"),
    ),
    keys_first=(
        "Exchanges keys and values.",
        edit("ceil_div(V, BV), ceil_div(K, BK)", "ceil_div(K, BK), ceil_div(V, BV)"),
    ),
    rounds_down=(
        "The last block of keys and of values has no program.",
        edit("ceil_div(V, BV), ceil_div(K, BK)", "V // BV, K // BK"),
    ),
)

forward = wrong(
    first_share_only=(
        "The partial sums of the other blocks of keys are not added.",
        edit("o_parts.sum(0)", "o_parts[0]"),
    ),
    keys_for_values=(
        "Assumes that a head has as many values as keys.",
        edit("V = v.shape[-1]", "V = K"),
    ),
    one_head_only=(
        "Leaves out the third axis of the grid.",
        edit("kernel[programs](", "kernel[programs[:2]]("),
    ),
    over_the_state=(
        "Writes the new state over the initial one.",
        edit("s1 = torch.empty_like(s0)", "s1 = s0"),
    ),
    places_for_one_block=(
        "Allocates one partial sum of o, although every block of keys writes one.",
        edit("programs[1], B, T, H, V", "1, B, T, H, V"),
    ),
    token_by_token=(
        "Launches once for every token, and the state goes through memory each time.",
        edit(
            "kernel[programs](r, k, v, w, u, s0, o_parts, s1, **constants)",
            """
            s = s0
            for t in range(T):
                one = [x[:, t : t + 1].contiguous() for x in (r, k, v, w)]
                o_t = v.new_empty(programs[1], B, 1, H, V)
                kernel[programs](*one, u, s, o_t, s1, **(constants | {"T": 1}))
                o_parts[:, :, t], s = o_t[:, :, 0], s1.clone()
            """,
        ),
    ),
)

kernel = wrong(
    at_most_128_tokens=(
        "Leaves out the tokens after the first 128.",
        edit("range(T)", "range(tl.minimum(T, 128))"),
    ),
    always_the_first_block=(
        "Every program uses the first keys and the first values.",
        edit("i_v, i_k, i_bh = tl.program_id(0), ", "i_k, i_bh = "),
        edit("i_k * BK + tl.arange(0, BK)", "tl.arange(0, BK)"),
        edit("i_v * BV + tl.arange(0, BV)", "tl.arange(0, BV)"),
    ),
    products_in_16_bits=(
        "k·v of bfloat16 inputs is rounded to bfloat16.",
        edit("k + i_t * K + o_k, m_k, 0).to(tl.float32)", "k + i_t * K + o_k, m_k, 0)"),
        edit("v + i_t * V + o_v, m_v, 0).to(tl.float32)", "v + i_t * V + o_v, m_v, 0)"),
    ),
    right_for_32_keys=(
        "All blocks of keys write their partial sums to the same place.",
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
    bonus_of_the_first_head=(
        "Every head uses the bonus of head 0.",
        edit("u + i_h * K + o_k", "u + o_k"),
    ),
    heads_before_tokens=(
        "Assumes that the tokens of a head follow one another in memory.",
        edit("(i_b * T + t) * H + i_h", "i_bh * T + t"),
    ),
    last_token_left_out=(
        "The loop ends one token too early.",
        edit("for t in range(T):", "for t in range(T - 1):"),
    ),
    values_in_steps_of_keys=(
        "A token's values start where they would if there were as many values as keys.",
        edit("v + i_t * V + o_v", "v + i_t * K + o_v"),
    ),
    starts_from_zero=(
        "Ignores the initial state.",
        edit("b_s = tl.load(s0 + o_s, m_s, 0)", "b_s = tl.zeros([BK, BV], tl.float32)"),
    ),
    state_first=(
        "The state absorbs the token before the output is computed.",
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
