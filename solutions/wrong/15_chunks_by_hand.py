"""Wrong answers to 15_chunks_by_hand."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

with_state = wrong(
    every_token_fades_itself=(
        "A token reads a state that has already faded by the token's own decay.",
        edit("r * before.exp()", "r * after.exp()"),
    ),
    new_tokens_do_not_fade=(
        "The old state fades over the chunk, but the chunk's contribution does not.",
        edit("(k * (last - after).exp()).mT", "k.mT"),
    ),
    values_fade=(
        "The columns of the state fade instead of its rows: a decay belongs to a key.",
        edit("last.exp().mT", "last.exp()"),
    ),
    last_outside_the_sum=(
        "Takes the exp of -after, which overflows with strong decays.",
        edit("(k * (last - after).exp()).mT @ v", "last.exp().mT * ((k * (-after).exp()).mT @ v)"),
    ),
)

pairs = wrong(
    fades_at_once=(
        "A token's key fades by the token's own decay before any token has read it.",
        edit("- after[..., None, :, :]", "- before[..., None, :, :]"),
    ),
    nan_at_fast_decays=(
        "Takes the exp of every pair first, and multiplies the later ones by zero.",
        edit("decay.masked_fill(later, -torch.inf).exp()", "decay.exp() * ~later"),
    ),
)

product = wrong(
    always_from_the_first=(
        "Always counts from the chunk's first token, whatever m is.",
        edit("before[..., m : m + 1, :]", "before[..., :1, :]"),
    ),
    pair_by_pair=(
        "The right scores, but with an exp for every pair of tokens and channel.",
        instead("return pairs(r, k, w)"),
    ),
    start_on_one_side=(
        "Only the queries count from the middle, so the start does not cancel.",
        edit("k * (start - after).exp()", "k * (-after).exp()"),
    ),
    later_times_zero=(
        "Multiplies the later tokens' products by 0, and some of them are infinite.",
        edit(
            "(left @ right.mT).tril(-1)",
            "left @ right.mT * torch.ones(len(r[0]), len(r[0])).tril(-1)",
        ),
    ),
)

blocks = wrong(
    from_the_blocks_end=(
        "Queries count from the start of their block, keys from its end, so the block's own "
        "decay is lost.",
        edit(
            "(start - after[..., :i, :])", "(after[..., i + L - 1 : i + L, :] - after[..., :i, :])"
        ),
    ),
    from_the_chunks_start=(
        "Left of the diagonal it counts from the chunk's first token, so the keys' factor "
        "overflows.",
        edit("before[..., i : i + 1, :]", "before[..., :1, :]"),
    ),
    never_from_the_middle=(
        "Counts every block from its first token, on the diagonal too, so the keys' factor "
        "overflows.",
        edit("m=L // 2", "m=0"),
    ),
    only_the_diagonal=(
        "The blocks on the diagonal are right, but no token reads an earlier block.",
        edit(
            """
            start = before[..., i : i + 1, :]
            left = r[..., here, :] * (before[..., here, :] - start).exp()
            right = k[..., :i, :] * (start - after[..., :i, :]).exp()
            scores[..., here, :i] = left @ right.mT
            """
        ),
    ),
)
