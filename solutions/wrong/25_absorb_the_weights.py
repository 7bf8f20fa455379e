"""Wrong answers to 25_absorb_the_weights."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

absorbed = wrong(
    published_baseline=(
        "The right answer, but the product repeats the latent for every head.",
        instead(
            """
            latent, k_rope = latent[:, None], k_rope[:, None]
            q_latent = torch.einsum("bhk,hkr->bhr", q, w_k)
            s = q_latent[:, :, None] @ latent.mT + q_rope[:, :, None] @ k_rope.mT
            p = (s * scale).softmax(-1)
            o = p @ latent
            return torch.einsum("bhr,hvr->bhv", o[:, :, 0], w_v)
            """
        ),
    ),
    scale_of_its_own=(
        "Scales by the size of a key, whatever the scale is.",
        edit("* scale", "* (q.shape[-1] + q_rope.shape[-1]) ** -0.5"),
    ),
    token_by_token=(
        "Computes values after all, for one token at a time.",
        edit(
            """
            return torch.einsum("bhr,hvr->bhv", p @ latent, w_v)
            """,
            """
            o = 0
            for n in range(latent.shape[1]):
                o = o + p[:, :, n, None] * torch.einsum("br,hvr->bhv", latent[:, n], w_v)
            return o
            """,
        ),
    ),
    rope_unscaled=(
        "Scales only the part without RoPE.",
        edit("q_latent @ latent.mT", "q_latent @ latent.mT * scale"),
        edit("(s * scale)", "s"),
    ),
    softmax_over_heads=(
        "Takes the softmax over the heads.",
        edit("softmax(-1)", "softmax(1)"),
    ),
    values_first=(
        "The right answer, but computes every head's values for every token.",
        edit(
            'return torch.einsum("bhr,hvr->bhv", p @ latent, w_v)',
            """
            v = torch.einsum("bnr,hvr->bnhv", latent, w_v)
            return torch.einsum("bhn,bnhv->bhv", p, v)
            """,
        ),
    ),
)

value_flops = wrong(
    early_for_every_row=(
        "Computes the values again for every row.",
        edit("early = 2 * N * R * V", "early = 2 * rows * N * R * V"),
    ),
    late_weights_every_token=(
        "Applies w_v to every token in both ways.",
        edit("2 * rows * R * V", "2 * N * R * V"),
    ),
)

break_even = wrong(
    early_for_every_row=(
        "Computes the values again for every row.",
        edit("V / (1 - V / R)", "R / V"),
    ),
    rank_over_both=(
        "Adds the products instead of subtracting them.",
        edit("1 - V / R", "1 + V / R"),
    ),
)
