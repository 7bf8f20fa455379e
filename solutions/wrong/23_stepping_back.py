"""Wrong answers to 23_stepping_back."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong

step_back = wrong(
    z_of_the_state_after=(
        "Reads z from the state after the token.",
        edit("a @ rest / (1 + a @ faded)", "a @ s"),
    ),
    not_divided=(
        "Leaves out what z itself adds to `rest`.",
        edit("a @ rest / (1 + a @ faded)", "a @ rest"),
    ),
    sign_of_the_inverse=(
        "Uses 1 − a·b instead of 1 + a·b.",
        edit("(1 + a @ faded)", "(1 - a @ faded)"),
    ),
    decayed_again=(
        "Multiplies the state by the decay instead of dividing.",
        edit("torch.outer(k, v)) * torch.exp(-w)", "torch.outer(k, v)) * torch.exp(w)"),
    ),
    b_not_divided=(
        "Subtracts b undivided from the divided state.",
        edit("b * torch.exp(-w)", "b"),
    ),
    solved=(
        "Right, but by a solver.",
        instead("""
            before = torch.linalg.solve(
                torch.diag(w.exp()) + torch.outer(b, a), s - torch.outer(k, v)
            )
            return before, a @ before
        """),
    ),
    inverted=(
        "Right, but by the inverse of a matrix.",
        instead("""
            step = torch.diag(w.exp()) + torch.outer(b, a)
            before = step.inverse() @ (s - torch.outer(k, v))
            return before, a @ before
        """),
    ),
)

longest_span = wrong(
    one_too_many=(
        "Rounded up.",
        edit(
            "int(math.log(2**24 * error) / -math.log(decay))",
            "math.ceil(math.log(2**24 * error) / -math.log(decay))",
        ),
    ),
    float64_digits=(
        "Uses the digits of a float64.",
        edit("2**24", "2**53"),
    ),
    error_forgotten=(
        "Counts until everything is wrong instead of until the error.",
        edit("2**24 * error", "2**24"),
    ),
    not_an_integer=(
        "Not rounded.",
        edit(
            "int(math.log(2**24 * error) / -math.log(decay))",
            "math.log(2**24 * error) / -math.log(decay)",
        ),
    ),
)

forward_sweep = wrong(
    last_span_forgotten=(
        "Does not keep a span that is not full.",
        edit("((t + 1) % C == 0) | (t == T - 1)", "(t + 1) % C == 0"),
    ),
    spans_of_four=(
        "The length of a span is a number, right only for spans of four.",
        edit("((t + 1) % C == 0)", "((t + 1) % 4 == 0)"),
    ),
    kept_a_token_too_early=(
        "Keeps the state after the first token of a span instead of the last.",
        edit("((t + 1) % C == 0) | (t == T - 1)", "(t % C == 0) | (t == T - 1)"),
    ),
    z_of_the_state_after=(
        "Reads z again, from the state after the token.",
        edit(
            "tl.store(z + i_t * V + o_v, b_z, m_v)",
            "tl.store(z + i_t * V + o_v, tl.sum(b_a[:, None] * b_s, 0), m_v)",
        ),
    ),
    one_batch_row=(
        "All batch rows keep their states in the same place.",
        edit("(i_b * tl.cdiv(T, C) + t // C) * H + i_h", "t // C * H + i_h"),
    ),
    heads_in_front=(
        "Heads and spans are swapped.",
        edit(
            "(i_b * tl.cdiv(T, C) + t // C) * H + i_h", "(i_b * H + i_h) * tl.cdiv(T, C) + t // C"
        ),
    ),
)

backward_sweep = wrong(
    right_for_a_few_tokens=(
        "Uses only the last of the kept states.",
        edit("((t + 1) % C == 0) | (step == 0)", "step == 0"),
    ),
    multiplied_by_the_decay=(
        "The step back multiplies by the decay.",
        edit("tl.exp(-b_w)", "tl.exp(b_w)"),
    ),
    dr_of_the_state_before=(
        "dr reads the state before the token.",
        edit("b_dr = tl.sum(b_s * b_do[None, :], 1)"),
        edit(
            "b_s *= tl.exp(-b_w)[:, None]",
            """
            b_s *= tl.exp(-b_w)[:, None]
            b_dr = tl.sum(b_s * b_do[None, :], 1)
            """,
        ),
    ),
    da_of_the_state_after=(
        "da reads the state after the token.",
        edit("b_da = tl.sum(b_s * b_dz[None, :], 1)"),
        edit(
            "b_dr = tl.sum(b_s * b_do[None, :], 1)",
            """
             b_dr = tl.sum(b_s * b_do[None, :], 1)
             b_da = tl.sum(b_s * tl.sum((b_g + b_r[:, None] * b_do[None, :]) * b_b[:, None], 0), 1)
             """,
        ),
    ),
    output_forgotten=(
        "Adds r·do to G after G was used.",
        move("b_g += b_r[:, None] * b_do[None, :]", before="o_x = (i_v * B"),
    ),
    nothing_through_z=(
        "The gradient through z does not reach earlier states.",
        edit(" + b_a[:, None] * b_dz[None, :]"),
    ),
    decay_forgotten_in_dw=(
        "dw is the gradient of the decay, not of its log.",
        edit("tl.exp(b_w) * tl.sum(b_s * b_g, 1)", "tl.sum(b_s * b_g, 1)"),
    ),
    decay_of_the_values=(
        "G decays along the values.",
        edit("tl.exp(b_w)[:, None] * b_g", "b_g * tl.sum(tl.exp(b_w)) / K"),
    ),
)
