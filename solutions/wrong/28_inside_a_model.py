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
    mask_forgotten=(
        "Ignores the mask.",
        edit(" + attention_mask"),
    ),
    mask_too_weak=(
        "The mask is too weak: hidden tokens still count a little.",
        edit("+ attention_mask", "+ attention_mask.clamp_min(-1) * scaling"),
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
