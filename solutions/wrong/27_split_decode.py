"""Wrong answers to 27_split_decode."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

partial = wrong(
    last_split_too_long=(
        "The last split does not end with the sequence.",
        edit("tl.minimum(N, (i_s + 1) * SPLIT)", "(i_s + 1) * SPLIT"),
    ),
    not_divided=(
        "The parts are sums, not averages.",
        edit("b_part = b_acc / b_sum[:, None]", "b_part = b_acc"),
    ),
    rows_without_heads=(
        "Rows for heads that do not exist are loaded and stored.",
        edit("m_h = o_h < H", "m_h = o_h >= 0"),
    ),
    sum_without_its_maximum=(
        "The log-sum-exp lacks the maximum that was subtracted.",
        edit("b_max + tl.log(b_sum)", "tl.log(b_sum)"),
    ),
    tiles_for_heads=(
        "The number of the tile is taken for that of its first head.",
        edit("o_h = i_h * BH +", "o_h = i_h +"),
    ),
)

combine = wrong(
    earlier_splits_stay=(
        "What earlier splits left is not shrunk when the largest grows.",
        edit("shrink[:, None] * b_acc", "b_acc"),
    ),
    overflow_again=(
        "The log-sum-exps are taken back to sums: exp overflows.",
        edit("tl.exp(b_lse - larger)", "tl.exp(b_lse)"),
        edit("tl.exp(b_max - larger)", "tl.exp(b_lse - b_lse)"),
    ),
    right_for_one_split=(
        "All splits count the same, however much was in them.",
        edit("tl.exp(b_lse - larger)", "tl.exp(b_lse - b_lse)"),
        edit("tl.exp(b_max - larger)", "tl.exp(b_lse - b_lse)"),
    ),
)

tokens_per_split = wrong(
    a_few_too_many=(
        "Rounded up: some programs have to wait for a second turn.",
        edit("max(1, places // (B * tiles))", "ceil_div(places, B * tiles)"),
    ),
    batch_forgotten=(
        "The programs of other batch rows are forgotten: far too many splits.",
        edit("max(1, places // (B * tiles))", "places"),
    ),
    broken_blocks=(
        "A split is cut in the middle of a block.",
        edit("ceil_div(ceil_div(N, splits), BN) * BN", "ceil_div(N, splits)"),
    ),
    tiles_take_no_place=(
        "Tiles of heads are programs too, and are forgotten.",
        edit("(B * tiles)", "B"),
    ),
)
