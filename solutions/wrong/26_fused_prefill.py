"""Wrong answers to 26_fused_prefill."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

online = wrong(
    grows_instead_of_shrinking=(
        "The sums grow where they should shrink.",
        edit("torch.exp(m - larger)", "torch.exp(larger - m)"),
    ),
    largest_of_all_rows=(
        "Uses one maximum for all rows, so quiet rows vanish.",
        edit("block.max(1).values", "block.max()"),
    ),
    largest_of_the_first_block=(
        "Subtracts the first block's maximum from all scores: overflows if they grow.",
        edit("torch.maximum(m, block.max(1).values)", "m if n else block.max(1).values"),
        edit("torch.exp(m - larger)", "torch.ones_like(m)"),
    ),
    largest_of_the_block=(
        "The block's maximum replaces the maximum so far.",
        edit("torch.maximum(m, block.max(1).values)", "block.max(1).values"),
    ),
    no_largest=(
        "Does not subtract the largest score.",
        edit("torch.exp(block - larger[:, None])", "torch.exp(block)"),
        edit("torch.exp(m - larger)", "torch.ones_like(m)"),
    ),
    sums_never_shrink=(
        "Does not rescale the sums over earlier blocks when the maximum grows.",
        edit("shrink[:, None] * acc", "acc"),
    ),
    two_passes=(
        "The right answer, but from all scores at once.",
        instead("return s.softmax(1) @ latent"),
    ),
)

prefill = wrong(
    as_many_tokens_as_queries=(
        "Assumes that the prompt is the whole sequence.",
        edit("M, N, scale", "M, M, scale"),
    ),
    heads_first=(
        "The axes of the grid are swapped.",
        edit("ceil_div(M, 64), B * H", "B * H, ceil_div(M, 64)"),
    ),
    in_float32=(
        "The output has a different type than the inputs.",
        edit("dtype=w_v.dtype, "),
    ),
    one_block_of_queries=(
        "Queries after the first 64 have no program.",
        edit("ceil_div(M, 64)", "1"),
    ),
    program_per_query=(
        "Starts a program for each query: all but the first few have nothing to do.",
        edit("ceil_div(M, 64)", "M"),
    ),
)

kernel = wrong(
    as_published=(
        "Assumes that one query sees everything, so uses no mask.",
        edit(
            'b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))',
            """
            b_s = b_s * scale
            if M > 1:
                b_s = tl.where(o_n[None, :] <= own[:, None], b_s, -float("inf"))
            """,
        ),
    ),
    divided_too_early=(
        "Divides each block by its own sum.",
        edit("shrink * b_sum + tl.sum(b_p, 1)", "tl.sum(b_p, 1)"),
    ),
    first_values_only=(
        "Every head has the values of head 0.",
        edit("(i_h * V + o_v[None, :]) * R", "o_v[None, :] * R"),
    ),
    last_block_forgotten=(
        "The loop ends before a block that is not full.",
        edit(
            "tl.minimum(N, N - M + (i_m + 1) * BM)",
            "tl.minimum(N, N - M + (i_m + 1) * BM) // BN * BN",
        ),
    ),
    latents_of_the_first_row=(
        "Every batch row reads the latents of the first.",
        edit("i_b * N + o_n[:, None]", "o_n[:, None]"),
    ),
    maximum_of_columns=(
        "The maximum runs over queries instead of tokens.",
        edit("tl.max(b_s, 1)", "tl.max(b_s, 0)"),
    ),
    no_maximum=(
        "Does not subtract the maximum: exp overflows.",
        edit('b_max = tl.full([BM], -float("inf"), tl.float32)'),
        edit("tl.maximum(b_max, tl.max(b_s, 1))", "tl.zeros([BM], tl.float32)"),
        edit("tl.exp(b_max - larger)", "tl.full([BM], 1.0, tl.float32)"),
        edit("b_max = larger"),
    ),
    old_sums_stay=(
        "Does not rescale the sums over earlier blocks when the maximum grows.",
        edit("shrink[:, None] * b_acc", "b_acc"),
    ),
    own_token_hidden=(
        "A query does not see its own token.",
        edit("<= own", "< own"),
    ),
    queries_at_the_start=(
        "Treats the queries as the first tokens of the sequence.",
        edit("own = N - M + o_m", "own = o_m"),
        edit("N - M + (i_m + 1) * BM", "(i_m + 1) * BM"),
    ),
)
