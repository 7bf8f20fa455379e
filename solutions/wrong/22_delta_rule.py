"""Wrong answers to 22_delta_rule."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

loop = wrong(
    reads_the_decayed_state=(
        "The state decays before a reads it.",
        edit(
            """
            z = a[t] @ s
            s = w[t].exp()[:, None] * s + torch.outer(b[t], z) + torch.outer(k[t], v[t])
            """,
            """
            s = w[t].exp()[:, None] * s
            s = s + torch.outer(b[t], a[t] @ s) + torch.outer(k[t], v[t])
            """,
        ),
    ),
    output_first=(
        "o reads the state from before the token.",
        move("o[t] = r[t] @ s", before="z = a[t] @ s"),
    ),
    a_and_b_exchanged=(
        "a and b are swapped: b reads, a writes.",
        edit("a[t] @ s", "b[t] @ s"),
        edit("torch.outer(b[t], z)", "torch.outer(a[t], z)"),
    ),
    nothing_removed=(
        "Nothing is taken out: this is RWKV-6 without its bonus.",
        edit(" + torch.outer(b[t], z)"),
    ),
    decay_of_the_values=(
        "The decay multiplies columns instead of rows.",
        edit("w[t].exp()[:, None] * s", "(w[t].exp()[:, None] * s.mT[: len(w[t])]).mT"),
    ),
)

tile = wrong(
    square=(
        "Uses a square tile, as in lesson 13.",
        edit("BK = triton.next_power_of_2(K)", "BK = 32"),
    ),
    no_power_of_two=(
        "BK is the number of keys, not a power of two.",
        edit("BK = triton.next_power_of_2(K)", "BK = K"),
    ),
    more_values_than_there_are=(
        "Uses all elements, even if V needs fewer.",
        edit("min(triton.next_power_of_2(V), elements // BK)", "elements // BK"),
    ),
    no_value_left=(
        "With many keys, BV becomes 0.",
        edit(
            "max(1, min(triton.next_power_of_2(V), elements // BK))",
            "min(triton.next_power_of_2(V), elements // BK)",
        ),
    ),
    values_covered_by_half=(
        "BV is rounded down and does not cover V.",
        edit("min(triton.next_power_of_2(V), ", "min(1 << (V.bit_length() - 1), "),
    ),
)

kernel = wrong(
    at_most_128_tokens=(
        "Leaves out all tokens after the first 128.",
        edit("range(T)", "range(tl.minimum(T, 128))"),
    ),
    right_for_the_first_token=(
        "The state decays before a reads it.",
        edit(
            """
            b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
            b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]
            """,
            """
            b_s *= tl.exp(b_w)[:, None]
            b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
            b_s += b_b[:, None] * b_z[None, :]
            """,
        ),
    ),
    output_before_the_token=(
        "o reads the state before k·v is added.",
        move(
            "tl.store(o + i_t * V + o_v, tl.sum(b_r[:, None] * b_s, 0), m_v)",
            before="b_s += b_k[:, None] * b_v[None, :]",
        ),
    ),
    reads_what_it_wrote=(
        "z reads the state with k·v already in it.",
        move("b_s += b_k[:, None] * b_v[None, :]", before="b_z = tl.sum("),
    ),
    sums_over_values=(
        "z sums over the values: the shape is right if K = V.",
        edit("b_z = tl.sum(b_a[:, None] * b_s, 0)", "b_z = tl.sum(b_s, 0) * tl.sum(b_a, 0)"),
    ),
    always_the_first_block=(
        "Every program takes the first block of values.",
        edit("i_v * BV + tl.arange(0, BV)", "tl.arange(0, BV)"),
    ),
    batch_forgotten=(
        "All batch rows read the tokens of the first.",
        edit("(i_bh // H * T + t) * H", "t * H"),
    ),
    tail_unmasked=(
        "Keys and values past the end are not masked.",
        edit("o_k < K, o_v < V", "o_k >= 0, o_v >= 0"),
    ),
    first_state_forgotten=(
        "Every head starts from a zero state.",
        edit("b_s = tl.load(s0 + o_s, m_s, 0)", "b_s = tl.zeros([BK, BV], tl.float32)"),
    ),
)
