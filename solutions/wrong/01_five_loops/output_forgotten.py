"""Counts what is read and forgets what is written."""


def least_bytes(B, T, H, N, itemsize):
    return 3 * B * T * H * N * itemsize + 2 * H * N * 4
