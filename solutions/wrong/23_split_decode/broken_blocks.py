"""A split is cut in the middle of a block."""

from rwkv_lessons.launch import ceil_div


def tokens_per_split(B, tiles, N, BN, places):
    return ceil_div(N, max(1, places // (B * tiles)))
