"""Tiles of heads are programs too, and are forgotten."""

from rwkv_lessons.launch import ceil_div


def tokens_per_split(B, tiles, N, BN, places):
    """The fewest tokens per split for which the programs of `partial` find a place all at once.

    B texts of N tokens, tiles of heads per text; places: how many programs the GPU runs at a time.
    A multiple of BN. If there are too many texts for that already, a text is not split.
    """
    splits = max(1, places // (B))
    return ceil_div(ceil_div(N, splits), BN) * BN
