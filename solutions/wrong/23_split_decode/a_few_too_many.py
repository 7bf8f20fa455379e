"""Rounded up: some programs have to wait for a second turn."""

from rwkv_lessons.launch import ceil_div


def tokens_per_split(B, tiles, N, BN, places):
    return ceil_div(ceil_div(N, ceil_div(places, B * tiles)), BN) * BN
