"""The last block of keys and of values has no program."""


def grid(B, H, K, V, BK, BV):
    return V // BV, K // BK, B * H
