"""Wrong answers to 14_recurrent_gradients."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

forward_sweep = wrong(
    one_decay_too_many=(
        "A token's own contribution decays at once.",
        edit("b_s + b_k[:, None] * b_v[None, :]", "(b_s + b_k[:, None] * b_v[None, :])"),
    ),
    state_moves_first=(
        "The state is updated before it is read.",
        move(
            "b_s = tl.exp(b_w)[:, None] * b_s + b_k[:, None] * b_v[None, :]",
            before="b_dr = tl.sum(",
        ),
    ),
    sums_over_keys=(
        "The sum runs over the keys, not over the values.",
        edit("b_do[None, :], 1)", "b_do[None, :], 0)"),
    ),
)

backward_sweep = wrong(
    chunks_of_one_row=(
        "Every batch row reads the kept states of the first.",
        edit("(i_b * tl.cdiv(T, C) + t // C) * H + i_h", "(t // C) * H + i_h"),
    ),
    first_token_first=(
        "The reverse sweep runs from the first token to the last.",
        edit("t = T - 1 - step", "t = step"),
    ),
    gradient_moves_first=(
        "G goes one token back before it is used.",
        move(
            "b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * b_do[None, :]",
            before="b_dk = tl.sum(",
        ),
    ),
    full_chunks_only=(
        "Ignores the end of a last chunk that is not full.",
        edit("((t + 1) % C == 0) | (step == 0)", "(t + 1) % C == 0"),
    ),
    products_in_16_bits=(
        "r·do of bfloat16 inputs is rounded to bfloat16.",
        edit("r + i_t * K + o_k, m_k, 0).to(tl.float32)", "r + i_t * K + o_k, m_k, 0)"),
        edit("do + i_t * V + o_v, m_v, 0).to(tl.float32)", "do + i_t * V + o_v, m_v, 0)"),
    ),
    last_state_forgotten=(
        "Ignores the gradient of the final state.",
        edit("tl.load(ds1 + i_bh * K * V + o_s, m_s, 0)", "tl.zeros([BK, BV], tl.float32)"),
    ),
    masks_swapped=(
        "Stores dv under the mask of the keys.",
        edit("b_dv, m_v)", "b_dv, m_k)"),
    ),
    one_share_for_all=(
        "All blocks of values write their partial sums of dk to the same place.",
        edit("(i_v * B * T * H + i_t)", "i_t"),
    ),
    sums_after_it_moved=(
        "Computes the sums of S·G from the G of one token earlier.",
        move(
            "b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * b_do[None, :]",
            before="if ((t + 1) % C == 0)",
        ),
    ),
)

bonus_gradients = wrong(
    du_of_every_token=(
        "du is not summed over the tokens.",
        edit("(r * k * v_do).sum(1)", "(r * k * v_do)[:, -1]"),
    ),
    keys_and_queries_swapped=(
        "dr and dk have changed places.",
        edit("u * k * v_do, u * r * v_do", "u * r * v_do, u * k * v_do"),
    ),
)

decay_gradient = wrong(
    earlier_tokens=(
        "The sum runs over the earlier tokens, not the later ones.",
        edit(", reverse=True"),
    ),
    one_term_missing=(
        "The token's own r·dr is not removed from its dw.",
        edit(" - b_rdr"),
    ),
    own_key_out=(
        "The token's own k·dk is removed from its dw as well.",
        edit(" - b_rdr", " - b_rdr + b_kdk"),
    ),
    starts_from_zero=(
        "Leaves out what later chunks contribute.",
        edit("b_a[None, :] + "),
    ),
)

through_states = wrong(
    chunks_rounded_down=(
        "Allocates no memory for the state after a last chunk that is not full.",
        edit("s0.new_empty(B, chunks, H, K, V)", "s0.new_empty(B, max(1, T // 64), H, K, V)"),
    ),
    first_share_only=(
        "The partial sums of the other blocks are not added.",
        edit("(x.sum(0) for x in", "(x[0] for x in"),
    ),
    keys_and_values_swapped=(
        "Allocates as many partial sums of dv as there are blocks of values.",
        edit("s0.new_empty(NK, *v.shape)", "s0.new_empty(NV, *v.shape)"),
    ),
    over_the_final_gradient=(
        "Writes the gradient of the initial state over that of the final one.",
        edit("torch.empty_like(s0)", "ds1"),
    ),
    shares_in_16_bits=(
        "The partial sums have the type of r.",
        edit("s0.new_empty(2, NV, *r.shape)", "r.new_empty(2, NV, *r.shape)"),
    ),
    state_before_the_tokens=(
        "The backward sweep starts from the initial state.",
        edit("backward_sweep[grid](r, k, v, w, ds1,", "backward_sweep[grid](r, k, v, w, s0,"),
    ),
)
