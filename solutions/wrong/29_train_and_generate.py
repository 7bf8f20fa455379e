"""Wrong answers to 29_train_and_generate."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

shifted = wrong(
    rolled=(
        "The last token comes round to the first place.",
        edit("torch.cat([before[:, None], x[:, :-1]], 1)", "x.roll(1, 1)"),
    ),
    zeros_first=(
        "Puts zeros in the first place instead of `before`.",
        edit("before[:, None]", "torch.zeros_like(before)[:, None]"),
    ),
    the_token_after=(
        "Returns the token after each one.",
        edit("[before[:, None], x[:, :-1]]", "[x[:, 1:], before[:, None]]"),
    ),
    one_too_many=(
        "Puts all of x after `before`: one token too many.",
        edit("x[:, :-1]", "x"),
    ),
    not_shifted=(
        "x as it is.",
        edit("torch.cat([before[:, None], x[:, :-1]], 1)", "x + 0 * before[:, None]"),
    ),
)

rates = wrong(
    never_quite_there=(
        "Divides by C, so the last channel does not reach -1.",
        edit("torch.arange(C) / (C - 1)", "torch.arange(C) / C"),
    ),
    a_straight_line=(
        "Uses no power, so the channels are spread evenly.",
        edit("n ** (0.7 + 1.3 * depth)", "n"),
    ),
    same_in_all_layers=(
        "Ignores the depth.",
        edit("(0.7 + 1.3 * depth)", "0.7"),
    ),
    turned_around=(
        "The first channel forgets fastest.",
        edit("-6 + 5 * n", "-1 - 5 * n"),
    ),
    the_decay_itself=(
        "Returns the decay instead of its x.",
        edit(
            "return -6 + 5 * n ** (0.7 + 1.3 * depth)",
            "return (-(-6 + 5 * n ** (0.7 + 1.3 * depth)).exp()).exp()",
        ),
    ),
)

learns = wrong(
    decay_anywhere=(
        'Counts every name that contains "decay".',
        edit('name.endswith("decay")', '"decay" in name'),
    ),
    every_weight=(
        "Norms get a weight decay.",
        edit('ndim == 2 and name.endswith("weight")', 'name.endswith("weight")'),
    ),
    everything_of_two_axes=(
        "Bonuses get a weight decay.",
        edit('ndim == 2 and name.endswith("weight")', "ndim == 2"),
    ),
    a_fixed_decay=(
        "Ignores the given weight decay.",
        edit("weight_decay if matrix", "0.1 if matrix"),
    ),
    half_as_fast=(
        "Decays learn at half the rate.",
        edit("2.0 if", "0.5 if"),
    ),
)

kernel = wrong(
    reads_the_new_state=(
        "o reads the state after the token.",
        edit(
            "(b_s + b_u[:, None] * b_kv)",
            "(tl.exp(b_w)[:, None] * b_s + b_kv + b_u[:, None] * b_kv)",
        ),
    ),
    no_bonus=(
        "The token does not read itself through the bonus.",
        edit("b_s + b_u[:, None] * b_kv", "b_s + b_kv"),
    ),
    decays_the_token=(
        "What the token writes decays at once.",
        edit("tl.exp(b_w)[:, None] * b_s + b_kv", "tl.exp(b_w)[:, None] * (b_s + b_kv)"),
    ),
    right_for_one_sequence=(
        "Reads u as if it were [B, H, K].",
        edit("u + i_bh % H * K", "u + i_bh * K"),
    ),
    decay_not_exp=(
        "Multiplies the state by the log decay.",
        edit("tl.exp(b_w)[:, None] * b_s", "b_w[:, None] * b_s"),
    ),
    no_mask=(
        "Stores values past the end.",
        edit("tl.store(o + i_bh * V + o_v, b_o, m_v)", "tl.store(o + i_bh * V + o_v, b_o)"),
    ),
    state_not_written=(
        "The new state is the old one.",
        edit("tl.exp(b_w)[:, None] * b_s + b_kv, m_s", "b_s, m_s"),
    ),
)
