"""Wrong answers to 28_inside_a_model."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

attention = wrong(
    right_for_one_head=(
        "Cuts the weight as if all heads' keys came first.",
        edit(
            "w_k, w_v = module.kv_b_proj.weight.unflatten(0, (H, K + V)).split([K, V], 1)",
            """
            w_k, w_v = module.kv_b_proj.weight.split([H * K, H * V])
            w_k, w_v = w_k.unflatten(0, (H, K)), w_v.unflatten(0, (H, V))
            """,
        ),
    ),
    heads_before_queries=(
        "The output has heads before queries.",
        edit("o.transpose(1, 2), None", "o, None"),
    ),
    weights_as_well=(
        "Returns the attention weights, which a model then keeps from every layer.",
        edit("o.transpose(1, 2), None", "o.transpose(1, 2), p"),
    ),
    latent_repeated=(
        "The right answer, but the product repeats the latent for every head.",
        edit("q_latent @ latent.mT", "((q @ w_k) @ latent.mT[:, None]).flatten(1, 2)"),
    ),
    mask_forgotten=(
        "Ignores the mask.",
        edit(" + attention_mask"),
    ),
    mask_too_weak=(
        "The mask is too weak: hidden tokens still count a little.",
        edit("+ attention_mask", "+ attention_mask.clamp_min(-1) * scaling"),
    ),
    scale_of_its_own=(
        "Scales by the size of a key, whatever the model asks for.",
        edit("* scaling", "* (K + P) ** -0.5"),
    ),
    token_by_token=(
        "Computes values after all, for one token at a time.",
        edit(
            "o = (p.flatten(1, 2) @ latent).unflatten(1, (H, M)) @ w_v.mT",
            """
            o = 0
            for n in range(latent.shape[1]):
                o = o + p[..., n, None] * (latent[:, n] @ w_v.mT).transpose(0, 1)[:, :, None]
            """,
        ),
    ),
    rope_unscaled=(
        "Scales only the part without RoPE.",
        edit("q_latent @ latent.mT", "q_latent @ latent.mT * scaling"),
        edit("(H, M)) * scaling", "(H, M))"),
    ),
)

tokens_that_fit = wrong(
    one_layer=(
        "Ignores that every layer has its own cache.",
        edit("B * layers * numbers", "B * numbers"),
    ),
    one_too_many=(
        "Rounds up: the last token does not fit.",
        edit("int(bytes //", "-int(-bytes //"),
    ),
)
