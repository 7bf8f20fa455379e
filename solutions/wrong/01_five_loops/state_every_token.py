"""Reads and writes the state at every token, as torch does: the least is to keep it on the chip."""


def least_bytes(B, T, H, N, itemsize):
    return 4 * B * T * H * N * itemsize + 2 * H * N * 4 + 2 * B * T * H * N * N * 4
