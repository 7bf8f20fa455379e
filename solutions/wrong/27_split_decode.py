"""Wrong answers to 27_split_decode."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

partial = wrong(
    last_split_too_long=(
        "The last split does not end with the sequence.",
        edit("tl.minimum(N, (i_s + 1) * SPLIT)", "(i_s + 1) * SPLIT"),
    ),
    not_divided=(
        "The parts are sums instead of averages.",
        edit("b_part = b_acc / b_sum[:, None]", "b_part = b_acc"),
    ),
    rows_without_heads=(
        "Loads and stores rows for heads that do not exist.",
        edit("m_h = o_h < H", "m_h = o_h >= 0"),
    ),
    sum_without_its_maximum=(
        "The log-sum-exp lacks the subtracted maximum.",
        edit("b_max + tl.log(b_sum)", "tl.log(b_sum)"),
    ),
    tiles_for_heads=(
        "Treats the number of the tile as that of its first head.",
        edit("o_h = i_h * BH +", "o_h = i_h +"),
    ),
)

combine = wrong(
    earlier_splits_stay=(
        "Does not rescale the sums of earlier splits when the largest grows.",
        edit("shrink[:, None] * b_acc", "b_acc"),
    ),
    first_values_only=(
        "Every head has the values of head 0.",
        edit("(i_h * V + o_v[None, :]) * R", "o_v[None, :] * R"),
    ),
    heads_before_splits=(
        "Assumes that the splits of a head are adjacent in memory.",
        edit("(o_b * S + s) * H + i_h", "(o_b * H + i_h) * S + s"),
    ),
    last_split_left_out=(
        "With several splits, the loop ends one split too early.",
        edit("range(S)", "range(tl.maximum(S - 1, 1))"),
    ),
    overflow_again=(
        "Converts the log-sum-exps back to sums: exp overflows.",
        edit("tl.exp(b_lse - larger)", "tl.exp(b_lse)"),
        edit("tl.exp(b_max - larger)", "tl.exp(b_lse - b_lse)"),
    ),
    right_for_one_split=(
        "All splits count the same, whatever their weight.",
        edit("tl.exp(b_lse - larger)", "tl.exp(b_lse - b_lse)"),
        edit("tl.exp(b_max - larger)", "tl.exp(b_lse - b_lse)"),
    ),
)

decode = wrong(
    between_in_float16=(
        "The tensors between the kernels have the type of the inputs.",
        edit(
            "part_lse = torch.empty(B, splits, H, device",
            "part_lse = torch.empty(B, splits, H, dtype=w_v.dtype, device",
        ),
    ),
    full_splits_only=(
        "The last tokens have no split if they do not fill one.",
        edit("splits = ceil_div(N, split)", "splits = max(1, N // split)"),
    ),
    an_empty_split=(
        "Adds a split without tokens if N is a multiple of split.",
        edit("splits = ceil_div(N, split)", "splits = N // split + 1"),
    ),
    never_split=(
        "Ignores split: one program takes the whole sequence.",
        edit("splits = ceil_div(N, split)", "split, splits = ceil_div(N, 64) * 64, 1"),
    ),
    one_tile_of_heads=(
        "Heads after the first 64 have no program.",
        edit("ceil_div(H, 64), B]", "1, B]"),
    ),
    program_per_row=(
        "Starts a program of `combine` for each batch row; one handles 16.",
        edit("combine[H, ceil_div(B, 16)]", "combine[H, B]"),
    ),
    tokens_for_splits=(
        "Passes the tokens per split to `combine` instead of the number of splits.",
        edit("o, B, splits, H=H", "o, B, split, H=H"),
    ),
)

tokens_per_split = wrong(
    a_few_too_many=(
        "Rounds up: some programs wait for a second wave.",
        edit("max(1, places // (B * tiles))", "ceil_div(places, B * tiles)"),
    ),
    batch_forgotten=(
        "Ignores the other batch rows: far too many splits.",
        edit("max(1, places // (B * tiles))", "places"),
    ),
    broken_blocks=(
        "Cuts a split in the middle of a block.",
        edit("ceil_div(ceil_div(N, splits), BN) * BN", "ceil_div(N, splits)"),
    ),
    tiles_take_no_place=(
        "Ignores that tiles of heads are programs, too.",
        edit("(B * tiles)", "B"),
    ),
)
