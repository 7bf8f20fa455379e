"""Adds a block even when the last one is full."""


def blocks(B, H, N, block):
    return B * H * N // block + 1
