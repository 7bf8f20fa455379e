"""Rounds down: the outputs behind the last whole block get no thread."""


def blocks(B, H, N, block):
    return B * H * N // block
