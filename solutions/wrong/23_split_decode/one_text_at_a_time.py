"""Other texts' programs are forgotten: far too many splits."""

from rwkv_lessons.launch import ceil_div


def tokens_per_split(B, tiles, N, BN, places):
    return ceil_div(ceil_div(N, places), BN) * BN
